# Everything a fresh machine needs is Python 3.11 or newer with its venv module, make, git and a C++ compiler.
PYTHON ?= python3
VENV ?= .venv
# A requirement, and pip options of your own behind it: TORCH="torch==2.13.0 --extra-index-url ADDRESS"
TORCH ?= torch==2.13.0

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
READY := $(VENV)/.ready
# Parallel test workers must not each start a thread per core.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help demo test check lint clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-6s %s\n", $$1, $$2}' Makefile

demo: $(READY) ## train on a public log, compare with the rivals, write demo/ with a report
	$(BIN)/rootbeam demo --out demo

test: $(READY) ## run the fast tests on two cores
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --dist loadfile --timeout 120

check: lint ## lint, types, and the smallest demo on a simulated log
	$(BIN)/rootbeam demo --simulate --smoke --out build/demo-smoke

lint: $(READY) ## style, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

clean: ## remove what the other targets wrote, except the virtual environment itself
	rm -rf build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis $(READY)

# Torch comes first and by itself, so that no other requirement chooses its version or its build.
$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "rootbeam needs Python 3.11 or newer; name one with: make PYTHON=python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
	  || { echo "no virtual environment could be made; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PIP) install $(foreach word,$(TORCH),'$(word)')
	$(PIP) install -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@
