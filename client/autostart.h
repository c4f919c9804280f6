/*
 * autostart.h - start tensorcxd for this user
 */
#pragma once

struct patience;

/* Starts a daemon that serves `path` and waits until it, or one that was faster, is ready. It is no
 * child of ours afterwards. STATUS_OK, STATUS_UNAVAILABLE (with the daemon's own words),
 * STATUS_TIMEOUT, STATUS_INTERRUPTED, STATUS_SYSTEM. */
int autostart_run(const char *path, const struct patience *patience);
