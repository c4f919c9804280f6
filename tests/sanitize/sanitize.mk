# The Python tests on sanitized builds; included by tests.mk.
#
# With SANITIZE=... daemon, library, extension and fake driver are built with it, and the tests run on a Python whose process has the
# sanitizers too (python.c). Whatever process of a test finds something writes it into $(BUILD)/reports: so nothing is
# missed when the process was a child whose exit status nobody looks at.

SANE    := $(BUILD)/venv/bin/python
REPORTS := $(CURDIR)/$(BUILD)/reports

PYTHON_LIBS = $(shell $(HEADERS_FROM) -c "import sysconfig as s; v = s.get_config_var; d = v('LIBDIR'); print(f'-L{d} -Wl,-rpath,{d} -lpython{v(\"LDVERSION\")}')")

$(BUILD)/obj/tests/sanitize/%.o: INCLUDES = -isystem $(PYTHON_INCLUDE)

$(SANE): $(BUILD)/obj/tests/sanitize/python.o
	$(call say,LD)
	@mkdir -p $(@D)
	$(Q)cp $(VENV)/pyvenv.cfg $(BUILD)/venv/ && ln -sfn $(CURDIR)/$(VENV)/lib $(BUILD)/venv/lib
	$(Q)$(CC) $(LINK) -o $@ $< $(PYTHON_LIBS)

SANE_OPTIONS = CC='$(CC) -fsanitize=$(SANITIZE)' PYTHONMALLOC=malloc ASAN_OPTIONS=log_path=$(REPORTS)/asan UBSAN_OPTIONS=print_stacktrace=1:log_path=$(REPORTS)/ubsan \
               LSAN_OPTIONS=print_suppressions=0:suppressions=$(CURDIR)/tests/sanitize/leaks.supp \
               TSAN_OPTIONS=exitcode=0:die_after_fork=0:log_path=$(REPORTS)/tsan:suppressions=$(CURDIR)/tests/sanitize/races.supp

.PHONY: sane-run
sane-run: all fakecuda $(SANE)
	@rm -rf $(REPORTS); mkdir -pm 1777 $(REPORTS)
	$(PYTEST) -m 'not slow and not bare' $(SANE_TESTS); status=$$?; ! cat $(REPORTS)/* 2>/dev/null && exit $$status

## asan-tests: Python tests on a build with AddressSanitizer, its search for leaks, and UBSan
.PHONY: asan-tests tsan-tests
asan-tests:
	$(MAKE) BUILD=build/asan SANITIZE=address,undefined CFLAGS='-O1 -g' WERROR=-Werror \
	    sane-run SANE_TESTS='tests/wire tests/python tests/fault'

## tsan-tests: those with threads on a build with ThreadSanitizer
tsan-tests:
	$(MAKE) BUILD=build/tsan SANITIZE=thread CFLAGS='-O1 -g' \
	    sane-run SANE_TESTS="$$(grep -rl --include='test_*.py' threading tests/python tests/fault)"
