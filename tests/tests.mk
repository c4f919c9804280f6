# How everything is checked; included by the Makefile.

# The tests of what is in BUILD; with SANITIZE= on a Python of its own (tests/sanitize).
PACKAGES = TENSORCX_PACKAGES=$(CURDIR)/$(BUILD)/python PYTHONPATH=$(CURDIR)/$(BUILD)/python
PYTEST = $(PACKAGES) $(if $(SANITIZE),$(SANE_OPTIONS) $(SANE),$(VPY)) -m pytest -q -p no:cacheprovider

## check: lint, C tests under sanitizers, Python tests, packaging; under 15 minutes
check: $(VENV)/.ready # with -j a line's targets run at once; what looks at the machine's /dev/shm runs alone
	$(MAKE) -Otarget lint .venv-torch/.ready unit steps
	$(MAKE) -Otarget python-tests fuzz-smoke torch-tests wire-tests step-tests numpy-oldest tool-tests packaging
	$(MAKE) fault-tests

## check-full: check, and whatever takes longer: sanitizers, valgrind, -O0 and -O3, compilers, models, versions (4 hours)
check-full: check
	$(MAKE) thread
	$(MAKE) asan-tests
	$(MAKE) tsan-tests
	$(MAKE) valgrind-tests
	$(MAKE) builds
	$(MAKE) numpy-matrix compat
	$(MAKE) slow-tests
	$(MAKE) model-full

.PHONY: check check-full unit python-tests fault-tests step-tests tool-tests wire-tests slow-tests numpy-oldest numpy-matrix torch-tests packaging compat

# ------------------------------------------------------------------- a CUDA driver without a device
# tests/fakecuda/README.md. Its folder belongs into LD_LIBRARY_PATH; variants lie in folders below.

FAKE     := $(BUILD)/fakecuda
FAKECUDA := $(FAKE)/libcuda.so.1 $(FAKE)/stub/libcuda.so.1 $(FAKE)/missing/libcuda.so.1 $(FAKE)/broken/libcuda.so.1
FAKE_OBJECTS := $(filter-out %/stub.o,$(call objects,tests/fakecuda))
FAKE_LINK = $(CC) $(LINK) -shared -Wl,-soname,libcuda.so.1

$(BUILD)/obj/tests/fakecuda/%.o: INCLUDES = -Iproto/cuda
$(BUILD)/obj/tests/fakecuda/%.o: ALL_CFLAGS += -fPIC

## fakecuda: a libcuda.so.1 for tests, which shares memory between processes and needs no device
.PHONY: fakecuda
fakecuda: $(FAKECUDA)

$(FAKE)/libcuda.so.1: $(FAKE_OBJECTS)
	$(call say,LD)
	@mkdir -p $(@D)
	$(Q)$(FAKE_LINK) -o $@ $^ -lpthread

$(FAKE)/stub/libcuda.so.1: $(BUILD)/obj/tests/fakecuda/stub.o
	$(call say,LD)
	@mkdir -p $(@D)
	$(Q)$(FAKE_LINK) -o $@ $^

$(FAKE)/missing/libcuda.so.1: $(FAKE_OBJECTS) tests/fakecuda/missing.map
	$(call say,LD)
	@mkdir -p $(@D)
	$(Q)$(FAKE_LINK) -Wl,--version-script=tests/fakecuda/missing.map -o $@ $(FAKE_OBJECTS) -lpthread

$(FAKE)/broken/libcuda.so.1:
	@mkdir -p $(@D)
	$(Q): >$@

# ------------------------------------------------------------------------------------------- C
# tests/unit/<layer>/test_*.c: each is a program of its own, linked with all objects of its layer.

