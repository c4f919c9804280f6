#include "range.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum { SCAN_FEW = 2, SCAN_MANY = 64, PAGE_UNITS = RANGE_PAGE / RANGE_UNIT };

/* Eight lists per power of two; below 8 units one list per size. */
static unsigned bin_of(uint32_t units) {
    if (units < 8) {
        return units;
    }
    unsigned log2 = 31 - (unsigned)__builtin_clz(units);
    return (log2 - 2) * 8 + (units >> (log2 - 3) & 7);
}

/* The first list in which every range has at least `units`. */
static unsigned bin_for(uint32_t units) {
    if (units < 8) {
        return units;
    }
    unsigned log2 = 31 - (unsigned)__builtin_clz(units);
    return bin_of(units + (1u << (log2 - 3)) - 1);
}

static void insert(struct ranges *ranges, struct range *range) {
    unsigned bin = bin_of(range->units);

    /* At the front: find() must see a new slab even behind many ranges of its size. */
    list_prepend(&ranges->bins[bin], &range->free);
    ranges->filled[bin / 64] |= (uint64_t)1 << bin % 64;
}

static void take_off(struct ranges *ranges, struct range *range) {
    unsigned bin = bin_of(range->units);

    list_remove(&range->free);
    if (list_is_empty(&ranges->bins[bin])) {
        ranges->filled[bin / 64] &= ~((uint64_t)1 << bin % 64);
    }
}

/* Units to skip so that `range` begins at a multiple of `align`, a power of two. */
static uint32_t skip_of(const struct range *range, uint32_t align) {
    return (0 - range->offset) & (align - 1);
}

/* Looks at the first `count` ranges of one list. */
static struct range *scan(struct ranges *ranges, unsigned bin, uint32_t units, uint32_t align,
                          int count) {
    list_for_each (link, &ranges->bins[bin]) {
        struct range *range = container_of(link, struct range, free);
        if (range->units >= units + skip_of(range, align)) {
            return range;
        }
        if (--count == 0) {
            break;
        }
    }
    return NULL;
}

/* The first range of the first list from `bin` up that has one. */
static struct range *first_from(struct ranges *ranges, unsigned bin) {
    for (unsigned word = bin / 64; word < RANGE_BINS / 64; word++) {
        uint64_t bits = ranges->filled[word];
        if (word == bin / 64) {
            bits &= ~(uint64_t)0 << bin % 64;
        }
        if (bits) {
            unsigned first = word * 64 + (unsigned)__builtin_ctzll(bits);
            return container_of(ranges->bins[first].next, struct range, free);
        }
    }
    return NULL;
}

/* First what was given back last, if it has about this size: its pages are in the caches. Then what
 * surely fits. Then what may. */
static struct range *find(struct ranges *ranges, uint32_t units, uint32_t align) {
    unsigned sure = bin_for(units + align - 1);
    struct range *range = scan(ranges, bin_of(units), units, align, SCAN_FEW);

    if (!range) {
        range = first_from(ranges, sure);
    }
    for (unsigned bin = bin_of(units); !range && bin < sure; bin++) {
        range = scan(ranges, bin, units, align, SCAN_MANY);
    }
    return range;
}

/* Makes two ranges, either of which may be NULL, neighbours. */
static void chain(struct range *before, struct range *after) {
    if (before) {
        before->after = after;
    }
    if (after) {
        after->before = before;
    }
}

/* Joins `range` with its right neighbour; both in no list. */
static void join(struct range *range, struct range *right) {
    range->units += right->units;
    chain(range, right->after);
    free(right);
}

void ranges_init(struct ranges *ranges) {
    for (int i = 0; i < RANGE_BINS; i++) {
        list_init(&ranges->bins[i]);
    }
    for (int i = 0; i < RANGE_BINS / 64; i++) {
        ranges->filled[i] = 0;
    }
}

int ranges_add(struct ranges *ranges, struct segment *segment, uint64_t nbytes,
               struct range **ret_whole) {
    struct range *range = malloc(sizeof *range);

    assert(nbytes && nbytes <= RANGE_SPACE_MAX && nbytes % RANGE_PAGE == 0);
    if (!range) {
        return -ENOMEM;
    }
    *range = (struct range){.segment = segment, .units = (uint32_t)(nbytes / RANGE_UNIT)};
    list_init(&range->free);
    insert(ranges, range);
    *ret_whole = range;
    return 0;
}

/* Lets `range` take `units` of the free range `found`, after `skip` of them. What is left before
 * and behind stays free; `found` and, if both are left, `spare` are its blocks. */
static void take_from(struct ranges *ranges, struct range *found, uint32_t skip, uint32_t units,
                      struct range *spare, struct range *range) {
    struct range *after = found->after;
    uint32_t left = found->units - skip - units;

    take_off(ranges, found);
    *range =
        (struct range){.segment = found->segment, .offset = found->offset + skip, .units = units};
    list_init(&range->free);
    if (skip) {
        found->units = skip;
        insert(ranges, found);
        chain(found, range);
    } else {
        chain(found->before, range);
        spare = found;
    }
    chain(range, after);
    if (left) {
        *spare = (struct range){
            .segment = range->segment, .offset = range->offset + units, .units = left};
        chain(range, spare);
        chain(spare, after);
        insert(ranges, spare);
    } else {
        free(spare);
    }
}

bool range_take(struct ranges *ranges, uint64_t nbytes, struct range *range) {
    if (nbytes > RANGE_SPACE_MAX) {
        return false;
    }
    uint32_t align = nbytes >= RANGE_PAGE_FROM ? PAGE_UNITS : 1;
    uint32_t units = (uint32_t)((nbytes + RANGE_UNIT - 1) / RANGE_UNIT);
    /* Whole pages, so that what they leave begins at a page as well. */
    units = (units + align - 1) & ~(align - 1);
    struct range *found = find(ranges, units, align);
    struct range *spare = NULL;

    if (!found) {
        return false;
    }
    uint32_t skip = skip_of(found, align);
    if (skip) {
        spare = malloc(sizeof *spare);
        if (!spare) {
            return false;
        }
    }
    take_from(ranges, found, skip, units, spare, range);
    return true;
}

static int is_free(const struct range *range) {
    return !list_is_empty(&range->free);
}

struct range *range_give(struct ranges *ranges, struct range *range) {
    struct range *before = range->before;
    struct range *after = range->after;

    assert(!is_free(range));
    if (after && is_free(after)) {
        take_off(ranges, after);
        join(range, after);
    }
    if (before && is_free(before)) {
        take_off(ranges, before);
        join(before, range);
        range = before;
    }
    insert(ranges, range);
    return range->before || range->after ? NULL : range;
}

/* The first used one from `range` on, or NULL. */
static struct range *next_used(struct range *range) {
    while (range && is_free(range)) {
        range = range->after;
    }
    return range;
}

struct range *range_give_all(struct ranges *ranges, struct range *range) {
    struct range *whole = NULL;

    while (range->before) {
        range = range->before;
    }
    range = next_used(range);
    while (range) {
        struct range *next = next_used(range->after); /* not freed by giving others back */
        whole = range_give(ranges, range);
        range = next;
    }
    return whole;
}

void range_drop(struct ranges *ranges, struct range *whole) {
    assert(is_free(whole) && !whole->before && !whole->after);
    take_off(ranges, whole);
    free(whole);
}
