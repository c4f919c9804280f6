/*
 * error.h - what the last failed call of this thread has to say
 *
 * Every function of the library that fails returns an enum status (the same numbers as tcx_status)
 * and has set the text before. Texts say what was asked, what the limit is and what to do.
 */
#pragma once

#include "status.h"

/* Sets this thread's text and returns `status`, so that a caller can write `return error(...)`. */
int error(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same with the status's own text. */
int error_plain(int status);

/* The same for something the operating system refused: "`what`: <text of errno>" and, when this
 * process is out of descriptors or address space, which limit that is. `number` is an errno.
 * Returns STATUS_SYSTEM. */
int error_system(int number, const char *format, ...) __attribute__((format(printf, 2, 3)));
