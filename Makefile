# Everything runs in a virtual environment that the first target makes: Python ≥ 3.11 is all it needs.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help demo test test-engine lint types imports docs tests bench clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(READY) ## All schemes on embedded data; the report is demo/run/report.html
	@rm -rf demo/run && mkdir -p demo
	$(BIN)/codedfedl plan paper --redundancy 0.1 --figure demo/plan.png
	$(BIN)/codedfedl demo --out demo/run

test: lint types imports docs tests ## All checks: lint, format, types, import directions, docs, tests

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports --no-cache

docs: $(READY) ## The site, in build/docs
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs

tests: $(READY)
	$(BIN)/pytest

test-engine: $(READY) ## What takes minutes on the real engine: kills, restarts, many nodes
	$(BIN)/pytest tests/test_engine.py -m long

bench: $(READY) ## Measure speed: ratios to the naive version in one run
	$(BIN)/python -m benchmarks

clean: ## Remove the virtual environment and everything made
	rm -rf .venv demo runs dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "codedfedl needs Python 3.11 or newer: make PYTHON=/path/to/python3 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
