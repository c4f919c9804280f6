/*
 * warm.h - segments that nobody uses, kept for the next storage
 *
 * Two lists: what has been used before, until it is too long ago, and the reserve. Both give way to
 * whoever needs the memory.
 */
#pragma once

#include "segment.h"

/* Whether nobody uses the segment. */
bool warm_has(const struct segment *segment);

/* Adds a live segment that nobody uses; `empty` covers all of a slab, or is NULL. */
void warm_add(struct segment *segment, struct range *empty);

/* The segment is used from now on. */
void warm_remove(struct segment *segment);

/* Whether a large storage fits without wasting more than a quarter. */
bool warm_suits(const struct segment *segment, uint64_t nbytes);

/* The smallest one that suits a large storage of `user` (NULL: of anybody), or NULL. */
struct segment *warm_find(const struct segments *segments, const struct ranges *user,
                          uint64_t nbytes);

/* A slab, with `is_fresh` one that nobody has used yet; or NULL. */
struct segment *warm_find_slab(const struct segments *segments, bool is_fresh);

/* Destroys them, the longest unused first and the reserve last, until at most `keep` bytes are
 * left. */
void warm_shrink(struct segments *segments, uint64_t keep);

/* Destroys what has been unused for too long, but not the reserve. Returns when to call it again,
 * UINT64_MAX: no need. */
uint64_t warm_expire(struct segments *segments, uint64_t now_ms);
