# Everything a contributor needs. `make help` lists the targets.
#
# PYTHON is the interpreter that the environment is made with (3.11 or newer, with venv); nothing else
# has to be installed.
PYTHON ?= python3
VENV   ?= .venv

# One place for the tools, so that no target depends on an activated environment.
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
RUFF_ON := src tests tools examples $(wildcard bench)

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format proto bench simulate cases-full clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make the environment in .venv (runs again when pyproject.toml changes)

# The stamp is written last: an installation that broke off is repeated.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Ostinato needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python$$version-venv" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (once; about a minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(STAMP) ## Run a night of real work that fails, is retried and ends (under a minute)
	@$(BIN)/python examples/nightly/run.py

# What kills and freezes processes has the machine to itself. The rest mostly waits, for commands to start or for
# database servers, so it runs in four parts at the same time; what the first three say is shown once all have ended.
PART_1 := $(wildcard tests/cli/test_[a-d]*.py) tests/sdk
PART_2 := $(filter-out $(PART_1),$(wildcard tests/cli/test_*.py)) tests/api tests/surfaces
# The soak and its like wait for leases and drains.
SOAKS  := tests/processes/test_soak.py tests/processes/test_frozen_owner.py tests/processes/test_rolling_workers.py
PART_3 := tests/contract tests/store $(SOAKS)
ALONE  := tests/worker tests/processes
REST   := $(filter-out tests/cli tests/sdk tests/api tests/surfaces tests/contract tests/store $(ALONE),$(patsubst %/,%,$(wildcard tests/*/)))
test: $(STAMP) ## Run the tests
	@mkdir -p build
	@$(BIN)/python -m pytest $(PART_1) > build/part-1.log 2>&1 & first=$$!; \
	  $(BIN)/python -m pytest $(PART_2) > build/part-2.log 2>&1 & second=$$!; \
	  $(BIN)/python -m pytest $(PART_3) > build/part-3.log 2>&1 & third=$$!; \
	  $(BIN)/python -m pytest $(REST); fourth=$$?; \
	  wait $$first; first=$$?; wait $$second; second=$$?; wait $$third; third=$$?; \
	  cat build/part-1.log build/part-2.log build/part-3.log; \
	  test $$first = 0 -a $$second = 0 -a $$third = 0 -a $$fourth = 0
	@$(BIN)/python -m pytest $(ALONE) $(addprefix --ignore=,$(SOAKS))

check: $(STAMP) ## Format, lint, types, layers and house rules
	@$(BIN)/ruff format --check $(RUFF_ON)
	@$(BIN)/ruff check $(RUFF_ON)
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest tests/house

format: $(STAMP) ## Format the code and apply the linter's safe fixes
	@$(BIN)/ruff format $(RUFF_ON)
	@$(BIN)/ruff check --fix $(RUFF_ON)

proto: $(STAMP) ## Generate the protobuf modules from worker.proto
	@$(BIN)/python tools/generate_proto.py

bench: $(STAMP) ## Measure how fast a backlog drains
	@$(BIN)/python bench/drain.py

SEEDS ?= 0:500
simulate: $(STAMP) ## Run simulated clusters under faults (SEEDS=0:500)
	@$(BIN)/python -m ostinato.simulation --seeds $(SEEDS) --jobs 2

cases-full: $(STAMP) ## Run the hard cases at full length (hours)
	@OSTINATO_CASES_FULL=1 $(BIN)/python -m pytest -o faulthandler_timeout=4500 tests/cases tests/core/schedule \
	  tests/processes/test_remote_worker.py tests/processes/test_spool_restarts.py tests/processes/test_losses.py tests/processes/test_node_restarts.py tests/processes/test_kill_matrix_node_away.py tests/processes/test_kill_matrix.py \
	  tests/processes/test_tree.py tests/processes/test_drain.py tests/processes/test_pid_reuse.py tests/processes/test_cancel_races.py tests/processes/test_submit_races.py tests/processes/test_output_sizes.py $(SOAKS)

clean: ## Remove the environment, caches and the example's output
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@rm -rf examples/nightly/out
