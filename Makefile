# Two commands do everything on a fresh machine: `make demo` and `make test`. Both make their own environment in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all lint docs clean

demo: $(STAMP)
	$(BIN)/python examples/make_model.py
	$(BIN)/litefuse convert examples/unfused.tflite

test: lint
	$(BIN)/python -m pytest -n auto

test-all: $(STAMP)
	$(BIN)/python -m pytest -n auto -m "slow or not slow"

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/python docs/generate.py

$(STAMP): pyproject.toml CMakeLists.txt $(wildcard delegate_src/arena/*)
	@command -v $(firstword $(CXX)) >/dev/null || (echo "no C++ compiler ($(CXX)): apt install g++" >&2; exit 1)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "litefuse needs Python 3.10 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV) || (echo "python venv is missing: apt install python3-venv" >&2; exit 1)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis examples/*.tflite
