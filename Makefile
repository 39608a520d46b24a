# Everything a person types. Only Python 3.11+ and make are needed before the first of these.
PYTHON ?= python3
# Of `make ui`.
PORT ?= 5000
VENV := .venv
BIN := $(VENV)/bin
ENGINE_PYTHON ?= .venv-engine/bin/python

.PHONY: run test test-engine ui engine-cpu lint bench-client bench-decide bench-nodes bench-overhead bench-tracking chaos load

run: $(VENV)/.installed
	$(BIN)/python -m runner +experiment=overlap_grid protocol=quick

test: $(VENV)/.installed lint
	$(BIN)/python -m pytest -m "not engine and not cluster" -n 2 --dist loadfile --no-loadscope-reorder --durations=25 tests

lint: $(VENV)/.installed
	$(BIN)/ruff check runner tests
	$(BIN)/ruff format --check runner tests
	$(BIN)/mypy

test-engine: $(VENV)/.installed engine-cpu
	ENGINE_PYTHON=$(abspath $(ENGINE_PYTHON)) $(BIN)/python -m pytest -m "engine or cluster" -rs --durations=10 tests

ui: $(VENV)/.installed
	MLFLOW_DISABLE_TELEMETRY=true MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false \
	$(BIN)/mlflow ui --host 127.0.0.1 --port $(PORT) --workers 1 --backend-store-uri sqlite:///$(CURDIR)/mlruns/mlflow.db

# The real SGLang on a machine without a GPU, in an environment of its own (about 3 GB).
engine-cpu: .venv-engine/.installed

.venv-engine/.installed: tests/engine/engine-cpu-requirements.txt
	$(PYTHON) -m venv .venv-engine
	.venv-engine/bin/python -m pip install --quiet --no-deps --no-cache-dir -r $<
	touch $@

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

bench-client: $(VENV)/.installed
	$(BIN)/python -m tests.bench.client_bench

bench-decide: $(VENV)/.installed
	$(BIN)/python -m tests.bench.decide_bench

bench-overhead: $(VENV)/.installed
	$(BIN)/python -m tests.bench.overhead_bench

bench-nodes: $(VENV)/.installed
	$(BIN)/python -m tests.bench.nodes_bench

bench-tracking: $(VENV)/.installed
	$(BIN)/python -m tests.bench.tracking_bench

chaos: $(VENV)/.installed
	$(BIN)/python -m tests.bench.chaos

load: $(VENV)/.installed
	$(BIN)/python -m tests.bench.load_held
