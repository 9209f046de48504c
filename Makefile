# Each target makes the virtual environment it needs by itself.
#   make demo [KIND=lora|loha|lokr] [TASK=generate|edit|own]
#   make test | test-full | bench | lint | js | matrix | mutations
#   make generated, after a setting, an input of a node or a translation has changed
#   make gpu-wheels, and where a GPU is: make gpu; without one: make pretend-gpu
# Needs python3 >= 3.11 with pip and venv. Another one: make test PYTHON=python3.12
# Another build of torch: install it into .venv before anything else, or set TORCH=...

PYTHON ?= python3
TORCH ?= torch
KIND ?= lokr
TASK ?= generate
OUTPUT ?= demo_output
WORKERS ?= 2
THREADS ?= 1

# Processes of the tests read the bytecode that the first of them wrote, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
READY := .venv/.ready
CONSTRAINTS := constraints/development.txt
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint $(CONSTRAINTS)

PYTEST := OMP_NUM_THREADS=$(THREADS) $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder \
	--durations 15 --durations-min 3 --quiet --progress
FIRST := tests/unit/config tests/unit/test_mutations.py
RESULTS := benchmarks/results

# What is measured where a GPU is: the version of Python there, and what its image may lack.
GPU_PYTHON ?= 3.12
GPU_OUTPUT ?= build/gpu
BUDGET ?= 480
GPU_WHEELS := build/gpu_wheels
GPU_PACKAGES := diffusers peft accelerate psutil PyYAML safetensors pydantic pydantic_core annotated-types \
	typing-inspection typing_extensions importlib_metadata zipp gguf pytest pluggy iniconfig filelock \
	requests urllib3 idna certifi charset-normalizer
GPU_PLATFORMS := manylinux_2_28_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64

# A part of the tests in `make test-full`: FILES="tests/unit/data/test_masks.py ...".
FILES ?=

.PHONY: said packages demo playground test test-full test-seconds generated bench bench-learning gpu gpu-wheels pretend-gpu mutations lint first types js js-checks unit \
	matrix matrix-old matrix-new guest-old guest-new

demo: $(READY)
	$(BIN)/adapter-trainer demo kind=$(KIND) task=$(TASK) output=$(OUTPUT)

# First what takes one core each: pyright, and beside it a quick folder with the panel's checks.
test: said lint
	@$(MAKE) --no-print-directory -j2 types first
	@$(MAKE) --no-print-directory unit

said:
	@echo "make test: ruff, pyright, the panel's checks and the tests. About 10 minutes on two cores, less without"
	@echo "a ComfyUI; a minute more where .venv is made. A test that fails is shown at once."

# The first result is there in seconds.
first: $(READY) packages
	MARKER_REPORT= $(BIN)/pytest --quiet --progress $(FIRST)
	@$(MAKE) --no-print-directory js

# A file's tests stay together, because they share a server or a trained adapter. Each process
# computes on one core, so that they do not wait for each other.
unit: $(READY) packages
	$(PYTEST) -m "not exhaustive" $(addprefix --ignore ,$(FIRST))

# What `make test` leaves out: full tables of cases, of which it runs at least one each.
test-full: $(READY) packages
	$(PYTEST) -m exhaustive $(FILES)

# How long each file takes, by which the tests are ordered; on a quiet machine, now and then.
test-seconds: $(READY) packages
	$(PYTEST) --write-seconds

# The nodes' help pages, workflows and locale files again, after a setting, an input or a translation has changed.
generated: $(READY)
	PYTHONPATH=.:tests $(BIN)/python -m scripts.build_generated

# A base of 256 pixels, which is trained on from the embedded one: an hour of one core.
playground: $(READY)
	$(BIN)/python -m scripts.build_embedded_base playground --folder build/playground/base --work build/playground

# What the defaults learn and keep, and what they do on a base in fewer bits; forty minutes of one
# core.
bench-learning: $(READY)
	$(BIN)/python -m benchmarks.own_images --without --output $(RESULTS)/own_images.json
	$(BIN)/python -m benchmarks.base_formats --output $(RESULTS)/base_formats.json
	$(BIN)/python -m benchmarks.presets --output $(RESULTS)/presets.json

