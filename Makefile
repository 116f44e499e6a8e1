# `make` alone lists the targets. PYTHON=python3.12 chooses the interpreter, ARGS=… is passed on.

PYTHON ?= python3
ARGS ?=
export PYTHON
# Where this is set (as in many containers) each of the hundreds of processes that the tests start compiles our 600
# modules anew, and pytest rewrites its own.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
TEST := $(BIN)/python -m pytest -q -n
SOURCES := guanaco cli server migrations tests benchmarks examples scripts/document_settings.py scripts/document_metrics.py scripts/document_cli.py scripts/document_errors.py scripts/document_http.py scripts/lint_prose.py scripts/site_hooks.py scripts/make_chart.py scripts/new-migration hatch_build.py

.DEFAULT_GOAL := help
.PHONY: help setup engine both demo test test-fast check lint format audit sbom docs-site docs-serve pin-images images bench-adapters bench-admission bench-artifacts bench-assignment bench-characters bench-database bench-duels bench-evidence bench-export bench-faults bench-feedback bench-fraud bench-gateway bench-hostile bench-ids bench-journey bench-lorebook bench-memory bench-partitions bench-prefix bench-privacy bench-prompts bench-stress bench-swap bench-sweep bench-web bench-worth bench-idle scale migration docs chart lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: both  ## the whole journey on this machine: submit, chat, rate, read (ARGS=--exit ends by itself)
	@$(BIN)/guanaco demo $(ARGS)

test: both  ## every test, with real vLLM and on both databases (ARGS='-k chat' chooses)
	@scripts/setup-debian postgresql
	@scripts/setup-debian kubectl || true
	@scripts/setup-debian chromium || true
	@scripts/setup-debian firefox-esr || true
	@scripts/setup-debian prometheus || true
	@scripts/setup-debian nodejs npm && scripts/setup-clients || true
	@$(TEST) 4 $(ARGS)

test-fast: setup  ## unit tests, and the integration tests on SQLite that start no process; seven minutes on two slow cores
	@$(TEST) 3 tests/integration tests/unit --databases=sqlite -m "not engine and not postgres and not slow" $(ARGS)

check: lint  ## lint, and the unit tests; under a minute
	@$(TEST) 2 tests/unit -m "not engine and not postgres"

lint: setup  ## format, lint, types, imports, English
	@$(BIN)/ruff format --quiet --check $(SOURCES) || { echo "\`make format\` puts this right."; exit 1; }
	@$(BIN)/ruff check --quiet $(SOURCES)
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python scripts/lint_prose.py

format:  ## put the code into its format
	@$(BIN)/ruff check --quiet --fix $(SOURCES) || true
	@$(BIN)/ruff format --quiet $(SOURCES)

bench-journey: both  ## what the README's figures come from (ARGS=--runs=1)
	@$(BIN)/python -m benchmarks.journey $(ARGS)

bench-adapters: both  ## what it costs a reply that its model server takes LoRA adapters (ARGS='--pairs=60')
	@.venv-engine/bin/python benchmarks/adapters.py $(ARGS)

bench-artifacts: both  ## the serializer's pass and the loader beside their peers (ARGS='--rounds=1 --gib=1')
	@$(BIN)/python benchmarks/artifacts.py $(ARGS)

bench-gateway: setup  ## the chat gateway beside nginx, vllm-router and FastAPI + httpx (ARGS='--rounds=1')
	@$(BIN)/python benchmarks/gateway.py $(ARGS)

bench-characters: both  ## computed tokens and TTFT over four replicas, by how conversations find their character's prefix (ARGS='--conversations=60 --seeds=0')
	@$(BIN)/python benchmarks/characters.py $(ARGS)

bench-lorebook: both  ## vLLM's prefix cache under a lorebook or summaries, against both at the top and none (ARGS='--turns=20')
	@$(BIN)/python benchmarks/lorebook_cache.py $(ARGS)

bench-memory: setup  ## planted facts that are in the prompt, by what is recalled (ARGS='--turns=400 --seeds=0,1,2')
	@$(BIN)/python benchmarks/memory_recall.py $(ARGS)

bench-prefix: both  ## vLLM's prefix cache over two replicas, sticky against round robin (ARGS='--conversations=4')
	@$(BIN)/python benchmarks/prefix_cache.py $(ARGS)

bench-prompts: setup  ## rendering a history, cached and new, beside bisecting the whole prompt
	@$(BIN)/python benchmarks/prompts.py $(ARGS)

bench-database: setup  ## our connection to PostgreSQL beside psycopg's cursors and asyncpg (ARGS=--rounds=3)
	@scripts/setup-debian postgresql
	@$(BIN)/python -m benchmarks.database $(ARGS)

bench-export: setup  ## 100,000 ratings exported from PostgreSQL, and how fast they are anonymized (ARGS=--ratings=20000)
	@$(BIN)/python -m benchmarks.feedback_export $(ARGS)

bench-faults: both  ## a thousand faults while people chat, rate and submit; then what is lost, in 20 minutes (ARGS='--faults=100 --seconds=180')
	@scripts/setup-debian postgresql
	@$(BIN)/python -m benchmarks.faults $(ARGS)

bench-hostile: both  ## hostile repos, requests and connections while people chat, in 18 minutes (ARGS="--seconds=120")
	@$(BIN)/python -m benchmarks.hostile $(ARGS)

bench-ids: setup  ## PostgreSQL transaction ids for a thousand turns, by users at once (ARGS=--turns=500)
	@$(BIN)/python -m benchmarks.transaction_ids $(ARGS)

