# `make demo` and `make test` set everything up in .venv first; only when pyproject.toml or constraints.txt changed.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SHAPE_CHECKS := --jaxtyping-packages=nvs,data,shape_checks.check

.PHONY: demo demo-model demo-model-gpu test test-fast fuzz viewer-speed lint format setup clean

demo: setup
	$(BIN)/nvs demo --overwrite

# The recipe of the shipped model, about 150 minutes on two cores; MESHES=folder adds objects to procedural scenes. A
# second call goes on where the first was stopped.
demo-model: setup
	$(BIN)/python -m apps.demo_model $(if $(MESHES),--meshes "$(MESHES)") $(DEMO_ARGS)

# A larger model for 128x128 pixels: minutes on one GPU, beside the time that its data takes.
demo-model-gpu: setup
	$(BIN)/python -m apps.demo_model --gpu $(if $(MESHES),--meshes "$(MESHES)") $(DEMO_ARGS)

test: lint
	$(BIN)/python -m pytest $(SHAPE_CHECKS) $(PYTEST_ARGS)

test-fast: setup
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

# 500 damaged inputs per capture or mesh format, each format within 1 GiB and each input within 5 s.
fuzz: setup
	$(BIN)/python tests/fuzz/formats.py --inputs $(or $(INPUTS),500)

# How soon pictures follow the pointer in a headless Chromium, and what long use costs.
viewer-speed: setup
	$(BIN)/python tests/browser/measure_viewer.py

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) > /dev/null || { echo "$(PYTHON) was not found: install Python 3.11 or newer."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is older than 3.11: name a newer one, for example make PYTHON=python3.12 $(MAKECMDGOALS)."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { \
		echo "$(PYTHON) cannot make virtual environments: install python3-venv (on Debian: apt install python3-venv)."; exit 1; }
	@echo "Setting up $(VENV) (once; about 4 GB, a minute or two)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $(READY)

clean:
	rm -rf $(VENV) build dist out *.egg-info
