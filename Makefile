# Every target makes the virtual environment it needs; a change of pyproject.toml or constraints.txt renews it.
PYTHON ?= python3
BIN := .venv/bin
# The constraints also bind what builds the package, so that an install is the same every time.
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install

.PHONY: demo test test-nnunet wheel test-wheel check bench docs format fuzz clean help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13

demo: .venv/base  ## install, then the main job on built-in data: seven methods to demo/report.html (minutes)
	@echo "== demo: phantoms -> seven methods -> demo/report.html =="
	$(BIN)/segcal demo --out demo

test: .venv/dev  ## install what is missing and run every test
	@echo "== tests =="
	PYTHONUTF8=1 $(BIN)/python -m pytest -n auto --dist loadfile

test-nnunet: .venv/dev .venv-nnunet/made  ## the same for the real nnU-Net, in an environment of its own (minutes)
	@echo "== tests with nnU-Net =="
	.venv-nnunet/bin/python -m pytest tests/nnunet

wheel: .venv/base  ## build dist/segcal-*.whl, to install anywhere
	rm -rf dist
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip wheel -q --no-deps -w dist .

test-wheel: .venv/dev wheel  ## install the wheel into an empty environment and run the short demo there (minutes)
	@echo "== tests of the wheel =="
	SEGCAL_WHEEL="$$(ls dist/*.whl)" $(BIN)/python -m pytest tests/wheel

check: .venv/dev  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/dev  ## put the style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/bench  ## measure against the peers (about 10 minutes) and renew docs/performance.md
	$(BIN)/python -m benchmarks

docs: .venv/dev  ## build the documentation into site/
	$(BIN)/python docs/make_cli_reference.py
	$(BIN)/python results/hippocampus/make_page.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

fuzz: .venv/dev  ## try N damaged and hostile inputs (make fuzz N=20000)
	SEGCAL_FUZZ=$(or $(N),20000) $(BIN)/python -m pytest -q tests/robustness

clean:  ## remove the virtual environment and caches
	rm -rf .venv .venv-nnunet dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/base .venv/dev .venv/bench: .venv/%: pyproject.toml constraints.txt
	@echo "== setting up .venv ($*) =="
	@$(PYTHON) -c 'import sys; sys.exit("constraints.txt needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e '.$(if $(filter base,$*),,[$*])'
	@touch $@

.venv-nnunet/made: pyproject.toml tests/nnunet/requirements.txt
	@echo "== setting up .venv-nnunet =="
	test -x .venv-nnunet/bin/python || $(PYTHON) -m venv .venv-nnunet
	.venv-nnunet/bin/python -m pip install --no-deps -r tests/nnunet/requirements.txt
	PIP_CONSTRAINT=constraints.txt .venv-nnunet/bin/python -m pip install --no-deps -e .
	@touch $@
