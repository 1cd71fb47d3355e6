# Each target sets up what it needs: a fresh machine needs Python 3.11 and make, nothing else.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
UV     := $(shell command -v uv 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help setup fmt lint types layers test test-fast test-vllm demo bench policy-report roundtrip-report calibration-report docs docs-check protos check clean

help:            ## list the targets
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

$(BIN)/.epp-run: pyproject.toml
	@$(MAKE) --no-print-directory venv
	$(INSTALL) -e '.[gateway]'
	@touch $@

$(BIN)/.epp-dev: pyproject.toml $(BIN)/.epp-run
	$(INSTALL) -e '.[gateway,dev]'
	@touch $@

.PHONY: venv
ifneq ($(UV),)
INSTALL := $(UV) pip install -q --python $(BIN)/python
venv:
	@test -x $(BIN)/python || $(UV) venv -q --python $(PYTHON) $(VENV)
else
INSTALL := $(BIN)/python -m pip install -q --disable-pip-version-check
venv:
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
endif

setup: $(BIN)/.epp-dev   ## create the virtual environment and install everything

demo: $(BIN)/.epp-run    ## a real Envoy, three engines, the picker: round robin against the picker
	$(BIN)/epp demo $(ARGS)

bench: $(BIN)/.epp-dev   ## CPU per request and latency; writes build/bench.json
	$(BIN)/epp bench $(ARGS)

policy-report: $(BIN)/.epp-dev ## the policy against all others; TRACES=DIR; writes docs/policy_report.md
	$(BIN)/python -m epp.sim.study $(TRACES) $(ARGS)

calibration-report: $(BIN)/.epp-dev ## the simulator against what was measured; ANCHORS=FILE LOGS="FLEET.yaml=LOG ..."; writes docs/calibration_report.md
	$(BIN)/python -m epp.sim.study.calibration $(ANCHORS) $(addprefix --log ,$(LOGS)) $(ARGS)

roundtrip-report: $(BIN)/.epp-dev ## what recording, fitting and making change of traces; TRACES=FILES
	$(BIN)/python -m epp.sim.study.roundtrip $(TRACES) $(ARGS)

test: $(BIN)/.epp-dev    ## all tests but test-vllm's, the ones with a real Envoy included
	$(BIN)/pytest --ignore=tests/vllm --numprocesses 2 --dist loadfile $(ARGS)

test-vllm: $(BIN)/.epp-dev   ## with real vLLM on the CPU: 3 GB, kept in ~/.cache/epp-tests
	$(BIN)/pytest tests/vllm $(ARGS)

test-fast: $(BIN)/.epp-dev   ## the pure tests only
	$(BIN)/pytest tests/unit tests/property $(ARGS)

fmt: $(BIN)/.epp-dev     ## format and fix
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: $(BIN)/.epp-dev    ## ruff
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(BIN)/.epp-dev   ## mypy --strict
	$(BIN)/mypy

layers: $(BIN)/.epp-dev  ## who may import whom
	$(BIN)/lint-imports

docs: $(BIN)/.epp-dev    ## generate docs/plugins.md, docs/compatibility.md, docs/config.schema.json
	$(BIN)/python -m epp.reference docs

docs-check: $(BIN)/.epp-dev  ## fail if the generated docs are not what the code says
	$(BIN)/python -m epp.reference docs --check

protos:                  ## generate epp/peers/v1 from protos/; in a folder of its own, as it needs an older protobuf
	@test -x build/protos/bin/python || $(PYTHON) -m venv build/protos
	build/protos/bin/python -m pip install -q --disable-pip-version-check 'grpcio-tools==1.80.*'
	build/protos/bin/python -m grpc_tools.protoc -Iprotos --python_out=. --pyi_out=. epp/peers/v1/peers.proto

check: lint types layers docs-check test   ## all of the above but demo, bench and test-vllm

clean:                   ## remove what the targets made
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
