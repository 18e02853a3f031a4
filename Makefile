# Two commands carry the project on a fresh machine: `make demo` and `make test`. Each sets itself up.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
FRAMEWORKS := lightning==2.6.6 transformers==5.23.0 accelerate==1.15.0 deepspeed==0.19.8 wandb==0.31.0 mlflow-skinny==3.17.2 tensorboard==2.21.0
OLDEST_FRAMEWORKS := lightning==2.5.0 transformers==4.57.6 accelerate==1.3.0 deepspeed==0.19.0
# Two processes keep two cores busy: most tests wait for other processes most of the time.
PARALLEL := -n auto --maxprocesses 8 --dist loadfile
# Tests with a target of their own: they take long, or need privileges.
APART := long or faulty_scripts or frameworks or demo or fleet or slurm or pbs or netns or containers or training or upgrade or manual or browser or gpu
# Their folders, where the five services run; the two parts of `make test-long` take about the same time.
SYSTEM := tests/access tests/api tests/monitoring tests/system
ZERO := tests/frameworks/test_deepspeed.py tests/frameworks/test_accelerate_deepspeed.py
LONG := long and not ($(subst long or ,,$(APART)))
LOCK = $(BIN)/uv pip compile --quiet --generate-hashes --no-header --no-emit-index-url --python-version 3.11 \
  --python-platform x86_64-manylinux_2_28 $(UPGRADE)
WHEELS ?= deploy/docker/wheels
VERSION = $(shell sed -n 's/^VERSION = "\(.*\)"/\1/p' services/malletrain/common/version.py)
SOURCES := services clients benchmarks examples tests tools hatch_build.py

.PHONY: help setup demo test check test-quick test-demo test-fleet test-gpu test-dashboard test-dashboard-smoke test-streams test-manual test-long test-long-others test-long-system test-hostile test-training test-faulty-scripts test-slurm \
  test-pbs test-netns test-containers pictures \
  test-faults test-upgrade test-frameworks test-deepspeed soak soak-short \
  images lock release-protos docs format benchmarks clean

help: ## What can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.torch:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "needs Python 3.11 or later; set PYTHON=" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(TORCH)
	touch $@

