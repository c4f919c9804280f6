/*
 * daemon.h - what other parts ask the daemon about itself
 */
#pragma once

#include <stdint.h>

#include "tensorcx.h"

struct session;

/* Calls `fn` for each client with a number above `after`, until it says stop. Asks the daemon;
 * waits at most `answer_ns` for each page, 0: as usual. */
int daemon_peers(struct session *session, uint64_t after, int64_t answer_ns, tcx_peer_fn fn,
                 void *context);
