#!/usr/bin/env bash
# Tests the delegate on aarch64 under emulation: the C++ tests, and models from end to end in the runtime's own aarch64
# build, whose outputs are compared with those of this machine.
#
#   tests/aarch64.sh BIN [BUILD]    BIN: where this machine's python and cmake are; BUILD: where to work (build/aarch64)
#
# Needs Debian's g++-aarch64-linux-gnu, qemu-user, debootstrap and googletest; without them it is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$1
build=${2:-build/aarch64}
for tool in aarch64-linux-gnu-g++ qemu-aarch64 debootstrap dpkg-deb; do
    if ! command -v "$tool" >/dev/null; then
        echo "SKIPPED: the tests on aarch64 need $tool (apt install g++-aarch64-linux-gnu qemu-user debootstrap googletest)"
        exit 0
    fi
done
if [ ! -d /usr/src/googletest ]; then
    echo "SKIPPED: the tests on aarch64 need the sources of GoogleTest (apt install googletest)"
    exit 0
fi
mkdir -p "$build"
build=$(realpath "$build")
root=$build/root

# The libraries of an aarch64 system, unpacked only: nothing of it is run but through qemu.
if [ ! -e "$root/.done" ]; then
    rm -rf "$root"
    debootstrap --arch=arm64 --foreign --variant=minbase \
        --include=python3,libpython3-stdlib,libstdc++6,libgcc-s1,ca-certificates,libhwy-dev bookworm "$root" \
        >"$build/debootstrap.log" 2>&1 || { tail -20 "$build/debootstrap.log"; exit 1; }
    for package in "$root"/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
    rm -f "$root"/var/cache/apt/archives/*.deb
    touch "$root/.done"
fi

"$bin/cmake" -G Ninja -DCMAKE_MAKE_PROGRAM="$bin/ninja" -S delegate_src -B "$build/cpp" \
    -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake -DLITEFUSE_AARCH64_ROOT="$root" \
    -DLITEFUSE_BUILD_TESTS=ON -DLITEFUSE_GTEST_SOURCE=/usr/src/googletest -DCMAKE_BUILD_TYPE=Release
"$bin/cmake" --build "$build/cpp"
echo "C++ tests on aarch64 (qemu, cortex-a76):"
qemu-aarch64 -cpu cortex-a76 -L "$root" "$build/cpp/litefuse_tests" --gtest_brief=1
# A processor with nothing but armv8-a must run the same vector kernels.
echo "C++ tests of the vector kernels on aarch64 (qemu, cortex-a53):"
qemu-aarch64 -cpu cortex-a53 -L "$root" "$build/cpp/litefuse_tests" --gtest_brief=1 \
    --gtest_filter='Depthwise*:Elementwise*:GemmSimd*:NormSimd*:Simd*:Window*:WinogradSimd*:Lowering*:Threads*:Weights*'

# The runtime's wheels for aarch64, unpacked into the same system.
site=$root/opt/site
if [ ! -e "$site/.done" ]; then
    rm -rf "$site" "$build/wheels"
    mkdir -p "$site" "$build/wheels"
    "$bin/pip" download --quiet --no-deps --only-binary=:all: --python-version 311 --dest "$build/wheels" \
        --platform manylinux2014_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_28_aarch64 \
        --platform manylinux_2_34_aarch64 ai-edge-litert==2.3.0 numpy==2.2.6 typing_extensions protobuf flatbuffers \
        backports.strenum tqdm ml_dtypes
    for wheel in "$build"/wheels/*.whl; do "$bin/python" -m zipfile -e "$wheel" "$site"; done
    touch "$site/.done"
fi
# The runtime reads what processor it is on from here; it must match what qemu is told to be.
mkdir -p "$root/proc"
cat >"$root/proc/cpuinfo" <<'TEXT'
processor	: 0
BogoMIPS	: 100.00
Features	: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x3
CPU part	: 0xd0b
CPU revision	: 1
TEXT
"$bin/python" tests/aarch64_models.py "$root" "$build/cpp/liblitefuse_delegate.so" "$build/models"
