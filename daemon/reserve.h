/*
 * reserve.h - memory made while nothing else is to be done, so that first storages need not wait
 *
 * It is a slab and, with the rest of `reserve_nbytes`, one large segment; made unless something
 * like them is warm, and not when memory is scarce.
 */
#pragma once

#include "segment.h"

/* Commits what is missing while nobody waits for memory. To be called after each event; returns
 * when to call it in any case, UINT64_MAX: no need. */
uint64_t reserve_refill(struct segments *segments, uint64_t now_ms);

/* A large segment of the reserve that is larger than wanted, cut to size; what is behind is given
 * back. NULL: there is none, or no descriptor. */
struct segment *reserve_cut(struct segments *segments, uint64_t nbytes);
