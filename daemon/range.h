/*
 * range.h - which bytes of the slabs are free: an allocator whose books lie outside the memory
 *
 * Free ranges are kept in lists by size (two levels, as in TLSF), so that taking and giving back
 * are O(1); neighbours merge at once. Offsets are multiples of 256 bytes, of the page size from 64
 * KiB up. Knows nothing of segments but their address.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "list.h"

#define RANGE_UNIT      256u
#define RANGE_PAGE      4096u
#define RANGE_PAGE_FROM (64u * 1024)        /* ranges from this size up begin at a page */
#define RANGE_SPACE_MAX (16u * 1024 * 1024) /* most bytes of one space */
#define RANGE_BINS      128

struct segment;

/* A used or free part of one segment. Lies first in a block of malloc(): that of a used range
 * belongs to who took it, that of a free one to the allocator. */
struct range {
    struct segment *segment;      /* borrowed: outlives its ranges */
    uint32_t offset, units;       /* in RANGE_UNIT */
    struct range *before, *after; /* neighbours in the segment */
    struct list free;             /* ranges::bins while free; linked to itself while used */
};

struct ranges {
    uint64_t filled[RANGE_BINS / 64]; /* bit per list that is not empty */
    struct list bins[RANGE_BINS];
};

void ranges_init(struct ranges *ranges);

/* Adds the space of `segment`, all of it free: `nbytes`, a multiple of RANGE_PAGE, at most
 * RANGE_SPACE_MAX. *ret_whole is what range_drop() takes. 0 or -ENOMEM. */
int ranges_add(struct ranges *ranges, struct segment *segment, uint64_t nbytes,
               struct range **ret_whole);

/* Takes `nbytes` (not 0) and fills in `range`, which is the caller's. Returns whether there were as
 * many; not, if no free range is large enough or there is no memory for the books. */
bool range_take(struct ranges *ranges, uint64_t nbytes, struct range *range);

/* Gives a range back, and the block it lies in. Returns NULL, or when nothing of its segment is
 * used any more the range that covers all of it, which may be taken off by range_drop(). */
struct range *range_give(struct ranges *ranges, struct range *range);
void range_drop(struct ranges *ranges, struct range *whole);

/* Gives all ranges of `range`'s segment back. Returns the one that covers all of it. */
struct range *range_give_all(struct ranges *ranges, struct range *range);

static inline uint64_t range_offset(const struct range *range) {
    return (uint64_t)range->offset * RANGE_UNIT;
}
