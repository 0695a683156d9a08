# Every target sets up what it needs in .venv; a machine needs only Python 3.11+ and make.
# Java 17+ and Maven, where present, add the interop suite (required when CI=true).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
ARGS   ?=

.DEFAULT_GOAL := help
# What `make coverage` runs: our own daemons, no JVM.
COVERED := tests/unit tests/property tests/golden tests/integration tests/client tests/fault/store \
	tests/fault/broker tests/fault/nameserver tests/fault/client tests/fault/transport

.PHONY: help demo unit test coverage check format generate build hooks bench fuzz fuzz-core sanitize peers simulate fault clean

help: ## List the targets
	@echo "Goddard: RocketMQ in Python, with Spark built in. Targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml hatch_build.py $(wildcard src/goddard/core/*.p*)
	@$(PYTHON) -c 'import sys; sys.exit("Goddard needs Python 3.11 or newer; this is %s. Try: make PYTHON=python3.12" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@echo "Setting up $(VENV) (once; a minute or two) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(READY) ## See it work: a cluster, messages of every kind, a Spark pipeline and its chart
	@$(BIN)/python -m goddard.cli.main demo

unit: $(READY) ## Unit and property tests but for the slow ones: under a minute
	@$(BIN)/pytest -q -n 2 -m "not slow" $(or $(ARGS),tests/unit tests/property)

test: check peers ## Everything: check, then all test suites
ifeq ($(strip $(ARGS)),)
	@$(BIN)/python tools/run_suites.py
else
	$(BIN)/pytest $(ARGS)
endif

coverage: $(READY) ## Which lines the tests without a JVM run: a table, and build/coverage/index.html
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -q -m "not java and not slow" $(or $(ARGS),$(COVERED)); tests=$$?; \
	$(BIN)/coverage combine --quiet && $(BIN)/coverage html --quiet && $(BIN)/coverage report && exit $$tests

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

build: $(READY) ## Build sdist and wheel into dist, install each into an empty environment, try it
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist . > /dev/null
	@$(BIN)/python tools/try_packages.py dist

hooks: $(READY) ## Run the checks before each commit (pre-commit, with the tools of .venv)
	@$(BIN)/pre-commit install

peers: $(READY) ## Fetch the official RocketMQ jars for the interop suite (once)
	@$(BIN)/python -m tests.support.peers

bench: $(READY) peers ## Measure ours and the real RocketMQ in one run
	$(BIN)/python -m bench $(ARGS)

fuzz: $(READY) ## Feed the decoders a million hostile inputs
	$(BIN)/python -m bench.fuzz $(ARGS)

fuzz-core: $(READY) ## Feed the compiled decoders ten million hostile inputs
	$(BIN)/python -m bench.fuzz_core $(ARGS)

simulate: $(READY) ## Run a simulated cluster: SEED=1 RUNS=100; or ARGS=--planted
	$(BIN)/python -W ignore -m tests.simulation --seed $(or $(SEED),1) --runs $(or $(RUNS),100) $(ARGS)

fault: $(READY) ## Faults in clusters of real processes: SEED=1 MINUTES=5; or ARGS="--round 3"
	$(BIN)/python -W ignore -m tests.fault.cluster --seed $(or $(SEED),1) --minutes $(or $(MINUTES),5) $(ARGS)

sanitize: $(READY) ## Test the compiled modules under gcc's address sanitizer
	@rm -rf build/sanitized
	@GODDARD_CORE=1 CFLAGS="-fsanitize=address -fno-omit-frame-pointer -g -O1" LDFLAGS=-fsanitize=address \
		$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target build/sanitized .
	PYTHONPATH=build/sanitized PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 \
		LD_PRELOAD=$$(gcc -print-file-name=libasan.so) \
		$(BIN)/pytest -q -p no:cacheprovider $(or $(ARGS),$(wildcard tests/property/test_core_*.py))

clean: ## Remove the virtual environment, the jars and all caches
	rm -rf $(VENV) .peers .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
