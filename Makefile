# make demo    train a small chess model on this machine and report what it learned
# make test    linters, type checker, generated pages, tests; also against verl, in an environment of its own
# make docs    generated pages, and the documentation as a site in site/
# make test-hosts   whole environments in the Tinker cookbook, OpenEnv and verifiers, in environments of their own
# Environments are made on first use, in .venv and (for tests against verl) .venv-verl, and renewed when pyproject.toml or
# their constraints change. `make test VERL=0` leaves verl out.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
VERL_VENV := .venv-verl
VERL_STAMP := $(VERL_VENV)/.installed
HOSTS_VENV := .venv-hosts
HOSTS_STAMP := $(HOSTS_VENV)/.installed
VERIFIERS_VENV := .venv-verifiers
VERIFIERS_STAMP := $(VERIFIERS_VENV)/.installed
VERL ?= 1
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
WORKERS ?= $(shell echo $$(( $(CORES) < 8 ? $(CORES) : 8 )))
BENCHMARKS ?= $(sort $(wildcard benchmarks/*.py))

# One thread per process: small models run slower on more, and tests run side by side.
export OMP_NUM_THREADS ?= 1
# Matrix products that do not depend on where operands lie in memory, also where a test imports torch by itself.
export MKL_CBWR ?= AUTO,STRICT
export PYTHON TORCH_INDEX_URL
# Tests start hundreds of processes that import Assay: it is compiled once, also where the environment would have each of
# them compile it again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo browser test tests beside checks test-verl test-hosts lint bench docs clean system env envs

demo: env system
	$(BIN)/assay demo

# Environments first, side by side, then everything else: tests on all cores, and beside them, in the time in which they
# wait, what runs on one.
test: system
	@$(MAKE) --no-print-directory -j3 envs browser
	@$(MAKE) --no-print-directory -j3 tests beside

# A file's tests run in one process, which then has its fixtures once; tests/conftest.py says which files come first.
tests: env
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

envs: $(STAMP) $(if $(filter-out 0,$(VERL)),$(VERL_STAMP))

# The output of each check comes when it is done, and not between the dots of the tests.
beside:
	@$(MAKE) --no-print-directory --output-sync=target checks

checks: lint $(if $(filter-out 0,$(VERL)),test-verl)

# One process: importing verl takes seconds, and starting Ray takes more.
test-verl: $(VERL_STAMP)
	$(VERL_VENV)/bin/python -m pytest -q tests/verl $(VERL_PYTEST_ARGS)

# Not part of `make test`: what all hosts share is tested there, and these packages are only for who uses them.
test-hosts: $(HOSTS_STAMP) $(VERIFIERS_STAMP)
	$(HOSTS_VENV)/bin/python -m pytest -q tests/integrations/test_cookbook_environment.py tests/integrations/test_openenv.py \
		tests/integrations/test_tinker_group.py
	$(VERIFIERS_VENV)/bin/python -m pytest -q tests/integrations/test_verifiers_task.py \
		tests/integrations/test_verifiers_environment.py

# After tests where both want a core: tests take longer, and this is done long before them.
lint: env
	nice $(BIN)/ruff check .
	nice $(BIN)/ruff format --check .
	nice $(BIN)/mypy
	nice $(BIN)/python scripts/gen_config_docs.py --check
	nice $(BIN)/python scripts/gen_metric_docs.py --check

bench: env system browser
	@set -e; for file in $(BENCHMARKS); do echo "== $$file"; $(BIN)/python $$file; done

docs: $(VENV)/.docs
	$(BIN)/python scripts/gen_config_docs.py
	$(BIN)/python scripts/gen_metric_docs.py
	$(BIN)/python scripts/gen_model_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The documentation is in site/index.html"

$(VENV)/.docs: $(STAMP)
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt -e '.[docs]'
	@touch $@

clean:
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt scripts/setup-env.sh scripts/find-python.sh
	@scripts/setup-env.sh $(VENV) constraints.txt -e '.[torch,chess,math,kernelbench,retrieval,embeddings,modal,rewards,trl,tensorboard,wandb,serve,bench,dev]'
	@touch $@

$(VERL_STAMP): pyproject.toml constraints-verl.txt scripts/setup-verl-env.sh scripts/setup-env.sh scripts/find-python.sh
	@scripts/setup-verl-env.sh $(VERL_VENV)
	@touch $@

$(HOSTS_STAMP): pyproject.toml constraints-hosts.txt scripts/setup-hosts-env.sh scripts/setup-env.sh scripts/find-python.sh
	@scripts/setup-hosts-env.sh $(HOSTS_VENV)
	@touch $@

$(VERIFIERS_STAMP): pyproject.toml constraints-verifiers.txt scripts/setup-env.sh scripts/find-python.sh
	@scripts/setup-env.sh $(VERIFIERS_VENV) constraints-verifiers.txt verifiers pytest pytest-timeout uv -e '.[rewards,torch,chess,kernelbench]'
	@touch $@

system:
	@scripts/system-packages.sh

# In the time in which environments are made; after `system`, since apt-get does one thing at a time.
browser: system
	@scripts/system-packages.sh browser
