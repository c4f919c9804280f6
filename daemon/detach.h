/*
 * detach.h - a daemon that owes nothing to the process that started it
 */
#pragma once

/* Goes on in a process of its own (the calling one exits with 0): own session, umask 077, no
 * inherited descriptors but `ready_fd` (-1: none), standard ones on /dev/null, signals, CPU
 * affinity, memory policy and resource limits as if freshly logged in.
 * Returns the number that `ready_fd` has now. Paths must be made absolute before `chdir("/")`,
 * which is left to the caller. */
int detach(int ready_fd);

/* As many descriptors as the system lets us have. */
void detach_raise_limits(void);

/* Tells the starter that clients can connect (`error` NULL), or why not; closes `ready_fd`. Does
 * nothing with -1. */
void detach_report(int ready_fd, const char *error);
