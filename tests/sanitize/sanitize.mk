# The tests on other builds than the usual one: sanitizers, valgrind, optimisation, compilers; included by tests.mk.
#
# With SANITIZE= daemon, library, extension and fake driver are built with it, and the tests run on a Python that has the
# sanitizers too (python.c). Whatever process finds something writes it into $(REPORTS): nothing is missed when it was a
# child whose exit status nobody looks at.

SANE    := $(BUILD)/venv/bin/python
REPORTS := $(CURDIR)/$(BUILD)/reports
HERE    := $(CURDIR)/tests/sanitize

PYTHON_LIBS = $(shell $(HEADERS_FROM) -c "import sysconfig as s; v = s.get_config_var; d = v('LIBDIR'); print(f'-L{d} -Wl,-rpath,{d} -lpython{v(\"LDVERSION\")}')")

$(BUILD)/obj/tests/sanitize/%.o: INCLUDES = -isystem $(PYTHON_INCLUDE)

$(SANE): $(BUILD)/obj/tests/sanitize/python.o
	$(call say,LD)
	@mkdir -p $(@D)
	$(Q)cp $(VENV)/pyvenv.cfg $(BUILD)/venv/ && ln -sfn $(CURDIR)/$(VENV)/lib $(BUILD)/venv/lib
	$(Q)$(CC) $(LINK) -o $@ $< $(PYTHON_LIBS)

SANE_OPTIONS = CC='$(CC) -fsanitize=$(SANITIZE)' PYTHONMALLOC=malloc ASAN_OPTIONS=verify_asan_link_order=0:log_path=$(REPORTS)/asan \
    UBSAN_OPTIONS=print_stacktrace=1:log_path=$(REPORTS)/ubsan LSAN_OPTIONS=print_suppressions=0:suppressions=$(HERE)/leaks.supp \
    TSAN_OPTIONS=exitcode=0:die_after_fork=0:log_path=$(REPORTS)/tsan:suppressions=$(HERE)/races.supp

# Runs what is given; then there must be no report, but of a search for leaks that says itself that it did not see all threads.
define reporting
	@rm -rf $(REPORTS); mkdir -pm 1777 $(REPORTS)
	$(1); status=$$?; ! find $(REPORTS) -size +0 -type f ! -exec grep -q 'False leaks are possible' {} \; -exec cat {} + | grep . && exit $$status
endef

.PHONY: sane-run valgrind-run build-run asan-tests tsan-tests valgrind-tests builds
sane-run: all fakecuda $(SANE)
	$(call reporting,$(PYTEST) --timeout 600 -m 'not slow and not bare' $(SANE_TESTS))

## asan-tests: Python tests on a build with AddressSanitizer, its search for leaks, and UBSan (those of steps are always)
asan-tests:
	$(MAKE) BUILD=build/asan SANITIZE=address,undefined CFLAGS='-O1 -g' WERROR=-Werror \
	    sane-run SANE_TESTS='tests/wire tests/python $(filter-out $(STEP_TESTS),$(wildcard tests/fault/test_*.py))'

## tsan-tests: those with threads on a build with ThreadSanitizer
tsan-tests:
	$(MAKE) BUILD=build/tsan SANITIZE=thread CFLAGS='-O1 -g' \
	    sane-run SANE_TESTS="$$(grep -rl --include='test_*.py' threading tests/python tests/fault)"

# The sanitizers do not see what is used before it was written: valgrind does. Leaks it looks for in the daemon only: children of
# C tests leave by _exit(), with all they have. And it plays a limit of descriptors by itself.
VALGRIND = valgrind -q --error-exitcode=99 --log-file=$(REPORTS)/%p

## valgrind-tests: C tests of the client, and the daemon in tests of the protocol, under valgrind
valgrind-tests:
	./bootstrap tools-valgrind
	$(MAKE) valgrind-run UNIT_TESTS="$$(echo $$(grep -L RLIMIT_NOFILE tests/unit/client/test_*.c | sed 's|tests/unit/||; s|\.c$$||'))" TEST_TIMEOUT=600

valgrind-run: all fakecuda
	$(call reporting,$(MAKE) unit-run UNDER='$(VALGRIND)')
	$(call reporting,VALGRIND='$(VALGRIND)' TENSORCXD=$(HERE)/valgrind.sh $(PYTEST) --timeout 600 -m 'not slow and not bare' tests/wire)

## builds: C, protocol and Python tests with -O0 and with -O3 -DNDEBUG, by gcc and clang; C tests by clang with its sanitizers
builds:
	./bootstrap tools
	$(MAKE) BUILD=build/clang-asan CC=clang SANITIZE=address,undefined CFLAGS='-O1 -g' WERROR=-Werror unit-run
	for compiler in gcc clang; do for options in '-O0' '-O3 -DNDEBUG'; do \
	    $(MAKE) BUILD=build/$$compiler$${options%% *} CC=$$compiler CFLAGS="$$options -g" WERROR=-Werror build-run || exit 1; \
	done; done

build-run: unit-run wire-tests python-tests
