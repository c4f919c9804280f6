/*
 * log.h - lines for whoever called tcx_set_log(); silent otherwise
 */
#pragma once

/* One line, `event=noun.verb key=value ...`, without newline. Keeps errno. */
void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
