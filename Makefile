# Everything a person does with Mainstay. Each target installs what it needs first; second runs are quick.
# PYTHON=/path/to/python3 chooses the interpreter (3.11 or newer); TESTS=… and ARGS=… narrow a run.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.ONESHELL:

VENV := .venv/bin
CARGO := . scripts/env.sh && cargo
PYTHON_SOURCES := python benches examples scripts tests/python
TESTS ?= tests/python
ARGS ?=

.PHONY: help setup build demo test test-rust test-python soak bench lint fmt clean

help: ## say what there is
	@echo "Mainstay: a PJRT plugin that outlives the hardware under it. Targets:"
	awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: ## install what the build and the tests need (also done by every other target)
	@PYTHON='$(PYTHON)' scripts/setup.sh

build: setup ## build libmainstay.so and the mainstay executable into target/release
	@echo "build: libmainstay.so and mainstay"
	$(CARGO) build --locked --release

demo: build ## elastic training: kill a slice's worker, watch it go on; draws build/demo.png
	@$(VENV)/python examples/demo.py $(ARGS)

test: ## everything: formatting, lints, Rust tests, Python tests
	@$(MAKE) lint
	$(MAKE) test-rust
	$(MAKE) test-python

test-rust: setup ## the Rust tests
	@echo "test: Rust"
	export MAINSTAY_TEST_PLUGIN="$$($(VENV)/python scripts/plugins.py default)"
	export MAINSTAY_TEST_PLUGINS="$$($(VENV)/python scripts/plugins.py all)"
	$(CARGO) test --locked

test-python: build ## the Python tests; narrow them with TESTS=tests/python/test_kill.py ARGS="-k idle"
	@echo "test: Python"
	$(VENV)/python -m pytest $(TESTS) $(ARGS)

soak: build ## elastic training under random faults; longer with ARGS="--faults 1000"
	@PYTHONPATH=examples $(VENV)/python tests/python/soak.py $(ARGS)

bench: build ## compare with the raw plugin; one part with ARGS="--only engine" (or snapshots, recovery)
	@. scripts/env.sh
	$(VENV)/python benches/run.py $(ARGS)

lint: setup ## rustfmt, clippy, ruff, mypy
	@echo "lint: rustfmt, clippy, ruff, mypy"
	cargo fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	$(VENV)/ruff format --check --quiet $(PYTHON_SOURCES)
	$(VENV)/ruff check --quiet $(PYTHON_SOURCES)
	$(VENV)/mypy python/mainstay benches examples scripts tests/python/soak.py

fmt: setup ## format all code
	@cargo fmt
	$(VENV)/ruff format $(PYTHON_SOURCES)
	$(VENV)/ruff check --fix $(PYTHON_SOURCES)

clean: ## remove what was built and installed here
	cargo clean
	rm -rf .venv build
