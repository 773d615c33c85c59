# make demo    set up .venv, train the polynomial study, print its table and the run folder
# make test    set up .venv with the development tools and run the tests: all but slow ones, and a tenth of the
#              forms of every law; ARGS='-k resume' passes options on
# make test-all
#              the same with slow tests and every form of every law; with ARGS='tests/laws' those of a folder
# make deploy-test
#              set up .venv-flower, where Flower's pins hold, and run the tests that start the processes of a deployment
# make gpu     the tests that need a CUDA device; all others are kept from it
# make quick   one law of every method and the oracles, in under a minute
# make lint    ruff: rules and format
# make types   mypy, strict
# make docs    the documentation site, in build/docs; every warning and every link that leads nowhere is an error, and
#              so is, where Chromium is installed, a page that cannot be read
# make lock    write what .venv and .venv-flower hold to constraints.txt and constraints-flower.txt
# make clean   remove .venv, .venv-flower and caches
#
# Options:     PY=python3.12           the interpreter to build .venv with (3.11 or newer)
#              EXTRA=plots             the extras to install (default: all)
#              TORCH_INDEX=https://download.pytorch.org/whl/cpu
#                                      take torch from this index: on Linux the default build of torch brings CUDA,
#                                      some gigabytes that a machine without a GPU can spare
PY ?= python3
VENV ?= .venv
EXTRA ?= all
TORCH_INDEX ?=
ARGS ?=
BIN := $(VENV)/bin
FLOWER := .venv-flower
# Byte code is written for what is imported, at its first import: to compile all that is installed takes half of the time.
INSTALL := python -m pip install -q --disable-pip-version-check --no-compile
PIP := $(BIN)/$(INSTALL)
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
READY := $(VENV)/.ready-$(EXTRA)
DEV := $(VENV)/.ready-$(EXTRA)-dev
DOCS := $(VENV)/.ready-$(EXTRA)-docs
FLOWER_READY := $(FLOWER)/.ready
QUICK = $(shell grep -rlE 'mark\.quick' tests --include='test_*.py') # the others are not even collected
GPU = $(shell grep -rlE 'mark\.gpu' tests --include='test_*.py')
# Those that take long come first, in this order: a worker of xdist takes the next file before it has finished its own.
DEPLOY = $(shell all=$$(grep -rlE 'mark\.deploy' tests --include='test_*.py' | sort); \
	grep -lE 'mark\.slow' $$all; grep -LE 'mark\.slow' $$all)
SOURCES := pacbayes_fl data_gen $(wildcard benchmarks/*.py) $(wildcard docs/*.py docs/pages/*.py)

# Tests start hundreds of processes, of which each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-all deploy-test gpu quick lint types docs lock clean

help:
	@sed -n -e '/^[^#]/q' -e 's/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

# A stamp file remembers a finished set-up, so that the second time takes seconds.
$(READY): pyproject.toml constraints.txt
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PY=python3.12 ..."; exit 1; }
	@echo "Setting up $(VENV); the first time takes a minute or more ..."
	$(PY) -m venv $(VENV)
	$(PIP) "pip>=25.1"
	$(PIP) $(INDEX) -c constraints.txt -e '.[$(EXTRA)]'
	@touch $@

$(DEV): $(READY)
	$(PIP) $(INDEX) -c constraints.txt --group dev
	@touch $@

$(DOCS): $(DEV)
	$(PIP) $(INDEX) -c constraints.txt --group docs
	@touch $@

# Flower pins protobuf and rich below the versions of constraints.txt.
$(FLOWER_READY): pyproject.toml constraints-flower.txt
	@echo "Setting up $(FLOWER); the first time takes a minute or more ..."
	$(PY) -m venv $(FLOWER)
	$(FLOWER)/bin/$(INSTALL) "pip>=25.1"
	$(FLOWER)/bin/$(INSTALL) $(INDEX) -c constraints-flower.txt -e '.[flower,plots]' --group test
	@touch $@

demo: $(READY)
	$(BIN)/pacbayes-fl run polynomial

test: $(DEV)
	$(BIN)/python -m pytest --brief $(ARGS)

test-all: $(DEV)
	$(BIN)/python -m pytest $(ARGS)

# Most of their time is waiting; the tests of a file share their processes.
deploy-test: $(FLOWER_READY)
	@$(FLOWER)/bin/python -m compileall -q pacbayes_fl # which a hundred processes read, also where none may write it
	$(FLOWER)/bin/python -m pytest -m deploy -n 3 --dist loadfile --no-loadscope-reorder $(DEPLOY) $(ARGS)

gpu: $(DEV)
	$(BIN)/python -m pytest -m gpu -n 0 $(GPU) $(ARGS)

quick: $(DEV)
	$(BIN)/python -m pytest -m quick $(QUICK) $(ARGS)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy $(SOURCES)

docs: $(DOCS)
	$(BIN)/python -m sphinx -b html -W --keep-going -n -q docs build/docs
	$(BIN)/python -m docs.links build/docs
	$(BIN)/python -m pytest -n 0 tests/pages/test_site.py
	@echo "build/docs/index.html"

# The local part of a version ("+cpu") names a build that other machines cannot install; a pin serves every build.
# Run it where torch is a CPU build: a CUDA build would add the pins of its own libraries.
FREEZE := -m pip freeze --all --exclude-editable | grep -viE '^(pip|wheel)==' | sed 's/+[^=]*$$//'
lock: $(DOCS) $(FLOWER_READY)
	{ echo "# Versions that the tests ran with: every extra, the development tools and those of the site, written by \`make lock\`."; \
	  $(BIN)/python $(FREEZE); } > constraints.new
	mv constraints.new constraints.txt
	{ echo "# Versions that the tests of deployments ran with, written by \`make lock\`."; \
	  $(FLOWER)/bin/python $(FREEZE); } > constraints-flower.new
	mv constraints-flower.new constraints-flower.txt

clean:
	rm -rf $(VENV) $(FLOWER) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
