#include "commit.h"

#include <errno.h>
#include <inttypes.h>

#include "bytes.h"
#include "log.h"
#include "memory.h"
#include "status.h"
#include "step.h"
#include "warm.h"

#define SHARE_PERCENT 95
#define PATIENCE_MS   2000 /* how long clients have to let go of what was given up */

static void commit_step(struct segment *segment);

/* ------------------------------------------------------------------------------------ its end */

/* Gives up a committing segment, and tells its waiters why if there are any. */
static void commit_fail(struct segment *segment, const struct shortage *shortage) {
    struct segments *segments = segment->segments;

    segments->committing -= segment->nbytes - segment->done;
    if (segments->slab == segment) {
        segments->slab = NULL;
    }
    segment_doom(segment);
    if (segments->filling == segment) {
        segments->filling = NULL;
    } else if (shortage) {
        segments->failed(segments->owner, segment, shortage);
    }
    if (segment->piece == 0) { /* else commit_done() will */
        segment_empty(segment);
    }
}

void commit_relieve(struct segments *segments) {
    if (segments->filling) {
        commit_fail(segments->filling, NULL);
    }
    warm_shrink(segments, 0);
}

static void commit_finish(struct segment *segment) {
    struct segments *segments = segment->segments;

    if (segments->slab == segment) {
        segments->slab = NULL;
    }
    segment->state = SEGMENT_LIVE;
    warm_add(segment, NULL);
    log_debug("event=segment.create segment=%" PRIu64 " bytes=%" PRIu64, segment->id,
              segment->nbytes);
    waitlist_wake(&segment->waiters, segments->ready);
    REACHED(SEGMENT_COMMITTED);
}

/* Whether memory is on its way back that is worth waiting for: not for long, where clients still
 * have it mapped. */
static bool may_wait(struct segment *segment) {
    const struct segments *segments = segment->segments;
    uint64_t now_ms = segments->now(segments->owner);

    if (!segment->stalled_since_ms) {
        segment->stalled_since_ms = now_ms;
    }
    return segments->dying > segments->lingering ||
           (segments->lingering > 0 && now_ms < segment->stalled_since_ms + PATIENCE_MS);
}

/* On a device all comes at once: makes it no larger than its waiters need. Whether it was. */
static bool commit_shrink(struct segment *segment) {
    struct segments *segments = segment->segments;
    uint64_t more = segment->nbytes - segment->needed;

    if (!segments->device || segment->nbytes <= segment->needed) {
        return false;
    }
    segments->committed -= more;
    segments->committing -= more;
    segment->nbytes = segment->needed;
    return true;
}

/* There is no memory for the next piece. */
static void commit_short(struct segment *segment, struct shortage shortage) {
    struct segments *segments = segment->segments;

    if (segments->filling == segment) {
        commit_fail(segment, NULL);
        return;
    }
    if (segment->is_slab && segment->done >= segment->needed) {
        segments->committed -= segment->nbytes - segment->done;
        segments->committing -= segment->nbytes - segment->done;
        segment->nbytes = segment->done;
        commit_finish(segment);
        return;
    }
    commit_relieve(segments);
    if (segments->dying == segments->lingering && commit_shrink(segment)) {
        commit_step(segment);
    } else if (may_wait(segment)) {
        list_append(&segments->stalled, &segment->link);
    } else {
        commit_fail(segment, &shortage);
    }
}

/* ---------------------------------------------------------------------------------- its pieces */

static void commit_work(struct job *job) {
    struct segment *segment = (struct segment *)job;
    const struct store *store = segment->backing.store;

    segment->error = store->commit(&segment->backing, segment->done, segment->piece);
}

static void commit_done(struct job *job) {
    struct segment *segment = (struct segment *)job;
    int error = -segment->error;
    uint64_t piece = segment->piece;

    segment->piece = 0;
    if (segment->state == SEGMENT_DYING) { /* given up meanwhile */
        segment_empty(segment);
    } else if (error == 0) {
        segment->done += piece;
        segment->segments->committing -= piece;
        REACHED(PIECE_COMMITTED);
        commit_next(segment);
    } else if (error == ENOSPC || error == ENOMEM) {
        commit_short(segment, (struct shortage){segment->nbytes, error, NULL});
    } else {
        commit_fail(segment, &(struct shortage){segment->nbytes, error, segment->backing.call});
    }
}

static void commit_step(struct segment *segment) {
    segment->piece = bytes_least(segment->backing.store->step, segment->nbytes - segment->done);
    segment->job.work = commit_work;
    segment->job.done = commit_done;
    worker_submit(segment->segments->worker, &segment->job);
}

/* Not the last bytes: that is when the kernel begins to kill. */
uint64_t commit_room(const struct segments *segments, const char **ret_limit) {
    uint64_t share = UINT64_MAX;

    if (segments->root) {
        share = memory_available(segments->root, ret_limit) / 100 * SHARE_PERCENT;
    }
    return share - bytes_least(share, segments->committing);
}

bool commit_is_busy(const struct segments *segments) {
    const struct segment *filling = segments->filling;

    return segments->committing > (filling ? filling->nbytes - filling->done : 0);
}

