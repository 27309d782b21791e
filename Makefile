# The same commands for people and for CI. `make serve` and `make test` need Python 3.11 to 3.13 and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := -m pip install --quiet --disable-pip-version-check
PIP := $(BIN)/python $(INSTALL)
TORCH = $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) $$(grep '^torch==' $(1))
MODEL ?= gosling
ARGS ?=
# A test that hangs says where, and ends the run.
HANGS := -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true --max-worker-restart 0
DATA ?=
TORCH_INDEX_URL ?=
AGENTS ?= .agents
OLDEST ?= .oldest

.PHONY: serve test test-slow test-all test-agents test-oldest check bench bench-gpu clean

serve: $(VENV)/.installed
	$(BIN)/gander serve $(MODEL) $(ARGS)

# Tests start hundreds of processes, which would each compile our sources anew.
unexport PYTHONDONTWRITEBYTECODE

# What a change may break, in minutes: kernels are compiled first, for both of the processes that test side by side.
# `test-slow` has the rest, one test after another: soaks, tables, benchmarks, clusters.
test: $(VENV)/.installed-dev
	$(BIN)/python -m tests.kernels
	$(BIN)/python -m pytest -m "not slow" --numprocesses 2 --dist loadfile --no-loadscope-reorder $(HANGS) $(ARGS)

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow $(ARGS)

test-all: test test-slow

# Codex, Claude Code, opencode, Qwen Code and aider do a task against a scripted model. Needs npm, and 2 GB for the agents.
test-agents: $(VENV)/.installed-dev $(AGENTS)/.installed
	GANDER_AGENTS=$(abspath $(AGENTS)) $(BIN)/python -m pytest tests/agents $(ARGS)

# The engine's tests, and one of a whole server, on the oldest versions that pyproject.toml allows. They lie in 5 GB of
# their own where pip's own torch is one for CUDA.
test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m tests.kernels
	$(OLDEST)/bin/python -m pytest -m "not slow" tests/decoding tests/strangers/test_this_machine.py $(ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/hadolint Dockerfile

bench: $(VENV)/.installed-dev
	$(BIN)/gander bench real $(if $(DATA),--data $(DATA)) $(ARGS) -- $(MODEL)

bench-gpu: $(VENV)/.installed
	$(BIN)/python -m decoding.bench.gpu --model $(MODEL) $(ARGS)

# Torch comes first and pinned by itself, so that no other package can pull in a build for another device. It is most of
# what is installed: TORCH_INDEX_URL is an index of CPU builds, where pip's own has builds with CUDA alone.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or sys.exit(f"Gander needs Python 3.11 to 3.13, and {sys.executable} is %d.%d: make PYTHON=..." % v)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $(call TORCH,constraints.txt)
	$(PIP) --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	touch $@

$(OLDEST)/.installed: pyproject.toml tests/oldest.py
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m tests.oldest > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python $(INSTALL) $(call TORCH,$(OLDEST)/constraints.txt)
	$(OLDEST)/bin/python $(INSTALL) --constraint $(OLDEST)/constraints.txt --editable . httpx matplotlib openai pytest scipy triton
	touch $@

$(AGENTS)/.installed: tests/agents/package.json tests/agents/requirements.txt
	mkdir -p $(AGENTS)
	cp tests/agents/package.json $(AGENTS)
	npm install --prefix $(AGENTS) --no-audit --no-fund --silent
	$(PYTHON) -m venv $(AGENTS)/aider
	$(AGENTS)/aider/bin/python $(INSTALL) --requirement tests/agents/requirements.txt
	touch $@

clean:
	rm -rf $(VENV) $(AGENTS) $(OLDEST)
