/*
 * connect.h - from a path to a session: find the daemon, check whose it is, say HELLO
 */
#pragma once

struct patience;
struct session;

/* Connects to the daemon at `path`, and starts one there if none answers and `autostarts`. Waits.
 * STATUS_OK and a session with one reference; STATUS_UNAVAILABLE, STATUS_DENIED, STATUS_VERSION,
 * STATUS_TIMEOUT, STATUS_INTERRUPTED, STATUS_SYSTEM, STATUS_OUT_OF_MEMORY. */
int connect_session(const char *path, const struct patience *patience, int autostarts,
                    struct session **ret_session);
