#include "segment.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "memory.h"
#include "status.h"

#define MIB           ((uint64_t)1 << 20)
#define SHARE_PERCENT 95
#define COMMIT_STEP   (4 * MIB) /* a few milliseconds */
#define TRIM_STEP     (64 * MIB)
#define SLAB_MAX      ((uint64_t)RANGE_SPACE_MAX)
#define SLAB_MIN      ((uint64_t)64 * 1024)

static void commit_next(struct segment *segment);
static void commit_done(struct job *job);
static void trim_done(struct job *job);

static uint64_t round_up(uint64_t nbytes, uint64_t unit) {
    return (nbytes + unit - 1) / unit * unit;
}

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static bool is_large(const struct segments *segments, uint64_t nbytes) {
    return nbytes >= segments->slab_nbytes / 2;
}

/* --------------------------------------------------------------------------------- destroy */

static void segment_free(struct segment *segment) {
    close(segment->fd);
    free(segment);
}

/* Memory came back: who found too little of it tries again. */
static void resume_stalled(struct segments *segments) {
    struct list *last = segments->stalled.prev; /* those added meanwhile have to wait again */
    struct list *link = NULL;

    while (segments->dying == 0 && link != last && (link = list_pop(&segments->stalled))) {
        commit_next(container_of(link, struct segment, link));
    }
}

static void trim_work(struct job *job) {
    struct segment *segment = (struct segment *)job;
    const struct store *store = segment->segments->store;

    segment->error = store->trim(segment->fd, segment->done, segment->piece);
}

static void trim_next(struct segment *segment) {
    struct segments *segments = segment->segments;

    if (segment->done < segment->nbytes && !segments->stopping) {
        segment->piece = least(TRIM_STEP, segment->nbytes - segment->done);
        segment->job.work = trim_work;
        segment->job.done = trim_done;
        worker_submit(segments->worker, &segment->job);
        return;
    }
    segments->dying--;
    segment_free(segment);
    resume_stalled(segments);
}

static void trim_done(struct job *job) {
    struct segment *segment = (struct segment *)job;

    if (segment->error < 0) {
        log_warn("event=segment.trim segment=%" PRIu64 " error=\"%s\"", segment->id,
                 strerror(-segment->error));
    }
    segment->done += segment->piece;
    trim_next(segment);
}

/* From here on the memory counts as free, and the segment cannot be found any more. */
static void take_off_books(struct segment *segment) {
    struct segments *segments = segment->segments;

    table_remove(&segments->by_id, segment->id);
    segments->committed -= segment->nbytes;
    segments->destroyed++;
    segments->dying++;
    segment->state = SEGMENT_DYING;
}

/* Gives the memory back, piece by piece. */
static void give_back(struct segment *segment) {
    assert(list_is_empty(&segment->waiters.waiters) && list_is_empty(&segment->link));
    log_debug("event=segment.destroy segment=%" PRIu64 " bytes=%" PRIu64, segment->id,
              segment->nbytes);
    segment->done = 0;
    trim_next(segment);
}

/* ------------------------------------------------------------------------------------ warm */

static bool segment_is_warm(const struct segment *segment) {
    return segment->state == SEGMENT_LIVE && !list_is_empty(&segment->link);
}

static void unwarm(struct segment *segment) {
    assert(segment_is_warm(segment));
    list_remove(&segment->link);
    segment->segments->warm_nbytes -= segment->nbytes;
    segment->empty = NULL;
}

static void destroy_warm(struct segment *segment) {
    struct range *empty = segment->empty;

    unwarm(segment);
    if (empty) {
        range_drop(&segment->segments->ranges, empty);
    }
    take_off_books(segment);
    give_back(segment);
}

/* Destroys warm segments, the longest unused first, until at most `keep` bytes of them are left. */
static void shrink_warm(struct segments *segments, uint64_t keep) {
    while (segments->warm_nbytes > keep) {
        destroy_warm(container_of(segments->warm.next, struct segment, link));
    }
}

static void make_warm(struct segment *segment, struct range *empty) {
    struct segments *segments = segment->segments;

    segment->empty = empty;
    segment->warm_since_ms = segments->now(segments->owner);
    list_append(&segments->warm, &segment->link);
    segments->warm_nbytes += segment->nbytes;
}

uint64_t segments_expire(struct segments *segments, uint64_t now_ms) {
    while (!list_is_empty(&segments->warm)) {
        struct segment *segment = container_of(segments->warm.next, struct segment, link);
        uint64_t end_ms = segment->warm_since_ms + segments->warm_ms;
        if (end_ms > now_ms) {
            return end_ms;
        }
        destroy_warm(segment);
    }
    return UINT64_MAX;
}

/* The smallest warm segment that suits a large storage without wasting more than a quarter. */
static struct segment *find_warm(const struct segments *segments, uint64_t nbytes) {
    struct segment *best = NULL;

    list_for_each (link, &segments->warm) {
        struct segment *segment = container_of(link, struct segment, link);
        if (!segment->is_slab && segment->nbytes >= nbytes &&
            segment->nbytes - nbytes <= segment->nbytes / 4 &&
            (!best || segment->nbytes < best->nbytes)) {
            best = segment;
        }
    }
    return best;
}

