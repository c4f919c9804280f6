/*
 * log.h - one line per event: time=... level=... event=noun.verb key=value ...
 *
 * Goes to stderr or to a file. What a peer said is escaped by log_quote() before it is logged.
 */
#pragma once

#include <stddef.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* Appends to the file `path` (made with mode 0600) from now on; NULL: stderr. 0 or a negative
 * errno. */
int log_open(const char *path);
void log_set_level(enum log_level level);

/* Writes one line, in one piece. `format` begins with "event=". Keeps errno. Many in a short time
 * are dropped, and counted in a line (not at LOG_DEBUG). */
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

/* Puts `bytes` in quotes with everything unprintable escaped; cut to fit. Returns ret_text. */
const char *log_quote(const void *bytes, size_t nbytes, char *ret_text, size_t capacity);
