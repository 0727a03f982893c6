# Needs Python 3.11 (PYTHON=… for another name of it); everything else is installed into .venv by the first target run.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.installed

.PHONY: demo test test-slow chaos golden lint bench docs setup clean
.DEFAULT_GOAL := demo

setup: $(SETUP)

# Installed again only when the requirements change.
$(SETUP): requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || \
		{ echo "raysim needs Python 3.11, and '$(PYTHON)' is none; say make PYTHON=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

demo: $(SETUP)
	@cluster/one_job.sh $(BIN) -- jobs/hfmds_100clients.py

test: $(SETUP) lint
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(SETUP)
	$(BIN)/python -m pytest -m slow --timeout 1800

chaos: $(SETUP)
	$(BIN)/python -m tests.faults.chaos

golden: $(SETUP)
	$(BIN)/python -m tests.golden

lint: $(SETUP)
	$(BIN)/ruff check .

bench: $(SETUP)
	$(BIN)/python -m benchmarks.compare

docs: $(SETUP)
	$(BIN)/python -m raysim settings >docs/settings.md

clean:
	rm -rf $(VENV)
