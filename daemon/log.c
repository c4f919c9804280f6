#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static int log_fd = STDERR_FILENO;
static enum log_level log_level = LOG_INFO;

/* What a client can cause in a loop must not fill the disk: ten lines a second in the long run, and
 * a thousand at once. */
enum { LINE_MS = 100, BURST_MS = 1000 * LINE_MS };
static uint64_t busy_until_ms;
static uint64_t dropped;

static const char *const level_names[] = {"error", "warn", "info", "debug"};

int log_open(const char *path) {
    int fd = STDERR_FILENO;

    if (path) {
        fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0600);
        if (fd < 0) {
            return -errno;
        }
    }
    if (log_fd != STDERR_FILENO) {
        close(log_fd);
    }
    log_fd = fd;
    return 0;
}

void log_set_level(enum log_level level) {
    log_level = level;
}

static bool is_too_much(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t now_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    if (busy_until_ms < now_ms) {
        busy_until_ms = now_ms;
    }
    if (log_level == LOG_DEBUG || busy_until_ms - now_ms <= BURST_MS) {
        busy_until_ms += LINE_MS;
        return false;
    }
    dropped++;
    return true;
}

static void write_line(enum log_level level, const char *format, va_list args) {
    char line[2048];
    struct timespec now;
    struct tm utc;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(line, sizeof line, "time=%Y-%m-%dT%H:%M:%S", &utc);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ level=%s ", now.tv_nsec / 1000000,
                          level_names[level]);
    int more = vsnprintf(line + n, sizeof line - n, format, args);
    n += more < 0 ? 0 : (size_t)more;
    if (n > sizeof line - 1) {
        n = sizeof line - 1;
    }
    line[n] = '\n';
    /* A full disk must not stop the daemon. */
    (void)!write(log_fd, line, n + 1);
}

static void write_dropped(const char *format, ...) {
    va_list args;

    va_start(args, format);
    write_line(LOG_WARN, format, args);
    va_end(args);
}

void log_line(enum log_level level, const char *format, ...) {
    int saved = errno;
    va_list args;

    if (level > log_level || is_too_much()) {
        return;
    }
    if (dropped > 0) {
        write_dropped("event=log.dropped lines=%" PRIu64, dropped);
        dropped = 0;
    }
    va_start(args, format);
    write_line(level, format, args);
    va_end(args);
    errno = saved;
}

const char *log_quote(const void *bytes, size_t nbytes, char *ret_text, size_t capacity) {
    const unsigned char *from = bytes;
    size_t n = 0;

    ret_text[n++] = '"';
    for (size_t i = 0; i < nbytes && n + 6 < capacity; i++) {
        if (from[i] == '"' || from[i] == '\\') {
            ret_text[n++] = '\\';
            ret_text[n++] = (char)from[i];
        } else if (from[i] < 0x20 || from[i] > 0x7e) {
            n += (size_t)snprintf(ret_text + n, capacity - n, "\\x%02x", from[i]);
        } else {
            ret_text[n++] = (char)from[i];
        }
    }
    ret_text[n++] = '"';
    ret_text[n] = 0;
    return ret_text;
}
