# `make demo` and `make test` set up all they need in .venv, on a machine with Python 3.11 or newer.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$p && break; done)
BIN := .venv/bin
# More than two cores: a third of the tests' time is waiting for processes that they started.
TEST_WORKERS ?= 3

.PHONY: demo test check bench soak lock clean

.venv/.ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { \
		echo "Esker needs Python 3.11 or newer; name one with make PYTHON=/path/to/python3"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --upgrade --constraint constraints.txt pip
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --constraint constraints.txt \
		--editable . --group dev
	@touch $@

demo: .venv/.ready
	@$(BIN)/python -m examples.demo

test: .venv/.ready
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist worksteal -m "not soak"

check: .venv/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py

bench: .venv/.ready
	@for b in bench/bench_*.py; do echo "== $$b"; \
		$(BIN)/python -m bench.$$(basename $$b .py) || exit 1; done

# The long tests once, then fresh schedules of the simulation until told to stop.
soak: .venv/.ready
	$(BIN)/python -m pytest -m soak -n $(TEST_WORKERS)
	ESKER_EXAMPLES=20 $(BIN)/python -m pytest tests/records -n $(TEST_WORKERS)
	$(BIN)/python -m tests.simulation --soak

# Newest versions within pyproject.toml's ranges, written to constraints.txt.
lock:
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/python -m pip install --quiet --upgrade pip
	.venv-lock/bin/python -m pip install --quiet --editable . --group dev
	{ head -n 1 constraints.txt; .venv-lock/bin/python -m pip freeze --all --exclude esker --exclude setuptools; } > constraints.new
	mv constraints.new constraints.txt
	rm -rf .venv-lock

clean:
	rm -rf .venv .cache
