# Every target works on a fresh checkout: it installs what it needs first.
PYTHON ?= python3
BIN := .venv/bin
# Stamps: the library with every driver, and what the tests and checks need besides.
INSTALLED := .venv/installed
TOOLS := .venv/tools
PIP := .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable
# What to hand on: make test ARGS="tests/unit -k saga", make bench ARGS=--quick, make bench ARGS="--only cluster"
ARGS ?=

.PHONY: help install tools dev services test check fmt bench soak requirements
.DEFAULT_GOAL := help

help:
	@echo 'make dev           run everything in one process; needs no server'
	@echo 'make install       the library with all drivers into .venv; `make dev` does it too'
	@echo 'make test          all tests; finds or installs RabbitMQ, PostgreSQL and MariaDB first'
	@echo 'make check         lint, format, types, import rules, size budget'
	@echo 'make fmt           format the code'
	@echo 'make services      find or install the servers and tools that the tests need'
	@echo 'make bench         how fast it is, beside DBOS and Celery; 15 minutes on a machine that does nothing else'
	@echo 'make soak          the long variants of the tests that have one'
	@echo 'make requirements  rows of the specification that no passing test names'

# The commands of .venv find the service from any folder. Linked each time: the checkout may have been moved.
install: $(INSTALLED)
	@ln -sfn "$(CURDIR)/orchestrix.toml" .venv/orchestrix.toml

tools: install $(TOOLS)

# Debian keeps ensurepip, without which there is no virtual environment, in a package of its own.
define MAKE_ENVIRONMENT
set -eu
say() { echo "make install: $$*"; }
fail() { say "$$*" >&2; exit 1; }
can() { $(PYTHON) -c "$$1" 2>/dev/null; }

can '' || fail 'there is no $(PYTHON); install Python 3.11 or newer, or name it: make PYTHON=python3.12'
can 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "Orchestrix needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1); name another: make PYTHON=python3.12"

add_venv() {
    package="python$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    line="apt-get update && apt-get install -y $$package"
    if ! command -v apt-get >/dev/null; then
        fail '$(PYTHON) comes without venv and ensurepip; install them with the package tool of your system'
    elif [ "$$(id -u)" = 0 ]; then
        become=
    elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
        become=sudo
    else
        fail "$(PYTHON) comes without venv; type: sudo sh -c '$$line'"
    fi
    say "installing the package $$package"
    $$become sh -c "DEBIAN_FRONTEND=noninteractive; export DEBIAN_FRONTEND; $$line" >/dev/null ||
        fail "that failed; type: sudo sh -c '$$line'"
}

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    can 'import venv, ensurepip' || add_venv
    $(PYTHON) -m venv --clear .venv
fi
say 'installing the packages into .venv ...'
$(PIP) '.[postgresql,mysql,otel,zmq]'
endef
export MAKE_ENVIRONMENT

# A stamp is newer than pyproject.toml exactly when the environment fits it.
$(INSTALLED): pyproject.toml
	@sh -c "$$MAKE_ENVIRONMENT"
	@touch $@

$(TOOLS): $(INSTALLED)
	@echo 'make tools: installing the tools of the tests into .venv ...'
	@$(PIP) '.[dev]'
	@touch $@

dev: install
	@exec $(BIN)/orchestrix dev

services: tools
	@$(BIN)/python -m tests.servers ensure

# In five processes that share their servers: four mostly wait (tests/together.py). In one with ARGS="-n 0".
test: services
	@$(BIN)/python -m pytest $(if $(findstring no:xdist,$(ARGS)),,-n auto) $(ARGS)

soak: services
	@ORCHESTRIX_SOAK=1 $(BIN)/python -m pytest -o faulthandler_timeout=3600 $(ARGS)

check: tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tests.architecture.budget

fmt: tools
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .
	$(BIN)/python -m tests.documents

bench: services
	@$(BIN)/python -m tests.bench $(ARGS)

requirements: tools
	@$(BIN)/python -m tests.ledger
