# tensorcx: `make help` tells what there is.
#
# The one description of the C build; `pip install .` calls it too (setup.py). Sources are found by
# folder, so a new file needs no line here. The include paths below are the layers: proto knows libc,
# client knows proto, daemon knows proto and libuv, python knows the public header.

VERSION  := 0.1.0
PREFIX   ?= /usr/local
BUILD    ?= build
PYTHON   ?= python3
VENV     ?= .venv
VPY      := $(VENV)/bin/python

CFLAGS   ?= -O2 -g
SANITIZE ?=
STEPS    ?= # 1: daemon and library do at each step what a test plans (proto/step)
WARNINGS := -Wall -Wextra -Wshadow -Wvla -Wmissing-prototypes -Wstrict-prototypes -Wundef \
            -Wpointer-arith -Wimplicit-fallthrough -Wconversion -Wno-sign-conversion $(WERROR)
ALL_CFLAGS := -std=gnu11 -D_GNU_SOURCE -DTENSORCX_VERSION='"$(VERSION)"' -fvisibility=hidden \
              $(WARNINGS) $(CFLAGS) $(if $(STEPS),-DTENSORCX_STEPS) $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all \
              -fno-omit-frame-pointer)
LINK     := $(CFLAGS) $(LDFLAGS) $(if $(SANITIZE),-fsanitize=$(SANITIZE))

# Where setup.py builds, the running interpreter has the headers; here the virtual environment does.
ifeq ($(origin HEADERS_FROM),undefined)
HEADERS_FROM := $(VPY)
NEEDS_VENV   := $(VENV)/.ready
endif
DLPACK_INCLUDE = $(shell $(HEADERS_FROM) -c "import importlib.util as u; print(u.find_spec('tvm_ffi').submodule_search_locations[0] + '/include')")
PYTHON_INCLUDE = $(shell $(HEADERS_FROM) -c "import sysconfig as s; print(s.get_path('include'))")

# `make V=1` shows the commands.
MAKEFLAGS += --no-print-directory
Q        := $(if $(V),,@)
say       = @echo '  $(1) $@'