UNIT_TESTS := $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/*/test_*.c))

$(BUILD)/obj/tests/unit/proto/%.o:  INCLUDES = -Iproto/wire -Iproto/cuda -Itests/unit
$(BUILD)/obj/tests/unit/fakecuda/%.o: INCLUDES = -Iproto/cuda -Itests/unit -Itests/fakecuda
$(BUILD)/obj/tests/unit/daemon/%.o: INCLUDES = -Iproto/wire -Iproto/shm -Iproto/cuda -Iproto/step -Idaemon -Itests/unit -Itests/fakecuda
$(BUILD)/obj/tests/unit/client/%.o: INCLUDES = -Iproto/wire -Iproto/shm -Iproto/cuda -Iproto/step -Iclient -Iclient/include -Itests/unit -Itests/fakecuda \
                                               -isystem $(DLPACK_INCLUDE)

$(BUILD)/obj/tests/unit/shm/%.o:    INCLUDES = -Iproto/shm -Iproto/step -Itests/unit

UNIT_RUNNER := $(BUILD)/obj/tests/unit/runner.o

$(BUILD)/unit/proto/%: $(BUILD)/obj/tests/unit/proto/%.o $(UNIT_RUNNER) $(PROTO)
	$(call say,LD)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LINK) -o $@ $^ -lpthread -ldl

$(BUILD)/unit/proto/test_cuda_abi: $(BUILD)/obj/tests/unit/proto/cuda_h.o
$(BUILD)/obj/tests/unit/proto/cuda_h.o: INCLUDES += $(addprefix -isystem ,$(wildcard $(CUDA_HOME:%=%/include) $(lastword $(sort $(wildcard /usr/local/cuda*/include)))))

$(BUILD)/unit/fakecuda/%: $(BUILD)/obj/tests/unit/fakecuda/%.o $(UNIT_RUNNER) $(PROTO)
	$(call say,LD)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LINK) -o $@ $^ -lpthread -ldl

