# Each target makes the virtual environment it needs by itself.
#   make demo [KIND=lora|loha|lokr] [TASK=generate|edit]
#   make test | bench | lint | js | matrix
# Needs python3 >= 3.11 with pip and venv. Another one: make test PYTHON=python3.12
# Another build of torch: install it into .venv before anything else, or set TORCH=...

PYTHON ?= python3
TORCH ?= torch
KIND ?= lokr
TASK ?= generate
OUTPUT ?= demo_output
WORKERS ?= 2

BIN := .venv/bin
READY := .venv/.ready
CONSTRAINTS := constraints/development.txt
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint $(CONSTRAINTS)

.PHONY: demo test bench lint types js js-checks unit matrix matrix-old matrix-new

demo: $(READY)
	$(BIN)/adapter-trainer demo kind=$(KIND) task=$(TASK) output=$(OUTPUT)

test: lint types js unit

# A file's tests stay together, because they share a server or a trained adapter. Each process
# computes on one core, so that they do not wait for each other.
unit: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile

bench: $(READY)
	set -e; for file in benchmarks/*.py; do \
		name=$$(basename $$file .py); \
		$(BIN)/python -m benchmarks.$$name --output benchmarks/results/$$name.json; \
	done

# Installs the pack as a guest in two host environments and runs its tests there; -j2 runs both at
# the same time. Needs the package index.
matrix: matrix-old matrix-new

matrix-old matrix-new: matrix-%: $(READY)
	MATRIX=1 MATRIX_HOSTS=$* MATRIX_TORCH='$(TORCH)' OMP_NUM_THREADS=1 \
		$(BIN)/pytest -p no:cacheprovider tests/matrix -m matrix

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# pyright runs on node; without one it would have to download it.
types: $(READY)
	@if command -v node >/dev/null 2>&1; then \
		$(BIN)/pyright; \
	else \
		echo "pyright: skipped, there is no node on this machine"; \
	fi

# The panel in the browser: types and unit tests. The versions are those of package-lock.json.
js:
	@if command -v npm >/dev/null 2>&1; then \
		$(MAKE) --no-print-directory js-checks; \
	else \
		echo "js: skipped, no node"; \
	fi

js-checks: node_modules/.ready
	node_modules/.bin/tsc --project js
	node_modules/.bin/vitest run

node_modules/.ready: package.json package-lock.json
	npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

# torch comes first and alone, so that a build that is already there (CPU, CUDA, ROCm) stays.
$(READY): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'python 3.11 or newer is needed; set PYTHON=')"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) $(TORCH)
	$(INSTALL) --editable '.[train,tensorboard,dev]'
	@touch $@
