# Needs Python 3.11 or newer (PYTHON=… for one of another name); everything else is installed into .venv by the first
# target run. Of several the oldest is taken: results were measured with 3.11.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-full test-slow chaos fuzz mutants golden lint bench docs setup clean
.DEFAULT_GOAL := demo

setup: $(SETUP)

# Installed again only when the requirements or the package's own description change. Its dependencies are those of
# requirements.txt, and setuptools is one of them, so nothing is downloaded for the last step.
$(SETUP): requirements.txt pyproject.toml
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "raysim needs Python 3.11 or newer, and $(if $(PYTHON),'$(PYTHON)' is not,none was found);" \
			"say make PYTHON=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements.txt
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

demo: $(SETUP)
	@cluster/one_job.sh $(BIN) -- jobs/hfmds_100clients.py

# What starts neither Ray nor a process, and one real run. The others, but for the slow ones, are test-full.
test: $(SETUP) lint
	$(BIN)/python -m pytest -m quick -n 2 --dist loadfile

test-full: $(SETUP)
	$(BIN)/python -m pytest -m "not quick and not slow" -n 2 --dist loadfile

test-slow: $(SETUP)
	$(BIN)/python -m pytest -m slow --timeout 1800

chaos: $(SETUP)
	$(BIN)/python -m tests.faults.chaos

# FUZZ=500 for fewer cases, or more.
fuzz: $(SETUP)
	$(BIN)/python -m tests.fuzz --cases $(or $(FUZZ),5000)

# MUTANTS="storage --each 20" for fewer.
mutants: $(SETUP)
	$(BIN)/python -m tests.mutants $(MUTANTS)

golden: $(SETUP)
	$(BIN)/python -m tests.golden

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(SETUP)
	$(BIN)/python -m benchmarks.compare

docs: $(SETUP)
	$(BIN)/python -m raysim settings >docs/settings.md

clean:
	rm -rf $(VENV)
