# Each target sets itself up: the first call makes a virtual environment, later calls reuse it.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test test-all mutants fuzz sbom lint format bench docs clean browser

demo: $(READY)
	$(BIN)/sparsedp demo --out demo

# Each process has a core: threads of torch's would be in each other's way. Neighbouring tests share fixtures.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

test: $(READY) browser
	$(PYTEST) -m "not slow"

test-all: $(READY) browser
	$(PYTEST)

# Do the tests notice? A tenth of the list: make mutants SHARE=1/10
SHARE ?= 1/1
mutants: $(READY)
	$(BIN)/python scripts/mutants.py --share $(SHARE) --workers 2

# Mutated inputs to everything that reads a file or an option: make fuzz INPUTS=1000
INPUTS ?= 100000
fuzz: $(READY)
	$(BIN)/python scripts/fuzz.py --inputs $(INPUTS)

# What is installed, under which licences: docs/dependencies.md and sbom.json
sbom: $(READY)
	$(BIN)/python scripts/sbom.py

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_structure.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/sparsedp bench

docs: $(READY)
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# torch comes first and alone: asked for by another package, pip would choose a CUDA build.
$(READY): pyproject.toml constraints.txt
	command -v $(PYTHON) >/dev/null 2>&1 && $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

# The report is tested in a real browser. Where none can be installed, those tests say so and are skipped.
browser:
	@command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 && \
	    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium >/dev/null; } || \
	  echo "no Chromium here and none could be installed: the browser tests will be skipped"
