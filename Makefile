# The two commands are `make report` and `make test`. Each makes .venv if it is missing, and
# makes it anew when pyproject.toml has changed; they need Python >= 3.11 and nothing else.

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: report test lint bench docs samples clean
.DELETE_ON_ERROR:

report: .venv/run
	@$(BIN)/loganalyze report sample_logs/founding_case.log -o reports/founding_case.html --force

test: .venv/dev
	@$(BIN)/python -m pytest

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/dev
	$(BIN)/python -m pytest -m bench

# The generated parts of README.md, and the sample logs.
docs: .venv/dev
	$(BIN)/python docs/generate.py

samples: .venv/dev
	$(BIN)/python sample_logs/make.py

.venv/run: pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: needs Python 3.11 or later; PYTHON=... names one" >&2; exit 1; }
	@echo "making .venv" >&2
	@$(PYTHON) -m venv --clear .venv
	@$(PIP) --editable .
	@touch $@

.venv/dev: .venv/run
	@echo "adding what the tests need to .venv" >&2
	@$(PIP) --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
