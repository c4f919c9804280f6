/*
 * ring_lock.h - the one lock of a ring: 0, or its owner's client number; bit 31 is "somebody waits"
 *
 * Client numbers are never used twice, so the daemon can take the lock from a client that is gone,
 * and from nobody else. It never takes the lock itself.
 */
#pragma once

#include "ring.h"

/* OK; AGAIN after a slice or a signal, LOCKED when the deadline is over as well (0 waits a
 * slice: the lock is held for less than that, unless its owner is stopped; what is over already
 * waits only as long as an owner who runs needs); BROKEN, also when it is nobody's. */
enum ring_result ring_lock(struct ring *ring, uint64_t deadline_ns);

void ring_unlock(struct ring *ring);

/* The daemon: the owner is really gone. */
void ring_lock_repair(struct ring *ring, uint32_t client);

/* The owner's client number, or 0. */
uint32_t ring_lock_owner(const struct ring *ring);
