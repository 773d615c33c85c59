# make demo    set up .venv, train the polynomial study, print its table and the run folder
# make test    set up .venv with the development tools and run all tests; ARGS='-m "not slow"' passes options on
# make quick   one law of every method and the oracles, in under a minute
# make lint    ruff: rules and format
# make types   mypy, strict
# make lock    write what .venv holds to constraints.txt
# make clean   remove .venv and caches
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
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
READY := $(VENV)/.ready-$(EXTRA)
DEV := $(VENV)/.ready-$(EXTRA)-dev
QUICK = $(shell grep -rlE 'mark\.quick' tests --include='test_*.py') # the others are not even collected
SOURCES := pacbayes_fl data_gen $(wildcard benchmarks/*.py)

.DEFAULT_GOAL := help
.PHONY: help demo test quick lint types lock clean

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

demo: $(READY)
	$(BIN)/pacbayes-fl run polynomial

test: $(DEV)
	$(BIN)/python -m pytest $(ARGS)

quick: $(DEV)
	$(BIN)/python -m pytest -m quick $(QUICK) $(ARGS)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy $(SOURCES)

# The local part of a version ("+cpu") names a build that other machines cannot install; a pin serves every build.
# Run it where torch is a CPU build: a CUDA build would add the pins of its own libraries.
lock: $(DEV)
	{ echo "# Versions that the tests ran with: every extra and the development tools, written by \`make lock\`."; \
	  $(BIN)/python -m pip freeze --all --exclude-editable | grep -viE '^(pip|wheel)==' | sed 's/+[^=]*$$//'; } > constraints.new
	mv constraints.new constraints.txt

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