objects   = $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard $(1)/*.c))
PROTO    := $(call objects,proto/wire) $(call objects,proto/shm) $(call objects,proto/cuda) \
            $(if $(STEPS),$(call objects,proto/step))
DAEMON   := $(call objects,daemon)
CLIENT   := $(call objects,client)
CORE     := $(call objects,python/core)
PACKAGE  := $(BUILD)/python/tensorcx
SOURCES  := $(wildcard proto/*/*.[ch] daemon/*.[ch] client/*.[ch] client/include/*.h \
            python/core/*.[ch] examples/*.c tests/unit/*.[ch] tests/unit/*/*.[ch] tests/fuzz/*.[ch] tests/fault/*.[ch] \
            tests/fakecuda/*.[ch] tests/bench/*.c tests/sanitize/*.c)

$(BUILD)/obj/client/%.o:      INCLUDES = -Iproto/wire -Iproto/shm -Iproto/cuda -Iproto/step -Iclient/include -isystem $(DLPACK_INCLUDE)
$(BUILD)/obj/client/%.o:      ALL_CFLAGS += -fPIC -DTENSORCX_PREFIX='"$(PREFIX)"'
$(BUILD)/obj/proto/%.o:       INCLUDES = -Iproto/step
$(BUILD)/obj/proto/%.o:       ALL_CFLAGS += -fPIC
$(BUILD)/obj/daemon/%.o:      INCLUDES = -Iproto/wire -Iproto/shm -Iproto/cuda -Iproto/step
$(BUILD)/obj/python/core/%.o: INCLUDES = -Iclient/include -isystem $(DLPACK_INCLUDE) -isystem $(PYTHON_INCLUDE)
$(BUILD)/obj/python/core/%.o: ALL_CFLAGS += -fPIC -DPy_LIMITED_API=0x030B0000

.DEFAULT_GOAL := all
.PHONY: all help demo check check-full lint format install clean venv native package FORCE
.SECONDARY:
.DELETE_ON_ERROR:

## all: build daemon, library and Python package into build/
all: native package

## help: this list
help:
	@sed -n 's/^## //p' $(filter Makefile %.mk,$(MAKEFILE_LIST))

# ------------------------------------------------------------------------------------------- build

native: $(BUILD)/bin/tensorcxd $(BUILD)/lib/libtensorcx.so $(BUILD)/lib/pkgconfig/tensorcx.pc

# Rebuild everything when the flags change.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(ALL_CFLAGS) $(PREFIX)' | cmp -s - $@ || echo '$(CC) $(ALL_CFLAGS) $(PREFIX)' >$@

$(BUILD)/obj/%.o: %.c $(BUILD)/flags $(NEEDS_VENV)
	$(call say,CC)
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) $(INCLUDES) -MMD -MP -c -o $@ $<

$(BUILD)/bin/tensorcxd: $(DAEMON) $(PROTO)
	$(call say,LD)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LINK) -o $@ $^ -l:libuv_a.a -lpthread -ldl -lrt

$(BUILD)/lib/libtensorcx.so.0: $(CLIENT) $(PROTO) client/tensorcx.map
	$(call say,LD)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LINK) -shared -Wl,-soname,libtensorcx.so.0 -Wl,-z,nodelete -Wl,--version-script=client/tensorcx.map \
	    $(if $(SANITIZE),,-Wl,-z,defs) -o $@ $(CLIENT) $(PROTO) -lpthread -ldl -lrt

$(BUILD)/lib/libtensorcx.so: $(BUILD)/lib/libtensorcx.so.0
	$(Q)ln -sf libtensorcx.so.0 $@

$(BUILD)/lib/pkgconfig/tensorcx.pc: client/tensorcx.pc.in $(BUILD)/flags
	@mkdir -p $(@D)
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' $< >$@

$(PACKAGE)/_core.abi3.so: $(CORE) $(BUILD)/lib/libtensorcx.so
	$(call say,LD)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LINK) -shared -Wl,-rpath,'$$ORIGIN/lib' -o $@ $(CORE) -L$(BUILD)/lib -ltensorcx

# build/python/tensorcx is what the wheel contains; python/tensorcx holds only its sources.
package: $(PACKAGE)/_core.abi3.so native
	$(Q)mkdir -p $(PACKAGE)/lib $(PACKAGE)/include
	$(Q)rm -f $(PACKAGE)/*.py $(PACKAGE)/*.pyi
	$(Q)cp -p --remove-destination python/tensorcx/*.py python/tensorcx/*.pyi python/tensorcx/py.typed $(PACKAGE)/
	$(Q)cp -u --remove-destination $(BUILD)/lib/libtensorcx.so.0 $(BUILD)/bin/tensorcxd $(PACKAGE)/lib/
	$(Q)cp -u --remove-destination client/include/tensorcx.h $(PACKAGE)/include/

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

# -------------------------------------------------------------------------------- the environment

## venv: Debian packages (with root) and the virtual environment with pinned Python packages
venv: $(VENV)/.ready

$(VENV)/.ready: tools/requirements.txt tools/requirements-nodeps.txt bootstrap
	./bootstrap
	$(PYTHON) -m venv $(VENV)
	$(VPY) -m pip install -q --disable-pip-version-check -r tools/requirements.txt
	$(VPY) -m pip install -q --disable-pip-version-check --no-deps -r tools/requirements-nodeps.txt
	touch $@

# ------------------------------------------------------------------------------------------- usage

## demo: four workers serve sentence embeddings from one copy of a model's weights; then a video goes to three processes
demo: all
	PYTHONPATH=$(BUILD)/python $(VPY) examples/embeddings.py
	@echo
	PYTHONPATH=$(BUILD)/python $(VPY) examples/frames.py

## install: daemon, library, header, pkg-config file, man page and user units under PREFIX (default /usr/local)
install: native
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include \
	    $(DESTDIR)$(PREFIX)/lib/systemd/user $(DESTDIR)$(PREFIX)/share/man/man8
	install -m 755 $(BUILD)/bin/tensorcxd $(DESTDIR)$(PREFIX)/bin/
	install -m 755 $(BUILD)/lib/libtensorcx.so.0 $(DESTDIR)$(PREFIX)/lib/
	ln -sf libtensorcx.so.0 $(DESTDIR)$(PREFIX)/lib/libtensorcx.so
	install -m 644 $(BUILD)/lib/pkgconfig/tensorcx.pc $(DESTDIR)$(PREFIX)/lib/pkgconfig/
	install -m 644 client/include/tensorcx.h $(DESTDIR)$(PREFIX)/include/
	install -m 644 daemon/tensorcxd.8 $(DESTDIR)$(PREFIX)/share/man/man8/
	install -m 644 daemon/systemd/tensorcxd.socket $(DESTDIR)$(PREFIX)/lib/systemd/user/
	sed 's|/usr/local/bin|$(PREFIX)/bin|' daemon/systemd/tensorcxd.service \
	    >$(DESTDIR)$(PREFIX)/lib/systemd/user/tensorcxd.service
	$(if $(DESTDIR),,-ldconfig)

## clean: remove build/ (the virtual environment stays)
clean:
	rm -rf $(BUILD)

include tests/tests.mk
