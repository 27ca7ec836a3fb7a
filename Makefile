# Most targets are one call of the `lookahead` command; `make` alone lists them.
#   MODEL=llama2-13b PROFILE=latency   what is served, and how
#   ARGS="--set engine.max_batch_size=8"   further options of the command
#   PYTHON=python3.12                  Python of .venv; default: the first suitable one on PATH

MODEL   ?= smollm2-135m
PROFILE ?= latency
ARGS    ?=
PYTHON  ?=
VENV    ?= .venv

# Tests of decoding that run no compiled loop, which `test-kernels` leaves out.
WITHOUT_LOOPS := grammar planning $(addprefix test_,$(addsuffix .py,accept compile_cache log_probs lookahead pool sampling \
	split strategy tree))
# Older processors that `test-kernels` compiles the lean pass for, with their instruction sets, in numba's terms.
ifeq ($(shell uname -m),x86_64)
OLDER_PROCESSORS := nehalem haswell
endif
NUMBA_FEATURES_nehalem := +sse4.2
NUMBA_FEATURES_haswell := +avx2,+fma,+f16c
# Not part of `test-kernels`: only processors with AVX-VNNI run it.
NUMBA_FEATURES_alderlake := +avx2,+fma,+f16c,+avxvnni

LOOKAHEAD := $(VENV)/bin/lookahead
WHICH     := --model "$(MODEL)" --profile "$(PROFILE)"

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev engine repo serve stop switch status generate chat verify tune bench load report doctor models \
	profiles demo validate-gpu versions test test-unit test-integration test-kernels test-bounds test-plain mutation \
	soak check format schema docs clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo "Variables: MODEL=$(MODEL) PROFILE=$(PROFILE) ARGS=\"$(ARGS)\""

setup: ## Create .venv and install the package with its tested versions
	@sh setup.sh "$(VENV)" "$(PYTHON)"

setup-dev: ## setup, with the tools for checks and tests
	@sh setup.sh "$(VENV)" "$(PYTHON)" dev

demo: setup ## Build, serve and query the small model; compare speed with and without drafts
	$(LOOKAHEAD) demo $(WHICH) $(ARGS)

engine: setup ## Fetch the checkpoint and build the engine
	$(LOOKAHEAD) engine $(WHICH) $(ARGS)

repo: setup ## Write the Triton model repository
	$(LOOKAHEAD) repo $(WHICH) $(ARGS)

serve: setup ## Start the server and wait until it is ready
	$(LOOKAHEAD) serve $(WHICH) $(ARGS)

stop: setup ## Stop the server
	$(LOOKAHEAD) stop $(ARGS)

switch: setup ## Switch the running server to another profile: PROFILE=throughput
	$(LOOKAHEAD) switch --profile "$(PROFILE)" $(ARGS)

status: setup ## Print what is served
	$(LOOKAHEAD) status $(ARGS)

generate: setup ## Send one prompt: ARGS='"Once upon a time"'
	$(LOOKAHEAD) generate $(ARGS)

chat: setup ## Chat with the running server
	$(LOOKAHEAD) chat $(ARGS)

verify: setup ## Prove that drafts change no token
	$(LOOKAHEAD) verify $(WHICH) $(ARGS)

bench: setup ## Measure strategies against plain decoding: ARGS="--data prompts.jsonl"
	$(LOOKAHEAD) bench $(WHICH) $(ARGS)

load: setup ## Measure the running server under the load of many clients
	$(LOOKAHEAD) load $(ARGS)

tune: setup ## Measure the cost of a pass, then draft budgets and W, N, G
	$(LOOKAHEAD) tune $(WHICH) $(ARGS)

report: setup ## Write a report of a bench result: ARGS=out.json
	$(LOOKAHEAD) report $(ARGS)

doctor: setup ## Check this machine and report how to fix what is missing
	$(LOOKAHEAD) doctor $(ARGS)

