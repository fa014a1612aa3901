# Every target makes its own environment first. `make demo` and `make test` need nothing but Python 3.10+ with venv and pip.
SHELL  := /bin/bash
PYTHON ?= python3
PINNED := $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH  ?= $(PINNED)
# Another Python or torch (make test PYTHON=python3.13 TORCH=2.15.0) has an environment of its own.
VENV   := .venv$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))$(if $(filter-out $(PINNED),$(TORCH)),-torch$(TORCH))
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PINS   := $(VENV)/constraints.txt
PIP    := $(BIN)/python -m pip --disable-pip-version-check
FAILED := { echo >&2; \
	echo "error: the installation failed (see above)." >&2; \
	echo "  expected: pip can reach a package index, and has builds of constraints.txt for this Python and machine" >&2; \
	echo "  got:      $$($(PYTHON) --version 2>&1) on $$(uname -sm)" >&2; \
	echo "  fix:      check the network and pip's settings ('pip config list'), then run make again;" >&2; \
	echo "            PYTHON=python3.12 make ... takes another interpreter" >&2; exit 1; }

.PHONY: help venv test test-ci test-matrix test-all lint format demo bench docs fuzz scorecard clean

help:
	@echo "make demo      train a language model on this machine, eager and compiled side by side"
	@echo "make test      the tests, of long sweeps a sample   make test-ci    with all of them, as CI runs them"
	@echo "make test-all  with the slow ones as well"
	@echo "make lint      ruff, mypy, layers                   make format     let ruff rewrite the code"
	@echo "make bench     the benchmarks                       make fuzz       the random search"
	@echo "make docs      the documentation as a site, in site/"
	@echo "make scorecard the conformance rules on real classes, into docs/scorecard.md (twenty minutes)"
	@echo "make test PYTHON=python3.13 TORCH=2.15.0    with others, in an environment of its own"
	@echo "make test-matrix   the tests on the corners of what is declared: $(MATRIX)"
	@echo "make venv      only install                         make clean      remove what the others made"

venv: $(STAMP)

# torch goes first and alone, so that no other package's wider range chooses its build.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "error: Python 3.10 or newer is needed; PYTHON=... make chooses one" >&2; exit 1; }
	@echo "installing into $(VENV) (once; a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "error: '$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
# What another torch needs of setuptools is its own.
	@sed $(if $(filter-out $(PINNED),$(TORCH)),-e '/^setuptools==/d') -e 's/^torch==.*/torch==$(TORCH)/' constraints.txt > $(PINS)
	@$(PIP) install -q -c $(PINS) "torch==$(TORCH)" || $(FAILED)
	@$(PIP) install -q -c $(PINS) hatchling editables || $(FAILED)
	@$(PIP) install -q -c $(PINS) --no-build-isolation -e ".[dev,testing]" || $(FAILED)
	@touch $@

# Files of tests side by side, one process per core. (PARALLEL= for one process, as a debugger needs it.)
PARALLEL ?= -n auto --maxprocesses 8 --dist loadfile

test: $(STAMP)
	$(BIN)/python -m pytest -q $(PARALLEL) -m "not slow and not fuzz and not long"

test-ci: $(STAMP)
	$(BIN)/python -m pytest -q $(PARALLEL) -m "not slow and not fuzz"

test-all: $(STAMP)
	$(BIN)/python -m pytest -q $(PARALLEL) -m "not fuzz"

# The declared corners, Python:torch. One whose interpreter is not on the PATH is said to be skipped.
MATRIX ?= python3.10:2.13.0 python3.11:2.11.0 python3.11:2.12.0 python3.11:2.13.0 python3.11:2.14.1 python3.12:2.15.0 python3.13:2.15.0 python3.14:2.15.0

test-matrix:
	@failed=; for pair in $(MATRIX); do \
		python=$${pair%%:*}; torch=$${pair##*:}; \
		if ! command -v $$python > /dev/null; then echo "$$pair: skipped, there is no $$python"; continue; fi; \
		echo "==== $$pair"; \
		$(MAKE) --no-print-directory test-ci PYTHON=$$python TORCH=$$torch || failed="$$failed $$pair"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict subclass_trace
	$(BIN)/lint-imports --no-cache

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: $(STAMP)
	@$(BIN)/python -m examples.demo $(ARGS)

bench: $(STAMP)
	@$(BIN)/python -m benchmarks $(if $(GPU),--gpu) $(ARGS)

docs: $(STAMP)
	@$(PIP) install -q -c $(PINS) mkdocs-material || $(FAILED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html"

fuzz: $(STAMP)
	HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-dev} $(BIN)/python -m pytest -q -m fuzz

scorecard: $(STAMP)
	$(BIN)/python -m tools.scorecard

clean:
	rm -rf .venv .venv-* build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
