# The same commands for people and for CI. `make serve` and `make test` need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
MODEL ?= gosling
ARGS ?=
DATA ?=

.PHONY: serve test check bench clean

serve: $(VENV)/.installed
	$(BIN)/gander serve $(MODEL) $(ARGS)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/hadolint Dockerfile

bench: $(VENV)/.installed-dev
	$(BIN)/python -m decoding.bench $(if $(DATA),--data $(DATA)) $(ARGS)

# Torch comes first and pinned by itself, so that no other package can pull in a build for another device.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $$(grep '^torch==' constraints.txt)
	$(PIP) --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
