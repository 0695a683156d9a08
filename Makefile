# Every target sets up what it needs in .venv; a machine needs only Python 3.11+ and make.
# Java 17+ and Maven, where present, add the interop suite (required when CI=true).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help demo test check format generate bench fuzz peers clean

help: ## List the targets
	@echo "Goddard: RocketMQ in Python, with Spark built in. Targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Goddard needs Python 3.11 or newer; this is %s. Try: make PYTHON=python3.12" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@echo "Setting up $(VENV) (once; a minute or two) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(READY) ## See it work: a cluster, messages of every kind, a Spark pipeline and its chart
	@$(BIN)/python -m goddard.cli.main demo

test: check peers ## Everything: check, then all test suites
ifeq ($(strip $(ARGS)),)
	@$(BIN)/python tools/run_suites.py
else
	$(BIN)/pytest $(ARGS)
endif

check: $(READY) ## Format, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## Format the sources and mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

generate: $(READY) ## Write the API reference
	$(BIN)/python -m tools.write_reference

peers: $(READY) ## Fetch the official RocketMQ jars for the interop suite (once)
	@$(BIN)/python -m tests.support.peers

bench: $(READY) peers ## Measure ours and the real RocketMQ in one run
	$(BIN)/python -m bench $(ARGS)

fuzz: $(READY) ## Feed the decoders a million hostile inputs
	$(BIN)/python -m bench.fuzz $(ARGS)

clean: ## Remove the virtual environment, the jars and all caches
	rm -rf $(VENV) .peers .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