/* ---------------------------------------------------------------------------------- commit */

/* Gives up a committing segment, and tells its waiters why if there are any. */
static void commit_fail(struct segment *segment, const struct shortage *shortage) {
    struct segments *segments = segment->segments;

    segments->committing -= segment->nbytes - segment->done;
    if (segments->slab == segment) {
        segments->slab = NULL;
    }
    take_off_books(segment);
    if (shortage) {
        segments->failed(segments->owner, segment, shortage);
    }
    give_back(segment);
}

static void commit_finish(struct segment *segment) {
    struct segments *segments = segment->segments;
    int r = segments->store->finish(segment->fd, segment->nbytes);

    if (r == 0 && segment->is_slab) {
        r = ranges_add(&segments->ranges, segment, segment->nbytes, &segment->empty);
    }
    if (r < 0) {
        commit_fail(segment, &(struct shortage){segment->nbytes, -r, NULL});
        return;
    }
    if (segments->slab == segment) {
        segments->slab = NULL;
    }
    segment->state = SEGMENT_LIVE;
    make_warm(segment, segment->empty);
    log_debug("event=segment.create segment=%" PRIu64 " bytes=%" PRIu64, segment->id,
              segment->nbytes);
    waitlist_wake(&segment->waiters, segments->ready);
}

/* There is no memory for the next piece. */
static void commit_short(struct segment *segment, struct shortage shortage) {
    struct segments *segments = segment->segments;

    if (segment->is_slab && segment->done >= segment->needed) {
        segments->committed -= segment->nbytes - segment->done;
        segments->committing -= segment->nbytes - segment->done;
        segment->nbytes = segment->done;
        commit_finish(segment);
        return;
    }
    shrink_warm(segments, 0);
    if (segments->dying > 0) {
        list_append(&segments->stalled, &segment->link);
        return;
    }
    commit_fail(segment, &shortage);
}

static void commit_work(struct job *job) {
    struct segment *segment = (struct segment *)job;
    const struct store *store = segment->segments->store;

    segment->error = store->commit(segment->fd, segment->done, segment->piece);
}

static void commit_step(struct segment *segment) {
    segment->piece = least(COMMIT_STEP, segment->nbytes - segment->done);
    segment->job.work = commit_work;
    segment->job.done = commit_done;
    worker_submit(segment->segments->worker, &segment->job);
}

/* Bytes that may still be committed beyond what is being committed already. Not the last ones: that
 * is when the kernel begins to kill. */
static uint64_t memory_left(const struct segments *segments, const char **ret_limit) {
    uint64_t share = memory_available(segments->root, ret_limit) / 100 * SHARE_PERCENT;

    return share - least(share, segments->committing);
}

static void commit_next(struct segment *segment) {
    const char *limit;

    if (list_is_empty(&segment->waiters.waiters)) {
        commit_fail(segment, NULL);
    } else if (segment->done == segment->nbytes) {
        commit_finish(segment);
    } else if (segment->done == 0 && memory_left(segment->segments, &limit) == 0) {
        commit_short(segment, (struct shortage){segment->nbytes, 0, limit});
    } else {
        commit_step(segment);
    }
}

static void commit_done(struct job *job) {
    struct segment *segment = (struct segment *)job;
    int error = -segment->error;

    if (error == 0) {
        segment->done += segment->piece;
        segment->segments->committing -= segment->piece;
        commit_next(segment);
    } else if (error == ENOSPC || error == ENOMEM) {
        commit_short(segment, (struct shortage){segment->nbytes, error, NULL});
    } else {
        commit_fail(segment, &(struct shortage){segment->nbytes, error, NULL});
    }
}

/* Makes room in the capacity for `nbytes`. */
static bool make_room(struct segments *segments, uint64_t nbytes) {
    if (nbytes > segments->capacity) {
        return false;
    }
    uint64_t used = segments->committed - segments->warm_nbytes;
    if (used > segments->capacity - nbytes) {
        return false;
    }
    shrink_warm(segments, segments->capacity - nbytes - used);
    return true;
}

static int segment_create(struct segments *segments, uint64_t nbytes,
                          struct segment **ret_segment) {
    struct segment *segment = calloc(1, sizeof *segment);

    if (!segment) {
        return -ENOMEM;
    }
    segment->id = segments->next_id + 1;
    int r = table_set(&segments->by_id, segment->id, segment);
    if (r == 0) {
        r = segments->store->create(nbytes, &segment->fd);
        if (r < 0) {
            table_remove(&segments->by_id, segment->id);
        }
    }
    if (r < 0) {
        free(segment);
        return r;
    }
    segments->next_id++;
    segment->segments = segments;
    segment->nbytes = nbytes;
    list_init(&segment->link);
    waitlist_init(&segment->waiters, NULL);
    segments->committed += nbytes;
    segments->committing += nbytes;
    *ret_segment = segment;
    return 0;
}

