# Every target installs its requirements into .venv; only Python 3.11.4 or newer is needed.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed
FAST := $(addprefix tests/,attention checkpoints cli composer metrics midi models position tokenization)
# Some machines tell Python not to keep compiled modules. Every process would then compile the package again.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
BENCHMARKS := training_step causal_product performer_pytorch decoding decoding_engines lrpe span \
  copy_head exact_spe loader muon spe_gradients
.PHONY: help setup demo test test-fast test-plugins test-triton coverage export page pretrained table bench bench-quick docs check-docs lint clean

help: ## Print this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 12

$(STAMP): pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11, 4) else "Python 3.11.4 or newer is needed, not %d.%d.%d; set PYTHON=" % v[:3])'
	@echo "Creating $(VENV) with 2 GB of packages, or 6 GB where pip takes torch with NVIDIA's libraries"
	@$(PYTHON) -m venv $(VENV)
	@$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	@touch $(STAMP)

setup: $(STAMP) ## Create .venv with everything for use and development

demo: $(STAMP) ## Train for two minutes; hear it, songs-small and the originals on one page
	$(RUN) train.py experiment=demo
	rm -rf evaluated/demo
	$(RUN) evaluate.py latest metric.evaluation.baseline=songs-small out=evaluated/demo

test: $(STAMP) ## Run the tests
	$(RUN) -m pytest --numprocesses=auto --dist=worksteal

test-fast: $(STAMP) ## Run the quick tests only, for daily work
	$(RUN) -m pytest --numprocesses=auto --dist=worksteal -m "not slow" $(FAST)

test-plugins: $(STAMP) ## Run the quick tests without the plugins, in a copy
	.ci/without_plugins $(FAST)

test-triton: $(VENV)/triton/.installed ## Check our kernels and flash-linear-attention's on a CPU, by Triton's interpreter
	PYTHONPATH=$(VENV)/triton TRITON_INTERPRET=1 $(RUN) -m pytest tests/attention/test_fused.py tests/attention/test_fla.py

$(VENV)/triton/.installed: Makefile $(STAMP)
	$(RUN) -m pip install --quiet --no-deps --upgrade --target $(@D) flash-linear-attention==0.6.0 fla-core==0.6.0 triton==3.9.0
	@touch $@

coverage: $(STAMP) ## Run the tests, and print which lines of the package they reach
	$(RUN) -m pytest --numprocesses=auto --dist=worksteal --cov=musicgen --cov-report=term:skip-covered

export: $(STAMP) ## Write a run as a folder to publish: make export FROM=outputs/... TO=folder [FORMAT=onnx]
	$(RUN) -m musicgen.pretrained "$(or $(FROM),latest)" "$(or $(TO),$(error give TO=FOLDER))" \
	  $(addprefix --format ,$(FORMAT))

page: $(STAMP) ## Write a run as one HTML file that composes: make page FROM=outputs/... TO=song.html
	$(RUN) -m musicgen.pretrained --format page "$(or $(FROM),latest)" "$(or $(TO),$(error give TO=song.html))"

pretrained: $(STAMP) ## Train, export and measure groove-small (hours): make pretrained BANDS=folder of bands by others
	$(RUN) -m benchmarks.pretrained --bands "$(or $(BANDS),$(error give BANDS=FOLDER))"
	$(RUN) -m benchmarks.tables

table: $(STAMP) ## Print published figures and those of your runs: make table PAPER=spe2021 (lrpe2023, alfons2022)
	$(RUN) -m benchmarks.published $(or $(PAPER),$(error give PAPER=spe2021, lrpe2023 or alfons2022))

bench: $(STAMP) ## Measure speed and memory; write benchmarks/results/ and the tables of the pages
	for name in $(BENCHMARKS); do $(RUN) -m benchmarks.$$name || exit 1; done
	$(RUN) -m benchmarks.tables

bench-quick: $(STAMP) ## Compare the speed of six parts with the recorded one, in a minute
	$(RUN) -m benchmarks.quick

docs: $(STAMP) ## Build the pages of docs/ with a reference of every setting: docs/_build/html
	$(RUN) -m sphinx -q -W --keep-going docs docs/_build/html

check-docs: $(STAMP) ## Run the commands of the pages, and compare printed figures with the results
	$(RUN) -m docs.check

lint: $(STAMP) ## Check style and types
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

clean: ## Remove .venv and caches; keeps runs, generated music and data
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build *.egg-info
