#include "warm.h"

#include <assert.h>

#include "step.h"

#define REFILL_MS 1000 /* how long nothing must have been taken before the reserve is refilled */

bool warm_has(const struct segment *segment) {
    return segment->state == SEGMENT_LIVE && !list_is_empty(&segment->link);
}

void warm_remove(struct segment *segment) {
    assert(warm_has(segment));
    list_remove(&segment->link);
    segment->segments->warm_nbytes -= segment->nbytes;
    segment->segments->refill_ms = segment->segments->now(segment->segments->owner) + REFILL_MS;
    segment->empty = NULL;
}

static void destroy(struct segment *segment) {
    struct range *empty = segment->empty;

    warm_remove(segment);
    if (empty) {
        range_drop(segment->user, empty);
    }
    segment_doom(segment);
    segment_empty(segment);
}

void warm_shrink(struct segments *segments, uint64_t keep) {
    while (segments->warm_nbytes > keep) {
        struct list *from = list_is_empty(&segments->warm) ? &segments->reserve : &segments->warm;
        destroy(container_of(from->next, struct segment, link));
    }
}

void warm_add(struct segment *segment, struct range *empty) {
    struct segments *segments = segment->segments;

    segment->empty = empty;
    segment->warm_since_ms = segments->now(segments->owner);
    if (segments->filling == segment) {
        segments->filling = NULL;
        segments->refill_ms = 0; /* there may be more to do */
        list_append(&segments->reserve, &segment->link);
    } else {
        list_append(&segments->warm, &segment->link);
    }
    segments->warm_nbytes += segment->nbytes;
    REACHED(SEGMENT_WARM);
}

uint64_t warm_expire(struct segments *segments, uint64_t now_ms) {
    while (!list_is_empty(&segments->warm)) {
        struct segment *segment = container_of(segments->warm.next, struct segment, link);
        uint64_t end_ms = segment->warm_since_ms + segments->warm_ms;
        if (end_ms > now_ms) {
            return end_ms;
        }
        destroy(segment);
    }
    return UINT64_MAX;
}

bool warm_suits(const struct segment *segment, uint64_t nbytes) {
    return !segment->is_slab && segment->nbytes >= nbytes &&
           segment->nbytes - nbytes <= segment->nbytes / 4;
}

/* One that `user` may be given; NULL: whosoever it is. */
static struct segment *find_smallest(const struct list *list, const struct ranges *user,
                                     uint64_t nbytes) {
    struct segment *best = NULL;

    list_for_each (link, list) {
        struct segment *segment = container_of(link, struct segment, link);
        bool is_free = !user || !segment->user || segment->user == user;
        if (is_free && warm_suits(segment, nbytes) && (!best || segment->nbytes < best->nbytes)) {
            best = segment;
        }
    }
    return best;
}

struct segment *warm_find(const struct segments *segments, const struct ranges *user,
                          uint64_t nbytes) {
    struct segment *segment = find_smallest(&segments->warm, user, nbytes);

    return segment ? segment : find_smallest(&segments->reserve, user, nbytes);
}

struct segment *warm_find_slab(const struct segments *segments, bool is_fresh) {
    const struct list *lists[] = {&segments->warm, &segments->reserve};

    for (int i = 0; i < 2; i++) {
        list_for_each (link, lists[i]) {
            struct segment *segment = container_of(link, struct segment, link);
            if (segment->is_slab && !(is_fresh && segment->user)) {
                return segment;
            }
        }
    }
    return NULL;
}
