/*
 * status.h - how a call ends: enum status, made from status.def
 */
#pragma once

enum status {
#define STATUS(name, value, text, exception) STATUS_##name = (value),
#include "status.def"
#undef STATUS
};

/* A short English text, never NULL; "unknown status" for a value that status.def does not list. */
const char *status_text(int status);

/* Whether status.def lists the value. */
int status_is_known(int status);