/* Bytes that a segment of its own, or a slab in which the storage surely fits, needs at least. */
static uint64_t needed_for(const struct segments *segments, uint64_t nbytes) {
    return round_up(nbytes, RANGE_PAGE) + (is_large(segments, nbytes) ? 0 : RANGE_PAGE);
}

/* Bytes to commit for a storage of `nbytes`: as many as one likes, or fewer near the end of the
 * capacity or of the memory, but not less than `needed`. 0: see *ret_shortage. */
static uint64_t choose_size(struct segments *segments, uint64_t nbytes, uint64_t needed,
                            struct shortage *ret_shortage) {
    bool large = is_large(segments, nbytes);
    uint64_t wanted = large ? round_up(nbytes, segments->slab_nbytes / 16) : segments->slab_nbytes;

    *ret_shortage = (struct shortage){.asked = needed};
    if (!make_room(segments, wanted)) {
        shrink_warm(segments, 0);
        wanted = least(large ? needed : wanted, segments->capacity - segments->committed);
        wanted = wanted / RANGE_PAGE * RANGE_PAGE;
    }
    if (wanted < needed) {
        return 0;
    }
    uint64_t memory = memory_left(segments, &ret_shortage->limit);
    if (memory >= wanted) {
        return wanted;
    }
    shrink_warm(segments, 0);
    if (segments->dying > 0) {
        return wanted; /* it will wait for them */
    }
    return memory >= needed ? memory / RANGE_PAGE * RANGE_PAGE : 0;
}

/* Begins to commit a segment in which `nbytes` find room. */
static int commit_begin(struct segments *segments, uint64_t nbytes, struct segment **ret_segment,
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
    segment->is_slab = !is_large(segments, nbytes);
    segment->needed = needed;
    if (segment->is_slab) {
        segments->slab = segment;
    }
    if (segments->dying > 0 && memory_left(segments, &limit) == 0) {
        list_append(&segments->stalled, &segment->link);
    } else {
        commit_step(segment);
    }
    *ret_segment = segment;
    return STATUS_OK;
}

/* ------------------------------------------------------------------------------------- use */

static int take_large(struct segments *segments, uint64_t nbytes, struct range *range) {
    struct segment *segment = find_warm(segments, nbytes);

    if (!segment) {
        return -EAGAIN;
    }
    unwarm(segment);
    *range = (struct range){.segment = segment};
    return STATUS_OK;
}

static int take_small(struct segments *segments, uint64_t nbytes, struct range *range) {
    if (!range_take(&segments->ranges, nbytes, range)) {
        return -EAGAIN;
    }
    if (segment_is_warm(range->segment)) {
        unwarm(range->segment);
    }
    return STATUS_OK;
}

int segments_take(struct segments *segments, uint64_t nbytes, struct range *range,
                  struct waitlist **ret_wait, struct shortage *ret_shortage) {
    bool large = is_large(segments, nbytes);
    struct segment *segment = segments->slab;

    if (nbytes > segments->capacity) {
        *ret_shortage = (struct shortage){.asked = nbytes};
        return STATUS_OUT_OF_MEMORY;
    }
    int r = large ? take_large(segments, nbytes, range) : take_small(segments, nbytes, range);
    if (r != -EAGAIN) {
        return r;
    }
    uint64_t needed = needed_for(segments, nbytes);
    if (!large && segment && segment->nbytes >= needed) {
        segment->needed = needed > segment->needed ? needed : segment->needed;
    } else {
        r = commit_begin(segments, nbytes, &segment, ret_shortage);
        if (r != STATUS_OK) {
            return r;
        }
    }
    *ret_wait = &segment->waiters;
    return -EAGAIN;
}

void segments_give(struct segments *segments, struct range *range) {
    struct segment *segment = range->segment;
    struct range *empty = NULL;

    if (segment->is_slab) {
        empty = range_give(&segments->ranges, range);
        if (!empty) {
            return;
        }
    } else {
        free(range);
    }
    make_warm(segment, empty);
    shrink_warm(segments, segments->stopping ? 0 : segments->capacity / 4);
}

struct segment *segments_find(const struct segments *segments, uint64_t id) {
    struct segment *segment =
        id && id <= segments->next_id ? table_find(&segments->by_id, id) : NULL;

    return segment && segment->state == SEGMENT_LIVE ? segment : NULL;
}

void segments_init(struct segments *segments) {
    uint64_t slab = segments->capacity / 8 / SLAB_MIN * SLAB_MIN;

    segments->slab_nbytes = least(slab > SLAB_MIN ? slab : SLAB_MIN, SLAB_MAX);
    table_init(&segments->by_id);
    ranges_init(&segments->ranges);
    list_init(&segments->warm);
    list_init(&segments->stalled);
}

void segments_stop(struct segments *segments) {
    segments->stopping = true;
    shrink_warm(segments, 0);
}

void segments_fini(struct segments *segments) {
    assert(segments->by_id.count == 0 && segments->dying == 0);
    assert(segments->committed == 0 && segments->committing == 0 && segments->warm_nbytes == 0);
    assert(list_is_empty(&segments->warm) && list_is_empty(&segments->stalled));
    table_fini(&segments->by_id);
}
