# The front door. Every verb makes the environment that it needs:
#   make demo    ask the embedded model five kinds of things
#   make test    format, lint, types, contracts, default suite (CPU)
#   make aot     compile every GPU kernel for SM90 and SM100, without a GPU (needs Linux); lower
#                TileLang kernels for Ascend, too, and execute them as C
#   make golden  the tests that read the golden checkpoints (DEEPINFER_GOLDEN)
#   make format  rewrite the files in the house style

SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# Hypothesis profile: dev (50 examples), ci (500, derandomised), soak.
PROFILE ?= dev
# Processes of the default suite; each computes on one thread.
WORKERS ?= 2
BIN := .venv/bin

.PHONY: demo test aot golden format clean

demo: .venv/stamp
	$(BIN)/python examples/demo.py

test: .venv/stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/pytest --hypothesis-profile=$(PROFILE) -n $(WORKERS) --dist loadfile

aot: .venv/stamp
	$(BIN)/pip install --quiet -c constraints.txt -e ".[aot]"
	$(BIN)/python -m deepinfer.bench.aot
	$(BIN)/python -m deepinfer.bench.aot_tilelang
	$(BIN)/pytest tests/engine/test_step_memory.py $(addprefix tests/ops/test_, aot.py \
		aot_tilelang.py attention_launches.py boundary_plan.py draft_kernels.py index_kernels.py \
		portable_kernels.py portable_linears.py stream_kernels.py tilelang_kernels.py \
		tilelang_refusals.py)

golden: .venv/stamp
	$(BIN)/pytest -m golden

format: .venv/stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build *.egg-info answers.jsonl

.venv/stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@
