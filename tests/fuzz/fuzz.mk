# Random input for everything that reads what others have written; included by tests.mk.
#
# fuzz_*.c: each is a program of its own under libFuzzer, with AddressSanitizer and UBSan. seeds.py makes the first inputs and
# unpacks those in corpus/; what is found to be interesting stays in build/fuzz/corpus until `make fuzz-keep` takes what adds
# to the others into corpus/. fuzz_files.py changes files. An input that fails is written to build/fuzz; the program, given
# its path, repeats it.

FUZZ         := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_SECONDS ?= 150
FUZZ_FLAGS    = -max_total_time=$(FUZZ_SECONDS) -timeout=20 -rss_limit_mb=2048 -max_len=4096 -len_control=10

$(BUILD)/obj/tests/fuzz/%.o: INCLUDES = -Iproto/wire -Iproto/shm -Iproto/cuda -Iproto/step -Iclient -Iclient/include -isystem $(DLPACK_INCLUDE)
$(BUILD)/obj/tests/fuzz/fuzz_daemon.o: INCLUDES = -Iproto/wire -Iproto/shm -Iproto/cuda -Iproto/step -Idaemon
$(BUILD)/obj/tests/fuzz/fuzz_text.o:   INCLUDES = -Iproto/wire -Iproto/shm -Iproto/cuda -Iproto/step -Idaemon

OF_DAEMON := $(PROTO) $(filter-out %/main.o,$(DAEMON))
OF_CLIENT := $(PROTO) $(CLIENT)
$(BUILD)/fuzz/fuzz_daemon: $(OF_DAEMON)
$(BUILD)/fuzz/fuzz_text:   $(OF_DAEMON)
$(BUILD)/fuzz/fuzz_reply:  $(OF_CLIENT)
$(BUILD)/fuzz/fuzz_dlpack: $(OF_CLIENT)
$(BUILD)/fuzz/fuzz_index:  $(OF_CLIENT)
$(BUILD)/fuzz/fuzz_ring:   $(STEPPED) $(BUILD)/obj/client/channel_desc.o $(call objects,proto/wire)

# What a target does in their place: see there.
$(BUILD)/fuzz/fuzz_daemon: LIBRARIES = -Wl,--wrap=closer_start,--wrap=inotify_init1 -l:libuv_a.a
$(BUILD)/fuzz/fuzz_text:   LIBRARIES = -l:libuv_a.a
$(BUILD)/fuzz/fuzz_reply:  LIBRARIES = -Wl,--wrap=ppoll,--wrap=clock_gettime

$(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o
	$(call say,LD)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LINK) -fsanitize=fuzzer -o $@ $^ $(LIBRARIES) -lpthread -ldl -lrt

# With a CUDA driver that needs no device, whose memory lies in a file.
FUZZ_CUDA = LD_LIBRARY_PATH=$(FAKE) FAKECUDA_DIR=$(CURDIR)/$(BUILD)/cuda \
            FAKECUDA_DEVICES=00000000000000000000000000000001:8388608:vfr

.PHONY: fuzz fuzz-smoke fuzz-run fuzz-keep fuzz-keep-run
fuzz-run: $(FUZZ:%=$(BUILD)/fuzz/%) $(FAKE)/libcuda.so.1
	@rm -rf $(BUILD)/seeds $(BUILD)/cuda; mkdir -p $(BUILD)/cuda; PYTHONPATH=tests/support $(PYTHON) tests/fuzz/seeds.py $(BUILD)/seeds
	@set -e; for t in $(FUZZ); do mkdir -p $(BUILD)/corpus/$$t; \
	    $(FUZZ_CUDA) $(BUILD)/fuzz/$$t $(FUZZ_FLAGS) -artifact_prefix=$(BUILD)/$$t- $(BUILD)/corpus/$$t $(BUILD)/seeds/$$t \
	        >$(BUILD)/$$t.log 2>&1 || { cat $(BUILD)/$$t.log; exit 1; }; \
	    echo "== $$t: $$(tail -n 1 $(BUILD)/$$t.log)"; done

MAKE_FUZZ = $(MAKE) BUILD=build/fuzz CC=clang SANITIZE=address,undefined,fuzzer-no-link CFLAGS='-O1 -g' WERROR=-Werror

## fuzz: random input for everything that reads what others have written, 18 minutes; fuzz-smoke: one minute
fuzz-smoke: export FUZZ_SECONDS = 10
fuzz fuzz-smoke: all
	./bootstrap tools
	$(MAKE_FUZZ) fuzz-run
	@PYTHONPATH=$(BUILD)/python:tests/support $(VPY) tests/fuzz/fuzz_files.py $(FUZZ_SECONDS) $(BUILD)/fuzz

fuzz-keep-run: $(FUZZ:%=$(BUILD)/fuzz/%) $(FAKE)/libcuda.so.1
	@rm -rf $(BUILD)/kept $(BUILD)/cuda; mkdir -p $(BUILD)/cuda
	@set -e; for t in $(FUZZ); do mkdir -p $(BUILD)/kept/$$t; \
	    $(FUZZ_CUDA) $(BUILD)/fuzz/$$t -merge=1 -max_len=4096 $(BUILD)/kept/$$t $(BUILD)/seeds/$$t $(BUILD)/corpus/$$t \
	        >$(BUILD)/$$t.log 2>&1; done
	@PYTHONPATH=tests/support $(PYTHON) tests/fuzz/seeds.py --keep $(BUILD)/kept

## fuzz-keep: takes the inputs that fuzz has found, as few as do the same, into tests/fuzz/corpus
fuzz-keep:
	$(MAKE_FUZZ) fuzz-keep-run
