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

# The tests run in parts, a few at a time; make shows what a part says once it has ended. Parts of the first kind mostly
# wait, for commands to start or for database servers. What kills and freezes processes comes after them; the simulator,
# which only calculates, fills the gaps that it leaves.
SOAKS := tests/processes/test_soak.py tests/processes/test_frozen_owner.py tests/processes/test_rolling_workers.py \
  tests/processes/test_chaos.py tests/processes/test_database_away.py tests/processes/test_database_clock.py \
  tests/processes/test_forked_submitters.py tests/processes/test_server_full_disk.py tests/processes/test_pooled_nodes.py
KILLS := $(filter-out $(SOAKS),$(wildcard tests/processes/test_*.py))

TESTS_commands     := $(wildcard tests/cli/test_[a-d]*.py) tests/sdk
TESTS_surfaces     := $(filter-out $(TESTS_commands),$(wildcard tests/cli/test_*.py)) tests/api tests/surfaces
TESTS_stores       := tests/contract tests/store
TESTS_soaks        := $(SOAKS) tests/scheduler tests/chaos
TESTS_worker       := tests/worker
TESTS_kills        := $(filter $(wildcard tests/processes/test_[a-k]*.py),$(KILLS))
TESTS_losses       := $(filter-out $(TESTS_kills),$(KILLS))
TESTS_simulation   := $(wildcard tests/simulation)
TESTS_rest         := $(filter-out tests/cli tests/sdk tests/api tests/surfaces tests/contract tests/store tests/scheduler \
  tests/chaos tests/worker tests/processes tests/simulation,$(patsubst %/,%,$(wildcard tests/*/)))
FIRST  := commands surfaces stores soaks rest
SECOND := worker kills losses simulation

# Everything is run, also after a failure, and then the whole has failed.
test: $(STAMP) ## Run the tests
	@failed=; \
	  $(MAKE) --no-print-directory -k -j4 -O $(FIRST:%=test-%) || failed=1; \
	  $(MAKE) --no-print-directory -k -j4 -O $(SECOND:%=test-%) || failed=1; \
	  test -z "$$failed"

test-%: $(STAMP)
	@echo "$*: $(TESTS_$*)" | cut -c 1-100
	@$(if $(filter simulation,$*),nice -n 19 )$(BIN)/python -m pytest $(TESTS_$*)

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

AGAINST ?=
bench: $(STAMP) ## Measure the databases' bound, throughput, latency and memory (AGAINST=celery-redis,pgqueuer)
	@$(BIN)/python bench/limit.py
	@$(BIN)/python bench/throughput.py --against "$(AGAINST)"
	@$(BIN)/python bench/latency.py --against "$(AGAINST)"
	@$(BIN)/python bench/memory.py

SEEDS ?= 0:500
simulate: $(STAMP) ## Run simulated clusters under faults (SEEDS=0:500)
	@$(BIN)/python -m ostinato.simulation --seeds $(SEEDS) --jobs 2

cases-full: $(STAMP) ## Run the hard cases at full length (hours)
	@OSTINATO_CASES_FULL=1 $(BIN)/python -m pytest -o faulthandler_timeout=4500 tests/cases tests/core/schedule \
	  tests/store/test_mysql_ownership.py tests/store/test_server_races.py \
	  tests/processes/test_remote_worker.py tests/processes/test_spool_restarts.py tests/processes/test_losses.py tests/processes/test_node_restarts.py tests/processes/test_kill_matrix_node_away.py tests/processes/test_kill_matrix.py \
	  tests/processes/test_tree.py tests/processes/test_drain.py tests/processes/test_pid_reuse.py tests/processes/test_cancel_races.py tests/processes/test_submit_races.py tests/processes/test_output_sizes.py tests/processes/test_cut_worker.py \
	  tests/store/test_pinned_rows.py tests/scheduler/test_many_nodes_fires.py $(SOAKS)

clean: ## Remove the environment, caches and the example's output
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@rm -rf examples/nightly/out
