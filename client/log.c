#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "tensorcx.h"

/* Function and context change together. Old sinks are kept: another thread may be in one. */
struct sink {
    tcx_log_fn fn;
    void *context;         /* borrowed: the caller's */
    struct sink *previous; /* owned */
};

static struct sink *_Atomic current;

void tcx_set_log(tcx_log_fn fn, void *context) {
    struct sink *sink = malloc(sizeof *sink);

    if (!sink) {
        return;
    }
    *sink = (struct sink){fn, context, atomic_load(&current)};
    while (!atomic_compare_exchange_weak(&current, &sink->previous, sink)) {
    }
}

void log_line(const char *format, ...) {
    const struct sink *sink = atomic_load(&current);
    int saved = errno;
    char line[1024];
    va_list arguments;

    if (!sink || !sink->fn) {
        return;
    }
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    sink->fn(sink->context, line);
    errno = saved;
}
