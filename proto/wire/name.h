/*
 * name.h - what may be a name in the catalog
 */
#pragma once

#include <stddef.h>

/* NULL when `bytes` is a name: 1 to 255 bytes of UTF-8 without control characters. Otherwise a text
 * that says what is wrong. Names are keys, never paths: "/", ".." and blanks have no meaning. */
const char *name_check(const void *bytes, size_t nbytes);

/* Whether the bytes are UTF-8 (shortest forms, no surrogates). */
int text_is_utf8(const void *bytes, size_t nbytes);

/* The same without control characters. */
int text_is_clean(const void *bytes, size_t nbytes);
