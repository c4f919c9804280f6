/*
 * autostart.h - start tensorcxd for this user
 */
#pragma once

#include "path.h"

#define AUTOSTART_LOG_SIZE (PATH_SIZE + 8)

struct patience;

/* Where a daemon that is started here for the socket `path` writes its log: "x.log" beside
 * "x.sock". */
void autostart_print_log(const char *path, char ret_log[AUTOSTART_LOG_SIZE]);

/* Starts a daemon that serves `path` and waits until it, or one that was faster, is ready. It is no
 * child of ours afterwards. STATUS_OK, STATUS_UNAVAILABLE (with the daemon's own words),
 * STATUS_TIMEOUT, STATUS_INTERRUPTED, STATUS_SYSTEM. */
int autostart_run(const char *path, const struct patience *patience);
