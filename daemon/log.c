#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static int log_fd = STDERR_FILENO;
static enum log_level log_level = LOG_INFO;

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

void log_line(enum log_level level, const char *format, ...) {
    char line[2048];
    struct timespec now;
    struct tm utc;
    va_list args;
    int saved = errno;

    if (level > log_level) {
        return;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(line, sizeof line, "time=%Y-%m-%dT%H:%M:%S", &utc);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ level=%s ", now.tv_nsec / 1000000,
                          level_names[level]);
    va_start(args, format);
    int more = vsnprintf(line + n, sizeof line - n, format, args);
    va_end(args);
    n += more < 0 ? 0 : (size_t)more;
    if (n > sizeof line - 1) {
        n = sizeof line - 1;
    }
    line[n] = '\n';
    /* A full disk must not stop the daemon. */
    (void)!write(log_fd, line, n + 1);
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
