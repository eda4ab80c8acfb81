# Everything a contributor needs. `make help` lists the targets.
#
# PYTHON is the interpreter that the environment is made with (3.11 or newer, with venv); nothing else
# has to be installed.
PYTHON ?= python3
VENV   ?= .venv

# One place for the tools, so that no target depends on an activated environment.
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
RUNS    := $(VENV)/.runs
RUFF_ON := src tests tools examples $(wildcard bench)

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format proto bench simulate cases-full clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make the environment in .venv (runs again when pyproject.toml changes)

# What runs Ostinato; the set-up of a contributor has it too.
$(RUNS): pyproject.toml
	$(call install,)

$(STAMP): pyproject.toml
	$(call install,[dev])
	@touch $(RUNS)

# The stamp is written last: an installation that broke off is repeated.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Ostinato needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python$$version-venv" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (once; about a minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.$(1)'
	@touch $@
endef

demo: $(RUNS) ## Run a night of real work that fails, is retried and ends (under a minute)
	@$(BIN)/python examples/nightly/run.py

# The tests run in parts, a few at a time; make shows what a part says once it has ended. Parts of the first kind mostly
# wait, for commands to start or for database servers. What kills and freezes processes comes after them. The simulator,
# which only calculates, runs from the beginning, and gets what both leave.
SOAKS := tests/processes/test_soak.py tests/processes/test_frozen_owner.py tests/processes/test_rolling_workers.py \
  tests/processes/test_chaos.py tests/processes/test_database_away.py tests/processes/test_database_clock.py \
  tests/processes/test_forked_submitters.py tests/processes/test_server_full_disk.py tests/processes/test_pooled_nodes.py
KILLS := $(filter-out $(SOAKS),$(wildcard tests/processes/test_*.py))

TESTS_commands     := $(wildcard tests/cli/test_[a-d]*.py) tests/sdk
TESTS_surfaces     := $(filter-out $(TESTS_commands),$(wildcard tests/cli/test_*.py)) tests/api tests/surfaces
TESTS_contract     := tests/contract
TESTS_stores       := tests/store
TESTS_soaks        := $(SOAKS) tests/scheduler tests/chaos
TESTS_worker       := tests/worker
TESTS_kills        := $(filter $(wildcard tests/processes/test_[a-k]*.py),$(KILLS))
TESTS_losses       := $(filter-out $(TESTS_kills),$(KILLS))
TESTS_simulation   := $(wildcard tests/simulation)
# The house rules belong to the checks.
TESTS_rest         := $(filter-out tests/cli tests/sdk tests/api tests/surfaces tests/contract tests/store tests/scheduler \
  tests/chaos tests/worker tests/processes tests/simulation tests/house tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/)))
FIRST  := commands surfaces contract stores soaks rest
SECOND := worker kills losses

# Whatever is left of two processors may be so little that a test of the simulator takes minutes.
run_part = $(if $(filter simulation,$1),nice -n 19 )$(BIN)/python -m pytest $(if $(filter simulation,$1),-o faulthandler_timeout=900 )$(TESTS_$1)
say_part = echo "$1: $(TESTS_$1)" | cut -c 1-100

# Hundreds of processes start, and each would compile all of ours that it imports, where nothing compiled is there yet
# and the environment lets Python keep nothing (PYTHONDONTWRITEBYTECODE, usual in containers).
COMPILED := src tests bench

# Everything is run, also after a failure, and then the whole has failed.
FAILED := build/failed-tests
test: $(STAMP) ## Run the tests
	@mkdir -p $(dir $(FAILED)) && rm -f $(FAILED)
	@$(BIN)/python -m compileall -q $(COMPILED)
	@$(MAKE) --no-print-directory -j7 -O part-simulation $(SECOND:%=part-%)
	@test ! -e $(FAILED) || { echo "failed: $$(sort $(FAILED) | paste -sd ' ')" >&2; exit 1; }

test-%: $(STAMP)
	@$(call say_part,$*)
	@$(call run_part,$*)

PARTS := $(patsubst %,part-%,$(FIRST) $(SECOND) simulation)
.PHONY: $(PARTS)
$(SECOND:%=part-%): | $(FIRST:%=part-%)
$(PARTS): part-%: $(STAMP)
	@$(call say_part,$*); $(call run_part,$*) || echo $* >> $(FAILED)

# Side by side, and each is heard whatever the others find.
CHECKS := check-types check-house check-lint check-format check-layers
.PHONY: $(CHECKS)
check: $(STAMP) ## Format, lint, types, layers and house rules
	@$(MAKE) --no-print-directory -k -j2 -O $(CHECKS)

check-format: $(STAMP)
	@$(BIN)/ruff format --check $(RUFF_ON)

check-lint: $(STAMP)
	@$(BIN)/ruff check $(RUFF_ON)

check-types: $(STAMP)
	@$(BIN)/mypy

check-layers: $(STAMP)
	@$(BIN)/lint-imports

check-house: $(STAMP)
	@$(BIN)/python -m pytest tests/house

format: $(STAMP) ## Format the code and apply the linter's safe fixes
	@$(BIN)/ruff format $(RUFF_ON)
	@$(BIN)/ruff check --fix $(RUFF_ON)

proto: $(STAMP) ## Generate the protobuf modules from worker.proto
	@$(BIN)/python tools/generate_proto.py

AGAINST ?=
bench: $(STAMP) ## Measure every figure of docs/performance.md, two hours (QUICK=1: small; AGAINST=celery-redis,saq)
	@$(BIN)/python bench/report.py $(if $(QUICK),--quick) $(if $(AGAINST),--against "$(AGAINST)")

SEEDS ?= 0:500
simulate: $(STAMP) ## Run simulated clusters under faults (SEEDS=0:500; HOURS=2: each for so long)
	@$(BIN)/python -m ostinato.simulation --seeds $(SEEDS) $(if $(HOURS),--hours $(HOURS) )--jobs 2

cases-full: $(STAMP) ## Run the hard cases at full length (hours)
	@OSTINATO_CASES_FULL=1 $(BIN)/python -m pytest -o faulthandler_timeout=4500 tests/cases tests/core/schedule \
	  tests/store/test_mysql_ownership.py tests/store/test_server_races.py \
	  tests/processes/test_remote_worker.py tests/processes/test_spool_restarts.py tests/processes/test_losses.py tests/processes/test_node_restarts.py tests/processes/test_kill_matrix_node_away.py tests/processes/test_kill_matrix.py \
	  tests/processes/test_tree.py tests/processes/test_drain.py tests/processes/test_pid_reuse.py tests/processes/test_cancel_races.py tests/processes/test_submit_races.py tests/processes/test_output_sizes.py tests/processes/test_cut_worker.py \
	  tests/store/test_pinned_rows.py tests/scheduler/test_many_nodes_fires.py tests/scheduler/test_retry_budgets.py $(SOAKS)

clean: ## Remove the environment, caches and the example's output
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@rm -rf examples/nightly/out