$(VENV)/.package: $(VENV)/.torch pyproject.toml hatch_build.py $(wildcard protos/malletrain/v1/*.proto)
	$(BIN)/python -m pip install --quiet --editable '.[head,postgresql,tracing,sim,dask,dashboard,dev,docs]'
	touch $@

$(VENV)/.horovod: $(VENV)/.package deploy/install-horovod.sh
	deploy/install-horovod.sh $(VENV)
	touch $@

setup: $(VENV)/.horovod ## The whole environment in .venv: torch, Horovod, services, tools

demo: setup ## The main job on this machine: five services, eight virtual nodes, three real trainings
	$(BIN)/malletrain demo

test: setup check ## Static checks, then every test that needs no privilege
	$(BIN)/python -m pytest $(PARALLEL) -m 'not ($(APART))'

test-quick: $(VENV)/.package ## The tests that start no trainings
	$(BIN)/python -m pytest $(PARALLEL) -m 'not ($(APART) or horovod or system)'

test-demo: setup ## The demo while each service is killed in turn
	$(BIN)/python -m pytest -m demo --timeout 600

test-long: test-long-others test-long-system ## Supervisors with their workers, feeds, traces and followed logs, with real processes (25 to 40 minutes)

test-long-others: setup
	$(BIN)/python -m pytest $(PARALLEL) --ignore tests/hostile $(SYSTEM:%=--ignore %) -m '$(LONG)'

test-long-system: setup
	$(BIN)/python -m pytest $(PARALLEL) -m '$(LONG)' $(SYSTEM)

test-hostile: setup ## Floods, false supervisors, many processes, and a defect in each task, on real services (15 minutes)
	$(BIN)/python -m pytest $(PARALLEL) -m '$(LONG)' tests/hostile

test-training: setup ## What takes long: samples and accuracy over many rescales, measured curves, rarer faults
	$(BIN)/python -m pytest $(PARALLEL) -m training --timeout 900

test-faulty-scripts: setup ## `malletrain check` on scripts with one known fault each, and on the examples (15 minutes)
	$(BIN)/python -m pytest -m faulty_scripts

test-dashboard-smoke: setup ## The dashboard's pages in a real Chromium, in a minute or two: each page, a rescale, a job, a replay
	$(BIN)/python -m pytest -m browser_smoke --timeout 600

test-dashboard: setup ## All tests of the pages in a real Chromium, on live services; screenshots in build/dashboard (5 minutes)
	$(BIN)/python -m pytest -m browser --timeout 1200

pictures: setup ## The pictures of the docs, anew: trainings on eight virtual nodes, and a real Chromium (3 minutes)
	DOCS_PICTURES=docs/pictures $(BIN)/python -m pytest -m browser -n 0 tests/dashboard/test_pictures.py

test-fleet: setup ## Real fleets on virtual nodes: a shared feed, convergence, nodes taken and returned, kills (10 minutes)
	$(BIN)/python -m pytest -m fleet --timeout 1500

# Environments beside the main one, not in it, that see its packages.
define beside
	mkdir -p build
	$(PYTHON) -m venv build/$(1)
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" > \
	  $$(build/$(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/malletrain-environment.pth
endef

build/frameworks/.installed: PACKAGES := $(FRAMEWORKS)
build/frameworks-oldest/.installed: PACKAGES := $(OLDEST_FRAMEWORKS)
build/frameworks/.installed build/frameworks-oldest/.installed: build/%/.installed: $(VENV)/.package
	$(call beside,$*)
	build/$*/bin/python -m pip install --quiet $(PACKAGES)
	touch $@

# litdata without what it asks for: pip would bring another torch.
build/streams/.installed: $(VENV)/.package
	$(call beside,streams)
	build/streams/bin/python -m pip install --quiet --no-deps litdata==0.2.76
	build/streams/bin/python -m pip install --quiet boto3 filelock lightning-utilities obstore requests tifffile urllib3
	touch $@

test-streams: setup build/streams/.installed ## Data of litdata over changes of scale, in an environment of its own (1 minute)
	build/streams/bin/python -m pytest -p no:cacheprovider tests/client/test_chunks.py

test-frameworks: setup build/frameworks/.installed build/frameworks-oldest/.installed ## Lightning, Transformers, Accelerate and trackers over changes of scale, in environments of their own (15 minutes)
	build/frameworks/bin/python -m pytest -p no:cacheprovider tests/frameworks $(ZERO:%=--ignore %)

test-deepspeed: setup build/frameworks/.installed build/frameworks-oldest/.installed ## DeepSpeed's ZeRO, also by Accelerate, over changes of scale, in environments of their own (20 minutes)
	build/frameworks/bin/python -m pytest -p no:cacheprovider $(ZERO)
	build/frameworks-oldest/bin/python -m pytest -p no:cacheprovider tests/frameworks --ignore tests/frameworks/test_live.py \
	  --ignore tests/frameworks/test_trackers.py --ignore tests/frameworks/test_live_trackers.py $(ZERO:%=--ignore %)
	build/frameworks-oldest/bin/python -m pytest -p no:cacheprovider $(ZERO) -k 'three_restarts or refused'

test-gpu: $(VENV)/.package ## Trainings, rescales and checks on this machine's NVIDIA GPU; skipped where torch can use none (5 minutes)
	$(BIN)/python -m pytest -m gpu tests/gpu

test-manual: setup ## The commands of README, quick starts, day 2 and grpcurl cookbook, on live installations (4 minutes)
	$(BIN)/python -m pytest -n 2 --dist load -m manual

test-upgrade: setup ## Services of this version take over trainings of the last release, which must be in the clone (5 minutes)
	$(BIN)/python -m pytest -m upgrade

test-slurm: setup ## A real Slurm on this machine: harvest, preemption, kills, and what the main queue notices (12 minutes; 30 with two releases on a crowded machine)
	@if folder=$$($(BIN)/python -m tests.support.servers slurm); then \
	  PATH=$$folder/bin:$$folder/sbin:$$PATH $(BIN)/python -m pytest -m slurm; \
	elif (($$? == 3)); then \
	  echo "test-slurm: a later release than Debian's is skipped" >&2; \
	else \
	  exit 1; \
	fi
	@if deploy/slurm/install-debian.sh; then \
	  $(BIN)/python -m pytest -m slurm && \
	  $(BIN)/python benchmarks/zero_impact.py --nodes 8 --minutes 0.7 --idle-seconds 10; \
	elif (($$? == 3)); then \
	  echo "test-slurm: skipped" >&2; \
	else \
	  exit 1; \
	fi

test-pbs: setup ## A real OpenPBS on this machine, its nodes as network namespaces: nodes held, given back, kills, foreign jobs, the hook of cgroups (root; 10 minutes; 20 on a crowded machine)
	@if $(BIN)/python -m tests.support.servers pbs; then \
	  $(BIN)/python -m pytest -m pbs; \
	elif (($$? == 3)); then \
	  echo "test-pbs: skipped" >&2; \
	else \
	  exit 1; \
	fi

test-netns: setup ## Head node and nodes as network namespaces: a training over TLS, and what can be read on the way (root)
	$(BIN)/python -m pytest -m netns

test-containers: setup ## Images, and the five services in containers: jobs, kills, day 2, a real Slurm (20 minutes on a crowded machine)
	@deploy/docker/with-engine.sh bash -c 'deploy/docker/collect-wheels.sh $(VENV) build/wheels && \
	  $(MAKE) images WHEELS=build/wheels && $(BIN)/python -m pytest -m containers --timeout 480' || \
	  { (($$? == 77)) && echo "test-containers: skipped" >&2; }

test-faults: setup ## The fault matrix: real faults at random moments, 20 of each (half an hour; taken up where it was interrupted)
	$(BIN)/python benchmarks/faults.py

soak: setup ## A day of Summit's idle nodes in ten minutes, with faults of all kinds; report in build/soak (15 minutes)
	$(BIN)/python benchmarks/soak.py --minutes 10 --jobs 40

soak-short: setup ## The same for two minutes
	$(BIN)/python benchmarks/soak.py --minutes 2 --jobs 14 --gap 4 --out build/soak-short

images: ## The container images; WHEELS=FOLDER with wheels of torch and Horovod
	WHEELS=$(WHEELS) docker compose --profile dashboard --profile monitoring --profile postgres build \
	  --build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null || echo unknown) \
	  scavenger job_manager dashboard prometheus postgres