void commit_next(struct segment *segment) {
    bool is_filling = segment->segments->filling == segment;
    const char *limit;

    if (list_is_empty(&segment->waiters.waiters) && !is_filling) {
        commit_fail(segment, NULL);
    } else if (segment->done == segment->nbytes) {
        commit_finish(segment);
    } else if (is_filling && commit_is_busy(segment->segments)) {
        return; /* reserve_refill() goes on */
    } else if (segment->done == 0 && commit_room(segment->segments, &limit) == 0) {
        commit_short(segment, (struct shortage){segment->nbytes, 0, limit});
    } else {
        commit_step(segment);
    }
}

/* ---------------------------------------------------------------------------------- its begin */

/* Makes room in the capacity for `nbytes`. */
static bool make_room(struct segments *segments, uint64_t nbytes) {
    if (nbytes > segments->capacity) {
        return false;
    }
    if (segments->filling && segments->committed > segments->capacity - nbytes) {
        commit_fail(segments->filling, NULL);
    }
    uint64_t used = segments->committed - segments->warm_nbytes;
    if (used > segments->capacity - nbytes) {
        return false;
    }
    warm_shrink(segments, segments->capacity - nbytes - used);
    return true;
}

/* Bytes that a segment of its own, or a slab in which the storage surely fits, needs at least. */
static uint64_t needed_for(const struct segments *segments, uint64_t nbytes) {
    uint64_t needed =
        bytes_round_up(nbytes, RANGE_PAGE) + (segment_is_large(segments, nbytes) ? 0 : RANGE_PAGE);

    return bytes_round_up(needed, segments->store->unit);
}

/* Bytes to commit for a storage of `nbytes`: as many as one likes, or fewer near the end of the
 * capacity or of the memory, but not less than `needed`. 0: see *ret_shortage. */
static uint64_t choose_size(struct segments *segments, uint64_t nbytes, uint64_t needed,
                            struct shortage *ret_shortage) {
    bool large = segment_is_large(segments, nbytes);
    uint64_t wanted = large ? segment_large_nbytes(segments, nbytes) : segments->slab_nbytes;

    *ret_shortage = (struct shortage){.asked = needed};
    if (!make_room(segments, wanted)) {
        commit_relieve(segments);
        wanted = bytes_least(large ? needed : wanted, segments->capacity - segments->committed);
        wanted = wanted / segments->store->unit * segments->store->unit;
    }
    if (wanted < needed) {
        return 0;
    }
    uint64_t memory = commit_room(segments, &ret_shortage->limit);
    if (memory >= wanted) {
        return wanted;
    }
    commit_relieve(segments);
    if (segments->dying > 0) {
        return wanted; /* it will wait for them */
    }
    return memory >= needed ? memory / RANGE_PAGE * RANGE_PAGE : 0;
}

int commit_begin(struct segments *segments, uint64_t nbytes, struct segment **ret_segment,
                 struct shortage *ret_shortage) {
    uint64_t needed = needed_for(segments, nbytes);
    uint64_t size = choose_size(segments, nbytes, needed, ret_shortage);
    struct segment *segment;
    const char *limit;

    if (size == 0) {
        return STATUS_OUT_OF_MEMORY;
    }
    int r = segment_create(segments, size, &segment);
    if (r < 0) {
        *ret_shortage = (struct shortage){size, -r, NULL};
        return STATUS_OUT_OF_MEMORY;
    }
    segment->is_slab = !segment_is_large(segments, nbytes);
    segment->needed = needed;
    if (segment->is_slab) {
        segments->slab = segment;
    }
    if (segments->dying > 0 && commit_room(segments, &limit) == 0) {
        list_append(&segments->stalled, &segment->link);
    } else {
        commit_step(segment);
    }
    *ret_segment = segment;
    return STATUS_OK;
}

struct segment *commit_join(struct segments *segments, uint64_t nbytes) {
    bool large = segment_is_large(segments, nbytes);
    struct segment *segment = large ? segments->filling : segments->slab;
    uint64_t needed = needed_for(segments, nbytes);

    if (!segment || segment->nbytes < needed || (large && !warm_suits(segment, nbytes))) {
        return NULL;
    }
    segment->needed = needed > segment->needed ? needed : segment->needed;
    if (segments->filling == segment) {
        segments->filling = NULL;
        if (segment->piece == 0) {
            commit_step(segment);
        }
    }
    return segment;
}

void commit_fill(struct segments *segments, uint64_t nbytes, bool is_slab) {
    if (segment_create(segments, nbytes, &segments->filling) == 0) {
        segments->filling->is_slab = is_slab;
        segments->slab = is_slab ? segments->filling : segments->slab;
        commit_step(segments->filling);
    }
}

void commit_fill_on(struct segments *segments) {
    if (segments->filling->piece == 0) {
        commit_step(segments->filling);
    }
}

/* The one that has been stalled for longest, or NULL. */
static struct segment *oldest_stalled(const struct segments *segments) {
    struct segment *oldest = NULL;

    list_for_each (link, &segments->stalled) {
        struct segment *segment = container_of(link, struct segment, link);
        if (!oldest || segment->stalled_since_ms < oldest->stalled_since_ms) {
            oldest = segment;
        }
    }
    return oldest;
}

uint64_t commit_expire(struct segments *segments, uint64_t now_ms) {
    struct segment *segment;

    while (segments->dying == segments->lingering && (segment = oldest_stalled(segments))) {
        uint64_t end_ms = segment->stalled_since_ms + PATIENCE_MS;
        if (end_ms > now_ms) {
            return end_ms;
        }
        list_remove(&segment->link);
        commit_fail(segment, &(struct shortage){segment->nbytes, ENOMEM, NULL});
    }
    return UINT64_MAX;
}