bench-idle: setup  ## CPU time and memory of `guanaco up` without traffic, in 7 minutes (ARGS='--runs=1 --database=postgresql')
	@$(BIN)/python -m benchmarks.idle $(ARGS)

bench-partitions: setup  ## 20 million messages in partitions beside 1 million: a turn, counting, vacuum (ARGS='--periods=5')
	@$(BIN)/python -m benchmarks.partitions $(ARGS)

bench-privacy: setup  ## recall and false finds of the anonymizer in five languages, beside presidio (ARGS=--peer=none)
	@$(BIN)/python -m benchmarks.privacy $(ARGS)

bench-stress: both  ## the stress check's load generator beside vLLM's own, on one server (ARGS='--rounds=1')
	@$(BIN)/python -m benchmarks.stress $(ARGS)

bench-swap: both  ## swaps of weights: right, how quick, whom they disturb (ARGS='--only=times --rounds=3'; ARGS=--proof kills in the middle of 50)
	@scripts/setup-debian postgresql
	@$(BIN)/python -m benchmarks.swap $(ARGS)

bench-sweep: both  ## 32 variants of one repo on one model server: until all are deployed and rated (ARGS=--runs=1)
	@$(BIN)/python -m benchmarks.sweep $(ARGS)

bench-assignment: setup  ## the assignment policies over synthetic seasons, and the cost of one choice (ARGS=--seasons=10)
	@$(BIN)/python -m benchmarks.assignment $(ARGS)

bench-duels: setup  ## strengths from a million duels, beside arena-rank and choix (ARGS='--votes=100000 --peer=none')
	@$(BIN)/python -m benchmarks.duels $(ARGS)

bench-worth: setup  ## GPU hours until the best of 40 submissions on 2 servers is known, by who sleeps (ARGS=--seasons=50)
	@$(BIN)/python -m benchmarks.worth $(ARGS)

bench-evidence: setup  ## how often a board that is looked at all day shows what is not so (ARGS=--seasons=100)
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.evidence $(ARGS)

bench-admission: setup  ## who waits and who is refused under Poisson load and bursts, in 3 minutes (ARGS=--seconds=10)
	@scripts/setup-debian postgresql
	@$(BIN)/python -m benchmarks.admission $(ARGS)

bench-feedback: setup  ## ratings and the leaderboard with a million ratings in PostgreSQL (ARGS='--ratings=100000')
	@scripts/setup-debian postgresql
	@$(BIN)/python -m benchmarks.feedback $(ARGS)

bench-fraud: setup  ## attacks on a board: what the rules find, and how far they move a submission (ARGS='--seasons=5')
	@$(BIN)/python -m benchmarks.fraud $(ARGS)

bench-web: setup  ## server time of every page over PostgreSQL (ARGS='--ratings=10000')
	@scripts/setup-debian postgresql
	@$(BIN)/python -m benchmarks.web $(ARGS)

scale: setup  ## write the figures of docs/scale.md anew, from benchmarks/scale.py
	@$(BIN)/python -m benchmarks.scale

setup:  ## .venv: the platform, the CLI and the tools, as locked
	@scripts/setup-platform

engine:  ## .venv-engine: vLLM, torch and tensorizer, as locked
	@command -v nvidia-smi >/dev/null || scripts/setup-debian libnuma1
	@scripts/setup-engine

both:
	@$(MAKE) --no-print-directory -j2 setup engine

migration:  ## a new migration for what the tables have changed (ARGS='"what it does"')
	@$(BIN)/python scripts/new-migration $(ARGS)

docs: setup  ## write the pages of docs/ anew that come from the code: settings, metrics, command line, errors, HTTP calls
	@$(BIN)/python scripts/document_settings.py
	@$(BIN)/python scripts/document_metrics.py
	@$(BIN)/python scripts/document_cli.py
	@$(BIN)/python scripts/document_errors.py
	@$(BIN)/python -m scripts.document_http

docs-site:  ## build the documentation's site in build/site; a link or anchor that leads nowhere fails
	@scripts/setup-debian npm
	@scripts/setup-docs
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet

docs-serve:  ## show the documentation's site at http://127.0.0.1:8000, and follow changes
	@scripts/setup-debian npm
	@scripts/setup-docs
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs serve --strict

chart: setup  ## write charts/guanaco anew from k8s/
	@$(BIN)/python scripts/make_chart.py

lock:  ## write every lock in requirements/ anew (ARGS=--upgrade takes the newest versions)
	@scripts/lock $(ARGS)

audit:  ## look for advisories about the locked packages; says so when no database can be reached
	@scripts/audit

sbom:  ## what the locks install, as CycloneDX, in build/sbom
	@scripts/sbom

pin-images:  ## pin the base images of docker/ to what their registries have now
	@$(PYTHON) scripts/pin-images

TAG ?= 0.1.0
ACCELERATOR ?= cuda
images:  ## build the three images; fails if a base image is not pinned (ACCELERATOR=cuda, rocm or cpu, TAG=0.1.0)
	@$(PYTHON) scripts/pin-images --check
	docker build -f docker/platform.Dockerfile -t guanaco-platform:$(TAG) .
	docker build -f docker/serializer.Dockerfile -t guanaco-serializer:$(TAG) .
	docker build -f docker/engine.Dockerfile --build-arg ACCELERATOR=$(ACCELERATOR) -t guanaco-engine:$(TAG)-$(ACCELERATOR) .

clean:  ## remove the environments and caches
	rm -rf .venv .venv-engine .venv-audit .venv-clients .venv-docs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist
