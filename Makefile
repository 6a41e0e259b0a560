# What you can do here:  make demo | test | sweep | lab | lint | bench | clean
# Tests of one kind: make test PYTEST_ARGS='-m "not slow"'
# The first use makes a virtual environment in .venv and installs into it. Another Python: make demo PYTHON=python3.12

PYTHON ?= python3
WORKERS ?= 2
PYTEST_ARGS ?=
# `always`: JavaScript that cannot be linted has failed
LINT_JS ?= where-possible

VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.installed-demo
ALL := $(VENV)/.installed-all
SWEEP := $(VENV)/.installed-sweep
SWEEP_ARGS ?=
HAS_NODE := { command -v npm && node -e 'const [a, b] = process.versions.node.split("."); process.exit(a < 18 || (a == 18 && b < 18) ? 1 : 0)'; } >/dev/null 2>&1
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable

.PHONY: help demo test sweep lab lint lint-js bench clean
.DELETE_ON_ERROR:

help:
	@sed -n '1s/^# //p' Makefile

demo: $(DEMO)
	$(BIN)/cabw-viz demo

test: $(ALL)
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(PYTEST_ARGS)

# Every operator and module of PyTorch's own databases, real models, and training stacks: takes about half an hour.
sweep: $(SWEEP)
	$(BIN)/python -m tests.sweeps --workers $(WORKERS) $(SWEEP_ARGS)
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal -m models --deselect tests/test_sweeps.py

lab: $(ALL)
	$(BIN)/jupyter lab notebooks

lint: $(ALL)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if test "$(LINT_JS)" = always || $(HAS_NODE); then $(MAKE) --no-print-directory lint-js; \
	else echo "JavaScript was not linted: that needs npm, and Node 18.18 or newer. Try: apt-get install nodejs npm"; fi

lint-js: node_modules/.installed
	npm run --silent lint

bench: $(ALL)
	@set -e; for file in benchmarks/bench_*.py; do \
	  test -e "$$file" || { echo "benchmarks/ holds no bench_*.py"; exit 1; }; \
	  echo "== $$file"; $(BIN)/python "$$file"; \
	done

clean:
	rm -rf $(VENV) node_modules reports cabw-viz-demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(DEMO): pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) '.[examples]'
	@touch $@

$(SWEEP): pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) '.[examples,test,dev,lab,models]'
	@touch $(DEMO) $(ALL) $@

$(ALL): pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) '.[examples,test,dev,lab]'
	@touch $(DEMO) $@

# Without a lock file: that would name the registry from which this machine installs. package.json has the versions.
node_modules/.installed: package.json
	npm install --no-package-lock --no-audit --no-fund --silent
	@touch $@

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 10) and "cabw_viz needs Python 3.10 or newer, and $(PYTHON) is %d.%d. Try: make $(or $(MAKECMDGOALS),demo) PYTHON=python3.12" % v[:2])'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "'$(PYTHON) -m venv' failed. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
