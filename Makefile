PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: demo test clean

demo: $(READY)
	$(BIN)/fiss demo

test: $(READY)
	$(BIN)/ruff format --check fiss tests docs benchmarks
	$(BIN)/ruff check fiss tests docs benchmarks
	$(BIN)/mypy
	$(BIN)/python -m pytest --cov=fiss

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fiss needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .coverage build *.egg-info