lock: $(VENV)/.package ## The packages of the images with their hashes; UPGRADE=--upgrade takes the newest
	$(LOCK) deploy/docker/requirements-build.in --output-file deploy/docker/requirements-build.lock
	$(LOCK) pyproject.toml --extra head --extra postgresql --extra tracing --output-file deploy/docker/requirements-head.lock
	$(LOCK) pyproject.toml --extra dashboard --constraints deploy/docker/requirements-head.lock \
	  --output-file deploy/docker/requirements-dashboard.lock
	$(LOCK) deploy/docker/requirements-trainer.in --constraints deploy/docker/requirements-head.lock \
	  --output-file deploy/docker/requirements-trainer.lock

check: $(VENV)/.package ## ruff, mypy, import-linter, buf: style, and against the last release
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy services/malletrain clients/malletrain tools tests benchmarks examples
	$(BIN)/python -m tools.import_contracts
	$(BIN)/buf lint
	$(BIN)/buf breaking --against $(wildcard protos/released/*.txtpb)

release-protos: $(VENV)/.package ## At a release: keep its protos, which those of later versions are checked against
	rm -f protos/released/*.txtpb
	mkdir -p protos/released
	$(BIN)/buf build --exclude-source-info -o protos/released/$(VERSION).txtpb

docs: $(VENV)/.package ## The docs site, in build/site; nothing is fetched from the net
	$(BIN)/python -m tools.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

format: $(VENV)/.package ## Format the code
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

benchmarks: setup ## Every benchmark, printed
	$(BIN)/python benchmarks/admission.py
	$(BIN)/python benchmarks/allocator.py
	$(BIN)/python benchmarks/topology.py
	$(BIN)/python benchmarks/required_groups.py
	$(BIN)/python benchmarks/identity.py
	$(BIN)/python benchmarks/leave.py
	-$(BIN)/python benchmarks/first_batch.py
	-$(BIN)/python benchmarks/demo_share.py
	$(BIN)/python benchmarks/control_loop.py --jobs 20 --nodes 200 --seconds 30
	$(BIN)/python benchmarks/report.py
	$(BIN)/python benchmarks/polling.py
	$(BIN)/python benchmarks/conversion.py
	$(BIN)/python benchmarks/replay.py
	$(BIN)/python benchmarks/gpu_units.py
	$(BIN)/python benchmarks/shared_node.py
	[ ! -e $${MALLETRAIN_SHARED:-../shared}/traces ] || $(BIN)/python benchmarks/studies/horizon.py
	[ ! -e $${MALLETRAIN_SHARED:-../shared}/traces ] || $(BIN)/python benchmarks/studies/horizon_by_day.py
	[ ! -e $${MALLETRAIN_SHARED:-../shared}/traces ] || $(BIN)/python benchmarks/studies/auto_tuning.py
	$(BIN)/python benchmarks/rescale.py
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/sizing.py
	$(BIN)/python benchmarks/selection.py
	$(BIN)/python benchmarks/fleet.py
	$(BIN)/python benchmarks/feed.py
	$(BIN)/python benchmarks/steps.py --rounds 10
	$(BIN)/python benchmarks/joins.py --jobs 100 --nodes 1000 --seconds 10
	$(BIN)/python benchmarks/floods.py
	$(BIN)/python benchmarks/studies/tuning_share.py
	-$(BIN)/python benchmarks/studies/search.py
	-$(BIN)/python benchmarks/studies/ensemble_training.py
	-$(BIN)/python benchmarks/studies/ensemble_training.py --scarce

clean: ## Remove what was built, the environment included
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find protos -name '*_pb2*' -delete
