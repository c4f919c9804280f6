/*
 * closer.h - closes descriptors that came from a peer, on threads of its own
 *
 * Closing such a one may block for as long as the peer likes (a socket that lingers, a file over a
 * network). So that is done neither on the loop nor on the worker's threads, where memory is
 * committed for everybody.
 */
#pragma once

#include <stddef.h>

/* Makes the first thread. 0 or a negative errno. */
int closer_start(void);

/* Takes `fds`. Without memory they are closed here and now. */
void closer_close(const int *fds, size_t count);
