#!/usr/bin/env bash
# Compiles delegate_src/tflite/abi_check.cc with the official C headers, for this machine and, if there is a cross
# compiler, for aarch64. The headers come from the Android library (org.tensorflow:tensorflow-lite), fetched with Maven.
set -euo pipefail
cd "$(dirname "$0")/.."
version=2.16.1
build=build/abi
if [ ! -d "$build/headers" ]; then
    if ! command -v mvn >/dev/null; then
        echo "SKIPPED: comparing the interface with the official headers needs Maven (apt install maven)"
        exit 0
    fi
    mkdir -p "$build"
    mvn --quiet --batch-mode dependency:copy -Dartifact=org.tensorflow:tensorflow-lite:$version:aar \
        -DoutputDirectory="$PWD/$build"
    python3 -m zipfile -e "$build/tensorflow-lite-$version.aar" "$build/aar"
    mv "$build/aar/headers" "$build/headers"
    rm -rf "$build/aar"
fi
for compiler in "${CXX:-g++}" aarch64-linux-gnu-g++; do
    if command -v "$compiler" >/dev/null; then
        "$compiler" -std=c++17 -Wall -Wextra -Werror -fsyntax-only -Idelegate_src -isystem "$build/headers" \
            delegate_src/tflite/abi_check.cc
        echo "the declared interface is that of TFLite $version ($compiler)"
    else
        echo "SKIPPED: no $compiler"
    fi
done
