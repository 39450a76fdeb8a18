# SPDX-License-Identifier: Apache-2.0
# Shorthands: all that is done here is in scripts/ and CMakePresets.json.
.DEFAULT_GOAL := help
.PHONY: help setup build demo test python bench format lint asan asan-torch tsan fuzz torture clean
MAKEFLAGS += --no-print-directory

cmake = cmake --log-level=WARNING --preset
# The release build has everything, the LibTorch adapter and MPI included; the others are the core, and MPI.
release = $(cmake) release -DCDGRAB_BUILD_TORCH=ON -DCDGRAB_BUILD_MPI=ON -DCMAKE_PREFIX_PATH="$$(scripts/torch_path)"
demo = build/release/demo
python = PYTHONPATH=build/release/python/package OMP_NUM_THREADS=1 .venv/bin/python

help:   ## this list
	@sed -nE 's/^([a-z-]+): *[^#]*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

setup:  ## install what is missing (Debian packages; root, sudo, or the line to run)
	@scripts/setup --test

build:  ## everything, optimised, into build/release
	@scripts/setup
	@$(release) >/dev/null
	@cmake --build --preset release

demo:   ## build the command and train generated examples in two orders: tables, a verdict, a page with the curves
	@scripts/setup
	@$(release) >/dev/null
	@cmake --build --preset release --target cdgrab_cli
	@rm -rf $(demo)
	@build/release/bin/cdgrab compare --orders rr,pair --l2 1e-3 --epochs 20 --lr 3e-3,1e-2,3e-2,1e-1,3e-1 \
	  --schedule constant,cosine --out $(demo)
	@echo
	@echo "rr is random reshuffling, what one does without cdgrab; pair orders by the gradients of the epoch before."
	@echo "Each is shown at its best rate and at equal ones. The curves: file://$(CURDIR)/$(demo)/report.html"

test:   ## every check and every test
	@scripts/setup --test
	@scripts/format --check
	@scripts/check_layers
	@scripts/check_supply
	@$(release) >/dev/null
	@cmake --build --preset release
	@ctest --preset release
	@$(MAKE) python
	@scripts/check_wheel
	@$(release) >/dev/null
	@scripts/lint
	@$(MAKE) asan

python: ## the Python package's checks and tests, on the release build
	@$(MAKE) build
	@.venv/bin/ruff check --quiet
	@.venv/bin/ruff format --check --quiet
	@.venv/bin/mypy --no-error-summary
	@$(python) -m pytest --quiet --numprocesses 2 --dist loadfile --doctest-modules build/release/python/package tests/python

bench:  ## what ordering costs beside the alternatives: tables, a JSON and a page in build/bench; BENCH=--quick for some minutes
	@$(MAKE) build
	@scripts/setup --bench
	@PYTHONPATH=build/release/python/package OMP_NUM_THREADS=1 build/bench/venv/bin/python -m bench.python.cost $(BENCH)

format: ## clang-format everything
	@scripts/format

lint:   ## clang-tidy what has changed since it last passed
	@$(release) >/dev/null
	@scripts/lint

asan:   ## the tests again under AddressSanitizer and UBSan
	@$(cmake) asan >/dev/null
	@cmake --build --preset asan
	@ctest --preset asan

asan-torch: ## the LibTorch adapter's tests under AddressSanitizer and UBSan
	@$(cmake) asan-torch -DCMAKE_PREFIX_PATH="$$(scripts/torch_path)" >/dev/null
	@cmake --build --preset asan-torch
	@OMP_NUM_THREADS=1 build/asan-torch/bin/cdgrab_torch_tests --gtest_brief=1

tsan:   ## the tests without torch under ThreadSanitizer
	@$(cmake) tsan >/dev/null
	@cmake --build --preset tsan
	@ctest --preset tsan

torture: ## what tries to break promises (docs/reliability.md), at length: two hours or so
	@$(MAKE) build
	@scripts/torture
	@$(MAKE) asan-torch
	@$(MAKE) tsan

fuzz:   ## look for files that break a reader (libFuzzer); CDGRAB_FUZZ_SECONDS each, 60 unless said
	@scripts/setup --fuzz
	@$(cmake) fuzz >/dev/null
	@cmake --build --preset fuzz
	@scripts/fuzz

clean:  ## remove build/
	rm -rf build
