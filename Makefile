# The two commands are `make report` and `make test`. Each makes .venv if it is missing, and
# makes it anew when pyproject.toml has changed; they need Python >= 3.11 and nothing else.
#
# Tests run with the versions of requirements-dev.txt, by their hashes: warnings are errors
# there, and a new release of a dependency must not break an old checkout. `make report` takes
# what pyproject.toml allows, as users do. After a change of pyproject.toml: `make lock`.

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: report test lint bench docs samples fuzz lock clean
.DELETE_ON_ERROR:

report: .venv/run
	@$(BIN)/loganalyze report sample_logs/founding_case.log -o reports/founding_case.html --force

test: .venv/dev
	@$(BIN)/python -m pytest --numprocesses auto --dist loadfile

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

# Each target of the fuzzer for SECONDS; the first find stops it. New inputs go to build/fuzz.
SECONDS ?= 60
fuzz: .venv/dev
	@for target in sources parser server_args report; do \
		mkdir -p build/fuzz/$$target && $(BIN)/python tests/fuzz/fuzz.py $$target \
		-max_total_time=$(SECONDS) build/fuzz/$$target || exit 1; done

# What the tests are run with: the latest releases within pyproject.toml's bounds, for every
# platform and Python, with the hashes of their files. Versions stay where they still fit;
# `make lock UPGRADE=--upgrade` takes new ones.
lock: .venv/run
	@$(PIP) 'uv>=0.8,<1'
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev \
		--generate-hashes --no-emit-package loganalyze --custom-compile-command 'make lock' \
		$(UPGRADE) --output-file requirements-dev.txt pyproject.toml

.venv/run: pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: needs Python 3.11 or later; PYTHON=... names one" >&2; exit 1; }
	@echo "making .venv" >&2
	@$(PYTHON) -m venv --clear .venv
	@$(PIP) --editable .
	@touch $@

.venv/dev: .venv/run requirements-dev.txt
	@echo "adding what the tests need to .venv" >&2
	@$(PIP) --require-hashes --requirement requirements-dev.txt
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
