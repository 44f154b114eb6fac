# Two commands do everything from a clean clone: `make demo` and `make test`. Python 3.11 or later and pip are enough.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PYTEST := $(BIN)/python -m pytest -q $(if $(THOROUGH),--thorough)
unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of interpreters, which need not compile everything anew

.PHONY: demo test laboratory tests-side-by-side tests-that-failed check lint types imports unit conformance bench format release clean

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "zooid needs Python 3.11 or later: make PYTHON=python3.11 …")'
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling editables
	sed '$(if $(TORCH),s/^torch==.*/torch==$(TORCH)/)' constraints.txt > .venv/constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c .venv/constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

demo: $(INSTALLED)  ## train digits on 2 replicas × 2 stages through object storage, then test the checkpoint
	rm -rf runs/demo
	$(BIN)/zooid train examples/digits.py --layout 2x2 --on local:aws.lambda.1769 --store "file://$(CURDIR)/runs/demo"
	$(BIN)/python examples/digits.py "file://$(CURDIR)/runs/demo"

test: laboratory $(INSTALLED)  ## lint, types, import directions and tests; THOROUGH=1 for every variant of them
	$(MAKE) --no-print-directory --jobs 2 lint imports
	$(MAKE) --no-print-directory --jobs 2 types tests-side-by-side
	$(PYTEST) -m alone

laboratory:  ## the programs that tests on several machines need, where they can be installed
	@sh lab/machines/install.sh

tests-side-by-side: $(INSTALLED)
	$(PYTEST) -m 'not alone' --numprocesses 3 --no-loadscope-reorder || { test $$? = 1 && $(MAKE) --no-print-directory tests-that-failed; }

tests-that-failed: $(INSTALLED)  ## once more and alone, since a test beside others may run out of time; what fails twice has failed
	@echo "these tests failed beside others, as printed above; they are tried once more, alone"
	$(PYTEST) --last-failed --last-failed-no-failures none -rpfE --no-header

check: $(INSTALLED)  ## lint, types, import directions and unit tests, in under two minutes
	$(MAKE) --no-print-directory lint types imports unit

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

imports: $(INSTALLED)
	$(BIN)/lint-imports

unit: $(INSTALLED)
	$(BIN)/python -m pytest -q tests/unit

conformance: $(INSTALLED)  ## PyTorch's own suite of a backend on Gloo and on zooid, over files and over TCP, with 2 and 3 ranks
	$(BIN)/python -m tests.conformance

bench: $(INSTALLED)  ## every benchmark, each ending in one line of JSON; QUICK=1 for the short form
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick)

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

release: $(INSTALLED)  ## the wheel and the source archive in dist/, as CONTRIBUTING.md describes
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist

clean:
	rm -rf .venv .venv-skypilot runs dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
