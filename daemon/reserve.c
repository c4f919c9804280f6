#include "reserve.h"

#include "bytes.h"
#include "commit.h"
#include "warm.h"

#define SHARE 16 /* at most this part of the capacity and of the available memory */

/* Bytes of the segment that is missing in reserve, 0: none. */
static uint64_t missing(const struct segments *segments, bool *ret_is_slab) {
    const char *limit;
    uint64_t left = bytes_least(segments->capacity, commit_room(segments, &limit));
    uint64_t wanted = bytes_least(segments->reserve_nbytes, left / SHARE);
    uint64_t slab = segments->slab_nbytes;

    if (wanted < slab) {
        return 0;
    }
    *ret_is_slab = !warm_find_slab(segments, false);
    if (*ret_is_slab) {
        return slab;
    }
    uint64_t large = (wanted - slab) / (slab / 8) * (slab / 8);
    return segment_is_large(segments, large) && !warm_find(segments, NULL, large) ? large : 0;
}

uint64_t reserve_refill(struct segments *segments, uint64_t now_ms) {
    bool is_slab;

    if (commit_is_busy(segments)) {
        return UINT64_MAX; /* what ends that is an event */
    }
    if (segments->filling) {
        commit_fill_on(segments);
        return UINT64_MAX;
    }
    if (now_ms < segments->refill_ms) {
        return segments->refill_ms;
    }
    segments->refill_ms = UINT64_MAX;
    uint64_t nbytes = missing(segments, &is_slab);
    if (nbytes > 0 && nbytes <= segments->capacity - segments->committed) {
        commit_fill(segments, nbytes, is_slab);
    }
    return UINT64_MAX;
}

struct segment *reserve_cut(struct segments *segments, uint64_t nbytes) {
    uint64_t wanted = segment_large_nbytes(segments, nbytes);

    list_for_each (link, &segments->reserve) {
        struct segment *segment = container_of(link, struct segment, link);
        if (!segment->is_slab && segment->nbytes > wanted) {
            uint64_t rest = segment->nbytes - wanted;
            if (segment_cut(segment, wanted) < 0) {
                return NULL;
            }
            segments->warm_nbytes -= rest;
            return segment;
        }
    }
    return NULL;
}
