# The commands of this repository. `make start` and `make test` need nothing but Python 3.11 or newer and make.
# ARGS passes arguments on: make start ARGS="--tcp-port 7000", make test ARGS="-k config".

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
DATA := data
ARGS ?=
# Half of the suite is waiting, so that more processes than processors pay. PROCESSES=0 runs it in one, as a debugger needs it.
PROCESSES ?= 4

MANIFESTS := pyproject.toml constraints.txt $(wildcard plugins/*/pyproject.toml)
# It says what it does: a first installation takes a while.
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help start test test-postgres check format bench clean

help: ## Say what there is.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

start: $(VENV)/.for-start ## Start the server on ./data/bunqueue.db (TCP 6789, HTTP 6790).
	@mkdir -p $(DATA)
	@exec $(BIN)/bunqueue start --data-path $(DATA)/bunqueue.db $(ARGS)

test: $(VENV)/.for-development ## Run the whole test suite.
	$(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal $(ARGS)

test-postgres: $(VENV)/.for-development ## Run the PostgreSQL plugin's tests on every major of PostgreSQL that is found.
	$(BIN)/python tools/postgres_majors.py $(if $(ARGS),$(ARGS),-n $(PROCESSES) plugins/bunqueue_postgres/tests)

check: $(VENV)/.for-development ## Check style, types and generated code.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if [ -f tools/async_to_sync.py ]; then \
		echo "$(BIN)/python tools/async_to_sync.py --check"; $(BIN)/python tools/async_to_sync.py --check; fi

format: $(VENV)/.for-development ## Format the code and mend what can be mended.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.for-development ## Measure the workloads, beside the original where it is installed.
	$(BIN)/python -m benchmarks $(ARGS)

clean: ## Remove the virtual environment and caches; data stays.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What is installed depends on the manifests alone: the packages themselves are installed in place.
$(VENV)/.for-start: $(MANIFESTS) | $(VENV)/.created
	@echo "Installing the server into $(VENV), once: about a minute ..."
	@$(PIP_INSTALL) -e ".[server]" -e plugins/bunqueue_sqlite
	@touch $@

$(VENV)/.for-development: $(MANIFESTS) | $(VENV)/.created
	@echo "Installing the server, all plugins and the development tools into $(VENV), once: a few minutes ..."
	@$(PIP_INSTALL) -e ".[server,dev]" -e plugins/bunqueue_sqlite -e plugins/bunqueue_postgres -e plugins/bunqueue_s3
	@touch $@ $(VENV)/.for-start

# A mark of its own, not the interpreter: an interrupted creation leaves an interpreter without its installer behind.
$(VENV)/.created:
	@if [ -z "$(PYTHON)" ]; then echo "Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3" >&2; exit 1; fi
	@echo "Creating $(VENV) with $(PYTHON) ..."
	@$(PYTHON) -m venv $(VENV)
	@touch $@
