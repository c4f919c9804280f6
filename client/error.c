#include "error.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "messages.h"
#include "tensorcx.h"

#define SAME(public_name, name) _Static_assert((int)(public_name) == (int)(name), #name)
SAME(TCX_OK, STATUS_OK);
SAME(TCX_NOT_FOUND, STATUS_NOT_FOUND);
SAME(TCX_EXISTS, STATUS_EXISTS);
SAME(TCX_OUT_OF_MEMORY, STATUS_OUT_OF_MEMORY);
SAME(TCX_LIMIT, STATUS_LIMIT);
SAME(TCX_TIMEOUT, STATUS_TIMEOUT);
SAME(TCX_CANCELLED, STATUS_CANCELLED);
SAME(TCX_STALE, STATUS_STALE);
SAME(TCX_INVALID, STATUS_INVALID);
SAME(TCX_UNAVAILABLE, STATUS_UNAVAILABLE);
SAME(TCX_LOST, STATUS_LOST);
SAME(TCX_VERSION_MISMATCH, STATUS_VERSION);
SAME(TCX_DENIED, STATUS_DENIED);
SAME(TCX_EXCHANGE, STATUS_EXCHANGE);
SAME(TCX_SYSTEM, STATUS_SYSTEM);
SAME(TCX_INTERNAL, STATUS_INTERNAL);
SAME(TCX_INTERRUPTED, STATUS_INTERRUPTED);
SAME(TCX_CLOSED, STATUS_CLOSED);
SAME(TCX_DEVICE, STATUS_DEVICE);

static _Thread_local char last[WIRE_TEXT_MAX + 256];

int error(int status, const char *format, ...) {
    va_list arguments;
    char text[sizeof last]; /* an argument may be the last text itself */

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    strcpy(last, text);
    return status;
}

int error_plain(int status) {
    return error(status, "%s", status_text(status));
}

/* Appends the limit that was probably met. */
static void explain(int number, char *text, size_t capacity) {
    struct rlimit limit;
    size_t length = strlen(text);

    if (number == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        snprintf(text + length, capacity - length,
                 "; this process may have %" PRIu64 " open descriptors (RLIMIT_NOFILE): close some "
                 "or raise it with ulimit -n, up to %" PRIu64,
                 (uint64_t)limit.rlim_cur, (uint64_t)limit.rlim_max);
    } else if (number == ENOMEM && getrlimit(RLIMIT_AS, &limit) == 0) {
        snprintf(text + length, capacity - length,
                 "; this process's address space (RLIMIT_AS) or number of mappings "
                 "(vm.max_map_count) is used up%s",
                 limit.rlim_cur == RLIM_INFINITY ? "" : ": raise it with ulimit -v");
    }
}

int error_system(int number, const char *format, ...) {
    char what[512];
    char text[sizeof last];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    snprintf(text, sizeof text, "%s: %s", what, strerror(number));
    explain(number, text, sizeof text);
    return error(STATUS_SYSTEM, "%s", text);
}

const char *tcx_error(void) {
    return last[0] ? last : "no call has failed on this thread";
}

const char *tcx_status_text(int status) {
    return status_text(status);
}

const char *tcx_version(void) {
    return TCX_VERSION;
}
