#!/usr/bin/env bash
# The libraries of an aarch64 system with Python and the runtime's wheels, unpacked only: nothing of it is run but
# through qemu. What is there already stays.
#
#   benchmarks/qemu/root.sh ROOT PYTHON    PYTHON: one of this machine, with pip
set -euo pipefail
root=$1
python=$2
for tool in debootstrap dpkg-deb; do
    command -v "$tool" >/dev/null || { echo "$tool is missing (apt install debootstrap)" >&2; exit 1; }
done
mkdir -p "$root"
root=$(realpath "$root")
if [ ! -e "$root/.done" ]; then
    log=$(mktemp)
    debootstrap --arch=arm64 --foreign --variant=minbase \
        --include=python3,libpython3-stdlib,libstdc++6,libgcc-s1,ca-certificates,libhwy-dev bookworm "$root" \
        >"$log" 2>&1 || { tail -20 "$log"; exit 1; }
    for package in "$root"/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
    rm -f "$log" "$root"/var/cache/apt/archives/*.deb
    touch "$root/.done"
fi
site=$root/opt/site
if [ ! -e "$site/.done" ]; then
    wheels=$(mktemp -d)
    trap 'rm -rf "$wheels"' EXIT
    rm -rf "$site"
    mkdir -p "$site"
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 311 --dest "$wheels" \
        --platform manylinux2014_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_28_aarch64 \
        --platform manylinux_2_34_aarch64 ai-edge-litert==2.3.0 numpy==2.2.6 typing_extensions protobuf flatbuffers \
        backports.strenum tqdm ml_dtypes
    for wheel in "$wheels"/*.whl; do "$python" -m zipfile -e "$wheel" "$site"; done
    touch "$site/.done"
fi
