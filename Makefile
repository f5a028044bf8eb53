# Everything runs in a virtual environment that the first target makes: Python ≥ 3.11 is all it needs.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEV := .venv/.ready-dev
EXTRAS := .venv/.ready-extras
NEWEST := .venv-newest
# Bytecode is kept, whatever the environment says: compiling what a test imports takes longer than many a test.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
# Real processes on real sockets share a busy machine: what failed is run once more, and must pass then. Status 1 alone
# says that every test was run; whatever was interrupted, or crashed, has failed.
TWICE = $(1) || { test $$? -eq 1 && echo "== again, only what failed" && $(1) --last-failed --last-failed-no-failures none; }

.PHONY: help demo test test-browser test-engine test-engine-short test-engine-turn test-extras test-newest test-newest-engine test-search test-slow lint types imports docs tests bench clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(READY) ## All schemes on embedded data; the report is demo/run/report.html
	@echo "The demo plans the paper's fleet and trains eight settings on embedded digits, three seeds each."
	@echo "It takes about half a minute on one core and 300 MB of memory, and downloads nothing."
	@rm -rf demo/run && mkdir -p demo
	$(BIN)/codedfedl plan paper --redundancy 0.1 --figure demo/plan.png
	$(BIN)/codedfedl demo --out demo/run

test: $(DEV) ## The checks of every change: lint, format, types, import directions, docs, tests
	@$(MAKE) --no-print-directory -j2 -Oline lint types imports docs tests

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy

imports: $(DEV)
	$(BIN)/lint-imports --no-cache

docs: $(DEV) ## The site, in build/docs
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs

tests: $(DEV) # a process for each core; each does its linear algebra by itself
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

test-slow: $(DEV) ## README and tutorials block by block, Table 1, whole commands, statistics of many draws
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -m slow -n auto --dist worksteal

test-search: $(DEV) ## Search for asks that give points away, and for records that move a sum too far; new ones each time
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest tests/test_limits.py -n auto --hypothesis-profile search

test-browser: docs ## The report and the docs in a real browser; needs Chromium
	$(BIN)/pytest -m browser

test-engine-short: $(DEV) ## Short federations on the real engine: TLS, kills, strangers
	$(call TWICE,$(BIN)/pytest -m "engine and not long")

test-engine: $(DEV) ## What takes minutes on the real engine: kills, restarts, many nodes
	$(BIN)/pytest -m "engine and long"

test-engine-turn: $(DEV) ## Two of the tests that take minutes, each day others
	$(call TWICE,$(BIN)/pytest -m "engine and long" --turn 2)

test-newest: ## The tests with PYTHON and the newest versions on the index, in an environment of its own
	@rm -rf $(NEWEST) && $(PYTHON) -m venv $(NEWEST)
	@$(NEWEST)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -e '.[dev,flower,privacy]'
	@$(NEWEST)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps 'flwr~=1.42.0'
	@$(NEWEST)/bin/python -VV && $(NEWEST)/bin/python -m pip freeze --exclude-editable
	OPENBLAS_NUM_THREADS=1 $(NEWEST)/bin/pytest -n auto --dist worksteal -p no:cacheprovider

test-newest-engine: # after test-newest, in its environment: a federation on the newest Flower
	$(call TWICE,$(NEWEST)/bin/pytest -m engine -k test_a_short_federation_with_tls_and_one_kill)

test-extras: $(EXTRAS) ## What needs optional packages: PyTorch, ONNX, Dask, trackers, texts, a notebook, a wheel
	$(BIN)/pytest -m extras

bench: $(DEV) ## Measure speed: ratios to the naive version in one run
	$(BIN)/python -m benchmarks

clean: ## Remove the virtual environment and everything made
	rm -rf .venv $(NEWEST) build demo runs dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "codedfedl needs Python 3.11 or newer: make PYTHON=/path/to/python3 $(MAKECMDGOALS)"; exit 1; }
	@echo "setting up .venv, once: about 150 MB are downloaded, which takes a minute or two"
	@$(PYTHON) -m venv .venv
	@$(PIP) -r requirements.txt
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(DEV): requirements-dev.txt $(READY)
	@$(PIP) -r requirements-dev.txt
	@touch $@

$(EXTRAS): requirements-extras.txt $(DEV)
	@$(PIP) -r requirements-extras.txt
	@touch $@