# Times are worth something on a machine that does nothing else. The last step writes the tables
# of docs again from the files.
bench: $(READY)
	$(BIN)/python -m benchmarks.step_time --output $(RESULTS)/step_time.json
	$(BIN)/python -m benchmarks.host_work --output $(RESULTS)/host_work.json
	$(BIN)/python -m benchmarks.layers --output $(RESULTS)/layers.json
	$(BIN)/python -m benchmarks.loop_work --output $(RESULTS)/loop_work.json
	$(BIN)/python -m benchmarks.optimizer_step --output $(RESULTS)/optimizer_step.json
	$(BIN)/python -m benchmarks.calibration --output $(RESULTS)/calibration.json
	$(BIN)/python -m benchmarks.file_operations --output $(RESULTS)/file_operations.json
	$(BIN)/python -m benchmarks.dataset_scan --output $(RESULTS)/dataset_scan.json
	$(BIN)/python -m benchmarks.dataset_cache --output $(RESULTS)/dataset_cache.json
	BENCHMARK_RESULTS=$(RESULTS) $(BIN)/pytest -q tests/comfyui/test_panel_cost.py
	$(BIN)/python -m benchmarks.write_tables

# The GPU campaign, on the Python that has torch for the GPU. Call it until it says that it is done.
gpu:
	$(PYTHON) -m benchmarks.gpu_campaign --output $(GPU_OUTPUT) --budget $(BUDGET)

# All of it, the tests of GPUs, and ComfyUI without --cpu, on CUDA devices that are pretended on the CPU. The first time
# a minute of g++.
PRETEND_COMFY := $(patsubst %,tests/comfyui/test_%.py,device_memory graph_memory graph_cancel graph_model \
	embedded_sampling base_from_model graph_weights)
PRETEND := $(BIN)/python -m tests.fixtures.pretend_cuda.run -m
pretend-gpu: $(READY)
	OMP_NUM_THREADS=1 $(PRETEND) pytest --numprocesses $(WORKERS) --dist loadfile -q -m gpu tests/gpu
	OMP_NUM_THREADS=1 $(PRETEND) pytest --numprocesses $(WORKERS) --dist loadfile -q $(PRETEND_COMFY)
	OMP_NUM_THREADS=1 $(PRETEND) benchmarks.gpu_campaign --device cuda --size tiny --output build/pretend_gpu

# What it needs there and may not find: wheels, ComfyUI's training adapters, and which commit this is.
# The trainer itself is the checkout.
gpu-wheels: $(READY)
	rm -rf $(GPU_WHEELS)
	$(BIN)/python -m pip download --disable-pip-version-check --quiet --no-deps --only-binary :all: \
		--constraint $(CONSTRAINTS) --implementation cp --python-version $(GPU_PYTHON) \
		$(addprefix --platform ,$(GPU_PLATFORMS)) --dest $(GPU_WHEELS) $(GPU_PACKAGES)
	git rev-parse HEAD > $(GPU_WHEELS)/commit.txt
	@comfy="$${COMFYUI_PATH:-$$HOME/ComfyUI}/comfy/weight_adapter"; \
	if [ -d "$$comfy" ]; then \
		mkdir -p $(GPU_WHEELS)/ComfyUI/comfy/weight_adapter && \
		cp "$$comfy"/*.py $(GPU_WHEELS)/ComfyUI/comfy/weight_adapter; \
	else \
		echo "gpu-wheels: no ComfyUI to compare layers with"; \
	fi
	@du -sh $(GPU_WHEELS)

# Installs the pack as a guest in two host environments and runs its tests there; -j2 runs both at
# the same time. Needs the package index.
matrix: matrix-old matrix-new
	$(BIN)/python .ci/tier.py proven

MATRIX_PYTEST = MATRIX=1 MATRIX_HOSTS=$* MATRIX_TORCH='$(TORCH)' OMP_NUM_THREADS=1 \
	$(BIN)/pytest -p no:cacheprovider -o faulthandler_timeout=0 tests/matrix -m matrix

matrix-old matrix-new: matrix-%: $(READY)
	$(MATRIX_PYTEST)

# The pack's installation in one of them and its imports there, without its tests.
guest-old guest-new: guest-%: $(READY)
	$(MATRIX_PYTEST) -k "not packs_tests and not uv"

# Bugs by hand, one after another, and whether the tests that are named for each notice it.
mutations: $(READY)
	$(BIN)/python -m tests.mutations.run

lint: $(READY)
	$(BIN)/ruff check --no-cache .
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

# The tests in a browser need them as well.
packages:
	@if command -v npm >/dev/null 2>&1; then $(MAKE) --no-print-directory node_modules/.ready; fi

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
