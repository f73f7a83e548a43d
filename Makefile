# Everything runs in .venv, which `make setup` makes and the other targets ask for. `make help` lists them.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo model browser check test test-all test-isa test-clients sanitize lint wheel clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY) ## Make the environment in .venv (again when pyproject.toml or C code changes)

$(READY): pyproject.toml setup.py $(wildcard src/outrider/*/native/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit("Outrider needs Python 3.11 or newer; try make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@echo "==> Making the environment in .venv"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "==> Installing PyTorch (the large one)"
	@$(BIN)/python -m pip install --disable-pip-version-check "torch==2.13.0"
	@echo "==> Installing Outrider and its tools"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@$(BIN)/python -m compileall -q src/outrider  # as installing does, but for a checkout
	@touch $@
	@echo "==> Ready: $(BIN)/outrider --help"

demo: setup ## Edit a function speculatively, in colour, then plainly, and compare
	@$(BIN)/python examples/demo.py

model: setup ## Fetch the default model (93 MB)
	@$(BIN)/outrider models pull smollm2-135m

browser: setup ## A browser for the playground's tests, where there is none
	@$(BIN)/python tests/support/browser.py

check: lint ## The linters and the tests that need no model: within a minute
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile -p no:schemathesis -m "not slow and not long" tests/unit

test: setup model browser ## The fast tests
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "not slow"

test-all: setup model browser ## Every test at its full size, the long equality runs too
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder --full

test-isa: setup ## Matrix products and passes on every instruction set this machine has or can emulate
	@$(BIN)/python tests/isa/run.py

sanitize: setup ## The C code under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer
	@$(BIN)/python tests/isa/sanitize.py

test-clients: setup model ## Clients that people have against a live server, in an environment of their own
	@$(BIN)/python tests/clients/run.py

lint: setup ## Style, types and the layer contract
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

wheel: ## sdist and wheel of a release in dist/ (docs/releasing.md); FOR=x86_64 CC=… crosses over
	@$(PYTHON) tools/release.py $(if $(FOR),--for $(FOR))

clean: ## Remove the environment and what the tools left
	@rm -rf .venv .venv-clients .venv-release build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
