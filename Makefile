## make train   train LeNet-5 on real handwritten digits   DATA=dir with MNIST's files, ARGS="--epochs 5 ..."
## make test    run the tests                              ARGS="-k scan ...", WORKERS=2
## make bench   run the benchmarks                         ARGS
## make lint    check format, style and types, and compile every kernel by bare nvcc where there is one
## make types   check types by pyright, too
## make docs    build the site, build/site/index.html
## make format  put format and style right
## make build   only build
## make clean   remove what was built, but not the environment
##
## Each makes what it needs first: an environment in .venv with pinned packages (TORCH=2.13.0), and the build in place.
## With PYTHON=python3 VENV= the packages of that interpreter are used as they are.

SHELL := bash
.SHELLFLAGS := -o pipefail -ec
.DELETE_ON_ERROR:
.PHONY: help train test bench lint style mypy types docs format build clean machine nvcc

PYTHON ?= python3
VENV ?= .venv
TORCH ?= 2.13.0
WORKERS ?= 2
export MAX_JOBS ?= $(shell nproc)

help:
	@sed -n 's/^## \?//p' Makefile

# ---- the machine and the environment

bin := $(if $(VENV),$(VENV)/bin/)
py := $(if $(VENV),$(VENV)/bin/python,$(PYTHON))
ifneq ($(VENV),)
environment := $(VENV)/.torch-$(TORCH)
endif

# $(call need,test,what is missing,packages)
need = @{ $(1); } >/dev/null 2>&1 || { echo "make: $(strip $(2)): sudo apt install $(3)" >&2; exit 1; }
headers = $$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')
package = $(notdir $(PYTHON))
# the compiler that torch chooses
compiler = $(if $(filter default,$(origin CXX)),c++,$(CXX))

machine:
	$(call need,command -v $(PYTHON),no $(PYTHON) here,python3 python3-venv python3-dev g++)
	$(call need,$(PYTHON) -c 'import sys; sys.exit(sys.version_info[1] < 10)',\
	  $(PYTHON) is older than 3.10,python3.12 python3.12-venv python3.12-dev (then add PYTHON=python3.12))
ifneq ($(VENV),)
	$(call need,$(PYTHON) -c 'import venv; import ensurepip',$(PYTHON) cannot make environments,$(package)-venv)
endif
	$(call need,test -e $(headers)/Python.h,$(PYTHON) has no C headers,$(package)-dev)
	$(call need,$(compiler) -std=c++20 -fsyntax-only -x c++ /dev/null,$(compiler) is no C++20 compiler,g++)

# Where pip finds torch's wheel for this machine: a GPU needs one of its nvcc's major version.
nvcc_major = $(shell nvidia-smi >/dev/null 2>&1 && nvcc --version | sed -n 's/.*release \([0-9]*\).*/\1/p')
TORCH_INDEX ?= https://download.pytorch.org/whl/$(or $(patsubst %,cu%,$(patsubst 12,126,$(patsubst 13,130,$(nvcc_major)))),cpu)

$(VENV)/.torch-$(TORCH): requirements.txt | machine
	$(py) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(py) -m pip install --no-deps --retries 1 --extra-index-url $(TORCH_INDEX) torch==$(TORCH)
	$(py) -m pip install torch==$(TORCH) -r requirements.txt
	echo '$(CURDIR)' > $$($(py) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch_patterns_here.pth
	rm -f $(VENV)/.torch-*
	touch $@

# ---- the build

# One stamp per set of options, so that another interpreter or option builds again; ninja then compiles only what changed.
options := $(py) $(TORCH) $(compiler) $(CFLAGS) $(CXXFLAGS) $(USE_CUDA) $(LINEINFO) $(TORCH_CUDA_ARCH_LIST)
built := build/built-$(firstword $(shell md5sum <<< '$(options)'))
short := s|^(\[[0-9]+/[0-9]+\]) .* -c (-c )?($(CURDIR)/)?([^ ]+) .*|\1 \4|

build: $(built)

$(built): setup.py $(shell find csrc) $(environment) | machine
	mkdir -p build
	flock build/lock $(py) setup.py -q build_ext --inplace | sed -uE '$(short)'
	rm -f build/built-*
	touch $@

clean:
	rm -rf build dist *.egg-info torch_patterns/*.so torch_patterns/built_with .pytest_cache .ruff_cache .mypy_cache .hypothesis

# ---- using the library

train: $(built)
	PYTHONPATH=. $(py) examples/train_lenet5.py $(if $(DATA),--data $(DATA)) $(ARGS)

has_xdist = $(shell $(py) -c 'import xdist' 2>/dev/null && echo yes)

test: $(built)
	$(py) -m pytest -q $(if $(has_xdist),-n $(WORKERS) --dist worksteal) $(ARGS)

bench: $(built)
	$(py) -m torch_patterns.bench $(ARGS)

docs: $(built)
	$(if $(VENV),$(py) -m pip install -q -r docs/site/requirements.txt)
	$(py) -W ignore docs/site/make.py
	@echo build/site/index.html

# ---- style

c_files = $(shell find csrc tests/cpp -name '*.h' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.cu')

# Its parts run in parallel. nvcc needs no environment, so it compiles while the environment is being made.
lint:
	@$(MAKE) --no-print-directory -j$(MAX_JOBS) -O style mypy $(if $(shell command -v nvcc),nvcc)

style: $(environment)
	$(py) -m ruff check .
	$(py) -m ruff format --check .
	@echo clang-format csrc tests/cpp
	@$(bin)clang-format --dry-run -Werror $(c_files)

mypy: $(environment)
	$(py) -m mypy

# Not in lint, because pyright downloads node.js at its first run.
types: $(environment)
	$(py) -m pip install -q pyright==1.1.414
	$(py) -m pyright $(if $(VENV),--pythonpath $(py))

format: $(environment)
	$(py) -m ruff check --fix .
	$(py) -m ruff format .
	$(bin)clang-format -i $(c_files)

# Kernels do not include torch, so nvcc alone compiles them, for a few dtypes, to PTX without optimization. That takes a
# fifth of the time of objects, whose host code the build without CUDA compiles anyway.
nvcc: $(patsubst csrc/%.cu,build/nvcc/%.ptx,$(shell find csrc -name '*.cu'))

build/nvcc/%.ptx: csrc/%.cu
	@mkdir -p $(@D)
	@echo nvcc $<
	@parts=$$(sed -n 's|^// TP_PARTS: ||p' $<); for part in $${parts:-all}; do \
	  nvcc -std=c++17 -arch=sm_90$(if $(findstring _sm90a,$*),a) --expt-relaxed-constexpr -DTP_WITH_CUDA -DTP_FEW_TYPES \
	    -DTP_PART=$$part -Icsrc -MD -MP -MT $@ -MF $(@:.ptx=.d) -ptx -Xcicc -O0 $< -o $@; done

-include $(shell find build/nvcc -name '*.d' 2>/dev/null)
