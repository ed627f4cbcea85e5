# Every target first makes its own environment, so it works on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests wait for servers and other processes about half of their time.
WORKERS ?= $(shell expr 2 '*' $$(getconf _NPROCESSORS_ONLN))
# Tests of one file stay together, because they share what the file prepares.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# Tests start hundreds of processes, each of which would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help test test-all check demo shop example bench bench-quick bench-pages pictures docs docs-site docs-serve release-check road chaos chaos-all format clean
.DELETE_ON_ERROR:

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# A venv that cannot run its own pip (half made, or moved from elsewhere) is made anew.
$(VENV)/ready: pyproject.toml constraints.txt
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

test: $(VENV)/ready ## Run the tests on real PostgreSQL servers
	$(PYTEST) $(ARGS)

test-all: $(VENV)/ready ## Run the tests on every driver and server, then on other Pythons
	HOLDFAST_TEST_ALL=1 $(PYTEST) $(ARGS)
	@for python in python3.12 python3.13; do \
	  if $$python --version >/dev/null 2>&1; then \
	    $(MAKE) --no-print-directory test VENV=.venv-$$python PYTHON=$$python || exit 1; \
	  else \
	    echo "$$python is not here; its tests are skipped"; \
	  fi; \
	done

check: $(VENV)/ready ## Run the linters, the type checker and the layer contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

shop: $(VENV)/ready ## Run the example shop on an embedded PostgreSQL
	cd examples/shop && $(abspath $(BIN))/python -m shop

demo: $(VENV)/ready ## Run real jobs on an embedded PostgreSQL and watch them
	$(BIN)/holdfast demo

bench: $(VENV)/ready ## Measure Holdfast and every peer (100 minutes); BINDIR=… chooses a PostgreSQL
	$(BIN)/python -m bench.main --publish $(ARGS)
	$(BIN)/python -m bench.typed

bench-quick: $(VENV)/ready ## Measure Holdfast, PgQueuer and the raw limit (5 minutes)
	$(BIN)/python -m bench.main --quick $(ARGS)

bench-pages: $(VENV)/ready ## Measure pages and explanations at 1,000,000 jobs and 10,000,000 log rows
	$(BIN)/python -m bench.pages $(ARGS)

chaos: $(VENV)/ready ## Six minutes of faults and of an upgrade under load, and the check of what came of them
	$(BIN)/python -m chaos run --profile quick $(ARGS)
	$(BIN)/python -m chaos run --profile upgrade

chaos-all: $(VENV)/ready ## The same with 30 workers, failovers, upgrades, planted bugs and figures (40 minutes)
	$(BIN)/python -m chaos run --profile quick
	$(BIN)/python -m chaos run --profile fleet
	$(BIN)/python -m chaos run --profile acts
	$(BIN)/python -m chaos figures
	$(BIN)/python -m chaos mutants
	$(BIN)/python -m chaos page

road: $(VENV)/ready ## Trace one job and print its calls, files and callbacks
	$(BIN)/python -m devtools.road $(ARGS)

pictures: $(VENV)/ready ## Draw the pictures of the documentation
	$(BIN)/python -m devtools.dashboard_picture docs/images/dashboard.svg
	HOLDFAST_PICTURES=docs/images $(BIN)/python -m pytest -q -n 0 tests/web/test_browser.py -k pictures

example: $(VENV)/ready ## Serve a table of its own as a queue, on an embedded PostgreSQL
	$(BIN)/python examples/email_snoozes/run.py

format: $(VENV)/ready ## Format the code and sort the imports
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

clean: ## Remove the environment and every cache
	rm -rf $(VENV) .venv-* build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

docs: $(VENV)/ready ## Write the pages that are made from the code
	$(BIN)/python docs/build.py
	$(BIN)/python -m chaos page

docs-site: $(VENV)/ready ## Build the documentation site into build/site
	$(BIN)/mkdocs build --strict

docs-serve: $(VENV)/ready ## Show the documentation site while it is written
	$(BIN)/mkdocs serve

release-check: $(VENV)/ready ## Build wheel and sdist, install each on every Python here, use them
	$(BIN)/python -m devtools.release_check
