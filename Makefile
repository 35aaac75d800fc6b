PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

CORES := $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 8 ? n : 8)))
PYTEST = $(BIN)/python -m pytest --dist loadgroup --no-loadscope-reorder

.PHONY: demo check test test-long lint docs clean

demo: $(READY)
	$(BIN)/fiss demo

check: lint
	$(PYTEST) -n $(CORES) -m "not slow and not network and not benchmark and not long"

test: lint
	$(PYTEST) -n $$(($(CORES) + 1)) -m "not long" --cov=fiss

test-long: $(READY)
	$(PYTEST) -n $(CORES) -m long

lint: $(READY)
	$(BIN)/ruff format --check fiss tests docs benchmarks
	$(BIN)/ruff check fiss tests docs benchmarks
	$(BIN)/mypy

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html"

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fiss needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .coverage build site *.egg-info