models: setup ## List the models
	$(LOOKAHEAD) models $(ARGS)

profiles: setup ## List the profiles
	$(LOOKAHEAD) profiles $(ARGS)

validate-gpu: setup ## Run everything once on this machine's GPU and write a report: ARGS="--out report"
	$(LOOKAHEAD) validate-gpu $(ARGS)

versions: setup-dev ## List the TensorRT-LLM version of each container
	$(LOOKAHEAD) dev versions $(ARGS)

# Tests start hundreds of processes, and pytest rewrites 250 modules: without bytecode each start compiles them again.
test-% soak: export PYTHONDONTWRITEBYTECODE :=

test: setup-dev ## Run all tests, including those against a real server
	$(MAKE) --jobs=2 --output-sync=target test-kernels
	$(MAKE) test-unit test-integration

test-unit: setup-dev ## Run the unit tests
	$(VENV)/bin/python -m pytest -n 3 --dist loadfile tests/unit $(ARGS)

test-integration: setup-dev ## Run the tests against a real server
	$(VENV)/bin/python -m pytest -n 3 --dist loadfile tests/integration tests/soak/test_kills.py \
		tests/soak/test_small_machine.py $(ARGS)

test-bounds: setup-dev ## Run the compiled loops with index checks
	NUMBA_BOUNDSCHECK=1 timeout 900 $(VENV)/bin/python -m pytest -q tests/unit/decoding $(WITHOUT_LOOPS:%=--ignore=tests/unit/decoding/%)

test-plain: setup-dev ## Run the loops of the trie as plain Python
	NUMBA_DISABLE_JIT=1 timeout 900 $(VENV)/bin/python -m pytest -q -W ignore:overflow tests/unit/decoding/trie/test_random_operations.py

test-kernels: test-bounds test-plain $(OLDER_PROCESSORS:%=test-on-%) ## Run both, and the lean pass for older processors

# Most of what the test of traffic compiles are loops of drafting, which have no variants for processors.
test-on-%: setup-dev
	NUMBA_CPU_NAME=$* NUMBA_CPU_FEATURES=$(NUMBA_FEATURES_$*) timeout 900 $(VENV)/bin/python -m pytest -q \
		tests/unit/engine/torch/lean --ignore=tests/unit/engine/torch/lean/test_traffic.py

mutation: setup-dev ## Make small changes to the core and list those that no test detects: ARGS="--mutants 50"
	$(VENV)/bin/python -m tests.mutation $(ARGS)

soak: setup-dev ## Start, query, kill and stop servers for up to an hour
	LOOKAHEAD_SOAK_S=3600 $(VENV)/bin/python -m pytest tests/soak $(ARGS)

check: setup-dev ## Check lint, format, types, schemas and generated tables
	$(VENV)/bin/ruff check pipeline research tests triton_repo docs
	$(VENV)/bin/ruff format --check pipeline research tests triton_repo docs
	$(VENV)/bin/mypy
	@# One at a time: Triton wants every model's code to be named model.py.
	for model in $$(find triton_repo -name model.py); do $(VENV)/bin/mypy --strict "$$model" || exit 1; done
	$(LOOKAHEAD) dev generate --check

format: setup-dev ## Format the code and sort imports
	$(VENV)/bin/ruff check --select I --fix pipeline research tests triton_repo docs
	$(VENV)/bin/ruff format pipeline research tests triton_repo docs

schema: setup-dev ## Write the JSON schemas of the configs and the generated pages
	$(LOOKAHEAD) dev generate

docs: setup-dev ## Build the documentation site into build/site
	$(VENV)/bin/python docs/images/flows.py
	$(VENV)/bin/python -m mkdocs build --strict

clean: setup ## Remove built engines; with MODEL=, only those of that model
	$(LOOKAHEAD) clean $(if $(filter file,$(origin MODEL)),,--model "$(MODEL)") $(ARGS)
