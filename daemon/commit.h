/*
 * commit.h - putting memory behind segments, in pieces, and what happens when there is too little
 */
#pragma once

#include "segment.h"

/* Begins to commit a segment in which `nbytes` find room: wait for it in segment->waiters.
 * STATUS_OK, or STATUS_OUT_OF_MEMORY and sets *ret_shortage. */
int commit_begin(struct segments *segments, uint64_t nbytes, struct segment **ret_segment,
                 struct shortage *ret_shortage);

/* The segment that is being committed already and in which `nbytes` will find room, or NULL. */
struct segment *commit_join(struct segments *segments, uint64_t nbytes);

/* Begins to commit one for the reserve, for which nobody waits; and goes on with it. */
void commit_fill(struct segments *segments, uint64_t nbytes, bool is_slab);
void commit_fill_on(struct segments *segments);

/* Goes on with a segment that was stalled. */
void commit_next(struct segment *segment);

/* Gives up those that have been stalled for too long because clients have mapped what was given up.
 * Returns when to call it again, UINT64_MAX: no need. */
uint64_t commit_expire(struct segments *segments, uint64_t now_ms);

/* Gives up all that is committed for nobody. */
void commit_relieve(struct segments *segments);

/* Whether somebody waits for memory. */
bool commit_is_busy(const struct segments *segments);

/* Bytes that may be committed beyond what is being committed already; *ret_limit as in
 * memory_available(). */
uint64_t commit_room(const struct segments *segments, const char **ret_limit);
