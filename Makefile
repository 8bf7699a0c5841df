# `make` lists the verbs.
PYTHON ?= python
SANITIZE ?= address,undefined
TESTS ?= tests
KIT ?= build/gpu-kit
OUT ?= build/gpu-results
ARCH ?= 90
PYTHONS ?= 3.12
MACHINE ?= $(shell uname -m)
BACKEND ?= cuda
BUDGET ?= 540
PYODIDE ?= 314.0.7
AXE ?= 4.14.1

.PHONY: help build test all lint format oracle sanitize schema docs site pyodide serve wheel wheels wheel-pure gpu-kit gpu-run gpu-results
help:           ## list these verbs
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 12

build:          ## build ggml and the bindings into the tree, refresh the generated files
	@folder=$$($(PYTHON) build_ggml.py | tail -n 1) && cp "$$folder/enums.py" ggml_py/builds/default_enums.py && cp "$$folder/ops.py" ggml_py/graphs/ && echo "$$folder"

test:           ## the quick tests, which build nothing
	$(PYTHON) -m pytest

all:            ## all tests: upstream's programs as oracles, other builds, searches for faults
	$(PYTHON) -m pytest --all

lint:           ## ruff and mypy
	$(PYTHON) -m ruff check . && $(PYTHON) -m mypy

format:         ## format the package
	$(PYTHON) -m ruff format ggml_py

oracle:         ## build upstream's own programs
	$(PYTHON) build_ggml.py --reference

sanitize:       ## the quick tests on a build with sanitizers; SANITIZE=address,undefined TESTS=tests
	@$(PYTHON) benchmarks/sanitize.py --sanitize $(SANITIZE) $(TESTS)

schema:         ## refresh docs/plan.schema.json and docs/run.schema.json
	@$(PYTHON) tests/support/doc_schemas.py

docs:           ## refresh the tables of docs/ and what its examples print
	@$(PYTHON) tests/support/kernel_table.py
	@$(PYTHON) tests/house/record_tables.py
	@$(PYTHON) -m tests.support.verb_pages
	@$(PYTHON) tests/support/doc_pages.py
	@$(PYTHON) -m tests.house.test_docs_pytest

site:           ## the documentation site in site/
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build && echo site/index.html

pyodide:        ## Python for browsers (docs/open needs it) and axe (tests of pages need it), from npm
	npm install --no-save --no-package-lock --no-audit --no-fund pyodide@$(PYODIDE) axe-core@$(AXE)

serve:          ## the site on http://127.0.0.1:8000, built again when a page changes
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs serve

wheel:          ## a wheel for this machine in dist/
	$(PYTHON) -m pip wheel . --no-deps -w dist

wheels:         ## a wheel for other machines, and the sdist, in dist/; MACHINE=x86_64,aarch64
	$(PYTHON) -m vendor.wheels --machine $(MACHINE) --out dist

wheel-pure:     ## a wheel without native code in dist/, which reads plans, records and logs anywhere
	$(PYTHON) -m pip wheel . --no-deps -w dist --config-settings pure=true

gpu-kit:        ## a kit for a machine with a GPU; ARCH=90 PYTHONS=3.12 BACKEND=cuda (none: a dry run)
	@$(PYTHON) benchmarks/gpu/make_kit.py --out $(KIT) --arch $(ARCH) --pythons "$(PYTHONS)" --backend $(BACKEND) $(KITFLAGS)

gpu-run:        ## run the kit there, without a network; OUT=DIR PART=a,b BUDGET=540 (again: AGAIN=1)
	@python3 $(KIT)/gpu/run_kit.py --kit $(KIT) --out $(OUT) --part "$(PART)" --budget $(BUDGET) $(if $(AGAIN),--again)

gpu-results:    ## keep what a run brought back in OUT=DIR, and show it in docs/GPU.md
	@$(PYTHON) benchmarks/gpu/results_page.py --take $(OUT)