# The ring with its steps, at each of which a test can kill.
STEPPED := $(patsubst proto/shm/%.c,$(BUILD)/obj/stepped/%.o,$(wildcard proto/shm/*.c))

$(BUILD)/obj/stepped/%.o: proto/shm/%.c $(BUILD)/flags
	$(call say,CC)
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -DTENSORCX_STEPS -DRING_TESTED -Iproto/step -MMD -MP -c -o $@ $<

$(BUILD)/unit/shm/%: $(BUILD)/obj/tests/unit/shm/%.o $(UNIT_RUNNER) $(STEPPED)
	$(call say,LD)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LINK) -o $@ $^ -lpthread

$(BUILD)/unit/daemon/%: $(BUILD)/obj/tests/unit/daemon/%.o $(UNIT_RUNNER) $(PROTO) $(filter-out %/main.o,$(DAEMON))
	$(call say,LD)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LINK) -o $@ $^ -l:libuv_a.a -lpthread -ldl -lrt

$(BUILD)/unit/client/%: $(BUILD)/obj/tests/unit/client/%.o $(UNIT_RUNNER) $(PROTO) $(CLIENT)
	$(call say,LD)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LINK) -o $@ $^ -lpthread -ldl -lrt

# UNDER= is a program that runs each.
.PHONY: unit-run
unit-run: $(UNIT_TESTS:%=$(BUILD)/unit/%) $(BUILD)/bin/tensorcxd $(FAKECUDA)
	@set -e; FAKECUDA_DIR=$$(mktemp -d /dev/shm/fakecuda-XXXXXX); trap 'rm -rf $$FAKECUDA_DIR' EXIT; \
	export FAKECUDA_DIR LD_LIBRARY_PATH=$(CURDIR)/$(FAKE) TENSORCXD=$(CURDIR)/$(BUILD)/bin/tensorcxd; \
	for t in $(UNIT_TESTS); do echo "== $$t"; $(UNDER) $(BUILD)/unit/$$t; done

## unit: C tests under AddressSanitizer and UBSan
unit:
	$(MAKE) BUILD=build/asan SANITIZE=address,undefined CFLAGS='-O1 -g' WERROR=-Werror unit-run

## thread: C tests of the ring and the client library under ThreadSanitizer
.PHONY: thread
thread:
	$(MAKE) BUILD=build/tsan SANITIZE=thread CFLAGS='-O1 -g' unit-run \
	    UNIT_TESTS='$(filter client/% shm/%,$(UNIT_TESTS))'

# A build in which a test says at which step a process dies or stops (proto/step), and its clients.
## steps: daemon, library and the clients of the tests of every step, with sanitizers, into build/steps
.PHONY: steps steps-build
steps: $(NEEDS_VENV)
	@$(MAKE) BUILD=build/steps STEPS=1 SANITIZE=address,undefined CFLAGS='-O1 -g' steps-build

steps-build: native $(BUILD)/fault/operations $(BUILD)/fault/witness

$(BUILD)/obj/tests/fault/%.o: INCLUDES = -Iclient/include

$(BUILD)/fault/operations: $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard tests/fault/operations*.c))
$(BUILD)/fault/witness: $(BUILD)/obj/tests/fault/witness.o
$(BUILD)/fault/%: $(BUILD)/lib/libtensorcx.so
	$(call say,LD)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LINK) -o $@ $(filter %.o,$^) -Wl,-rpath,'$$ORIGIN/../lib' -L$(BUILD)/lib -ltensorcx -lpthread

include tests/fuzz/fuzz.mk
include tests/sanitize/sanitize.mk

## model: the ring's protocol, exhaustively within bounds (some minutes)
## model-full: the same, larger (an hour, 8 GB); model-mutations: that broken variants are caught
.PHONY: model model-full model-mutations
model model-full model-mutations:
	./bootstrap tools-model
	proto/model/check.sh $(@:model%=%)

# -------------------------------------------------------------------------------------- Python

## python-tests: tests/python with the newest NumPy
python-tests: all fakecuda
	$(PYTEST) -m 'not slow' tests/python

## fault-tests: whatever can go wrong, goes wrong
fault-tests: all fakecuda
	$(PYTEST) -m 'not slow' tests/fault $(addprefix --ignore ,$(STEP_TESTS))

## step-tests: a client, or the daemon, is killed or stopped at every step
STEP_TESTS := $(filter-out %_call_fails.py,$(wildcard tests/fault/test_every_*.py))
step-tests: all fakecuda steps
	$(PYTEST) -m 'not slow' $(STEP_TESTS)

## tool-tests: a moment of the soak; whether bench and check-gpu run
tool-tests: all fakecuda
	$(PYTEST) -m 'not slow' tests/soak tests/bench tests/checkgpu

## soak: half an hour of 64 clients that do everything, come, go and die, beside a model (SECONDS=, SOAK_SEED=)
SECONDS ?= 1800
.PHONY: soak
soak: all fakecuda
	PYTHONPATH=$(BUILD)/python $(VPY) tests/soak/soak.py --seconds $(SECONDS) $(if $(SOAK_SEED),--seed $(SOAK_SEED))

## wire-tests: the protocol, message by message
wire-tests: all fakecuda
	$(PYTEST) -m 'not slow' tests/wire

slow-tests: all fakecuda steps .venv-torch/.ready
	$(PYTEST) -m slow --ignore tests/torch tests
	$(TORCH_PYTEST) -m slow tests/torch

numpy-oldest: all
	tests/numpy_matrix.sh $(BUILD) 1.26.4

numpy-matrix: all
	tests/numpy_matrix.sh $(BUILD) 2.1.3 2.2.6

## torch-tests: the PyTorch bridge, in an environment of its own (.venv-torch, 0.9 GB)
BRIDGE := integrations/torch-tensorcx
TORCH_PYTEST = PYTHONPATH=$(BUILD)/python:$(BRIDGE) .venv-torch/bin/python -m pytest -q -p no:cacheprovider
torch-tests: all fakecuda .venv-torch/.ready
	MYPYPATH=python .venv-torch/bin/python -m mypy --strict --config-file= --cache-dir .mypy_cache/torch \
	    $(BRIDGE)/torch_tensorcx
	$(TORCH_PYTEST) -m 'not slow' tests/torch

.venv-torch/.ready: tools/requirements-torch.txt tools/requirements-nodeps.txt
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install -q --disable-pip-version-check -r tools/requirements-torch.txt
	.venv-torch/bin/python -m pip install -q --disable-pip-version-check --no-deps -r tools/requirements-nodeps.txt
	touch $@

## packaging: pip install . in a fresh environment; autostart works from there
packaging: all
	$(PYTEST) tests/packaging

## compat: one wheel on every Python that is here; DLPack with JAX, onnxruntime and others (.venv-compat, 0.9 GB)
compat: all fakecuda .venv-compat/.ready
	JAX_PLATFORMS=cpu PYTHONPATH=$(BUILD)/python .venv-compat/bin/python -m pytest -q -p no:cacheprovider \
	    tests/python/exchange/test_consumers.py tests/python/exchange/test_their_arrays.py
	$(PYTEST) -rs tests/compat

.venv-compat/.ready: tools/requirements-compat.txt
	$(PYTHON) -m venv .venv-compat
	.venv-compat/bin/python -m pip install -q --disable-pip-version-check -r $<
	touch $@

## check-gpu: what only a CUDA device can show, ten minutes on device 0 (GPU_PYTHON=: one with PyTorch, CuPy, ...)
GPU_PYTHON ?= $(VPY)
.PHONY: check-gpu
check-gpu: all
	@PYTHONPATH=$(BUILD)/python:$(BRIDGE):tests/support $(GPU_PYTHON) tests/checkgpu/checkgpu.py

# ---------------------------------------------------------------------------------------- lint

## lint: formatting, compilers with -Werror, cppcheck, ruff, mypy
lint: $(VENV)/.ready
	./bootstrap tools
	clang-format --dry-run -Werror $(SOURCES)
	$(MAKE) BUILD=build/gcc CC=gcc WERROR=-Werror native build/gcc/python/tensorcx/_core.abi3.so
	$(MAKE) BUILD=build/clang CC=clang WERROR=-Werror native build/clang/python/tensorcx/_core.abi3.so
	cppcheck -q --error-exitcode=1 --std=c11 --enable=warning,performance,portability --inline-suppr \
	    --suppress=missingIncludeSystem --suppress=normalCheckLevelMaxBranches -Iproto/wire -Iproto/shm -Iproto/cuda -Iproto/step -Iclient/include \
	    -j2 proto/wire proto/shm proto/cuda proto/step daemon client python/core
	$(VENV)/bin/ruff check python integrations examples tests tools
	$(VENV)/bin/ruff format --check python integrations examples tests tools
	$(VENV)/bin/mypy

## format: rewrite C and Python sources in the project's style
format: $(VENV)/.ready
	./bootstrap tools
	clang-format -i $(SOURCES)
	$(VENV)/bin/ruff format python integrations examples tests tools
	$(VENV)/bin/ruff check --fix python integrations examples tests tools

# ------------------------------------------------------------------------------------- figures

## bench: what it costs, beside the machine's limits and others; into docs/benchmarks.md (QUICK=1: shorter, only printed)
.PHONY: bench bench-peers
bench: all .venv-torch/.ready $(BUILD)/bench/channel
	$(VPY) tests/bench/bench.py $(if $(QUICK),--quick,--write docs/benchmarks.md)

## scale: what it costs when there is much of everything, some minutes; into docs/benchmarks.md
.PHONY: scale
scale: all
	PYTHONPATH=$(BUILD)/python:tests/support $(VPY) tests/bench/scale.py --write docs/benchmarks.md

## bench-peers: the others that bench measures, in an environment of their own (.venv-peers, 0.9 GB)
bench-peers: .venv-peers/.ready

.venv-peers/.ready: tests/bench/peers.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install -q --disable-pip-version-check -r $<
	touch $@

## bench-ring: what a channel's ring costs in C, beside a bare ring
.PHONY: bench-ring
bench-ring: $(BUILD)/bench/ring
	$<

$(BUILD)/obj/tests/bench/%.o: INCLUDES = -Iproto/shm -Iclient/include

$(BUILD)/bench/ring: $(BUILD)/obj/tests/bench/ring.o $(call objects,proto/shm)
	$(call say,LD)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LINK) -o $@ $^

$(BUILD)/bench/channel: $(BUILD)/obj/tests/bench/channel.o $(BUILD)/lib/libtensorcx.so
	$(call say,LD)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LINK) -o $@ $< -Wl,-rpath,'$$ORIGIN/../lib' -L$(BUILD)/lib -ltensorcx
