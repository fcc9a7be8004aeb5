# Two commands do everything on a fresh machine: `make demo` and `make test`. Both make their own environment in .venv.
# `make test` runs all tests: those in Python, and those of the delegate in C++ with sanitizers and, where a cross
# compiler is installed, on aarch64. What a build or the tests lack of Debian's packages is installed (`make packages`,
# `make test-packages`).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What a build needs, and what the tests need besides.
PACKAGES := g++ python3-venv libhwy-dev
TEST_PACKAGES := $(PACKAGES) libgtest-dev
CPP := build/cpp
SUDO := $(shell test "$$(id -u)" = 0 || echo sudo)
CMAKE = $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja
SANITIZED = $(CMAKE) -S delegate_src -DLITEFUSE_BUILD_TESTS=ON -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS="-O1 -g1"

.PHONY: demo test test-all test-abi test-cpp test-aarch64 runtimes packages test-packages lint docs clean

demo: $(STAMP)
	$(BIN)/python examples/make_model.py
	$(BIN)/litefuse convert examples/unfused.tflite

test: lint test-abi test-cpp test-aarch64 runtimes
	$(BIN)/python -m pytest -n auto

test-all: $(STAMP) runtimes
	$(BIN)/python -m pytest -n auto -m "slow or not slow"

# Compares the interface that the delegate declares with the official headers, which come with the Android library.
test-abi:
	tests/abi.sh

# The C++ tests, once with address and undefined-behaviour sanitizers and once with the thread sanitizer (which has
# nothing to find in tests of single kernels).
test-cpp: $(STAMP)
	@test -e /usr/include/gtest/gtest.h || $(MAKE) test-packages
	$(SANITIZED) -B $(CPP)/address -DLITEFUSE_SANITIZE=address,undefined
	$(BIN)/cmake --build $(CPP)/address --target litefuse_tests
	$(CPP)/address/litefuse_tests --gtest_brief=1
	$(SANITIZED) -B $(CPP)/thread -DLITEFUSE_SANITIZE=thread
	$(BIN)/cmake --build $(CPP)/thread --target litefuse_tests
	$(CPP)/thread/litefuse_tests --gtest_brief=1

# The same on aarch64 under emulation, and one model from end to end; skipped, and said so, without a cross compiler.
test-aarch64: $(STAMP)
	tests/aarch64.sh $(abspath $(BIN))

# Environments with other runtimes, in which the delegate is tested too. tflite-runtime has no wheels past Python 3.11.
runtimes: .venv-tensorflow/.installed .venv-tflite-runtime/.installed .venv-model-explorer/.installed

.venv-tensorflow/.installed:
	$(PYTHON) -m venv .venv-tensorflow
	.venv-tensorflow/bin/pip install --quiet "tensorflow-cpu>=2.18; platform_machine == 'x86_64'" "tensorflow>=2.18; platform_machine != 'x86_64'" click rich \
	    || echo "no TensorFlow for this Python: its tests skip" >&2
	touch $@

# Model Explorer takes 660 MB, and nothing else needs it.
.venv-model-explorer/.installed:
	$(PYTHON) -m venv .venv-model-explorer
	.venv-model-explorer/bin/pip install --quiet "ai-edge-model-explorer>=0.1.34" \
	    || echo "no Model Explorer for this system: its tests skip" >&2
	touch $@

.venv-tflite-runtime/.installed:
	$(PYTHON) -m venv .venv-tflite-runtime
	.venv-tflite-runtime/bin/pip install --quiet tflite-runtime==2.14.0 "numpy<2" \
	    || echo "no tflite-runtime for this Python: its tests skip" >&2
	touch $@

packages test-packages:
	@command -v apt-get >/dev/null || (echo "install the equivalents of Debian's $(if $(filter test-%,$@),$(TEST_PACKAGES),$(PACKAGES))" >&2; exit 1)
	$(SUDO) apt-get update -qq
	$(SUDO) apt-get install -y -qq $(if $(filter test-%,$@),$(TEST_PACKAGES),$(PACKAGES))

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(shell git ls-files 'delegate_src/*.cc' 'delegate_src/*.h' 'delegate_src/*.inc')

# Writes the pages that follow from the code, then builds the site into build/site.
docs: $(STAMP)
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

$(STAMP): pyproject.toml CMakeLists.txt $(shell find delegate_src -name '*.cc' -o -name '*.h' -o -name '*.inc' -o -name 'CMakeLists.txt' -o -name '*.cmake' | grep -v _test.cc)
	@command -v $(firstword $(CXX)) >/dev/null || $(MAKE) packages
	@test -e /usr/include/hwy/highway.h || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || $(MAKE) packages
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "litefuse needs Python 3.10 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV) || (echo "python venv is missing: apt install python3-venv" >&2; exit 1)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .venv-tensorflow .venv-tflite-runtime .venv-model-explorer build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis examples/*.tflite
