#include "segment.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "bytes.h"
#include "commit.h"
#include "log.h"
#include "reserve.h"
#include "status.h"
#include "step.h"
#include "warm.h"

#define SLAB_MAX ((uint64_t)RANGE_SPACE_MAX)
#define SLAB_MIN ((uint64_t)64 * 1024)

static void trim_done(struct job *job);

/* ---------------------------------------------------------------------------------- one segment */

int segment_create(struct segments *segments, uint64_t nbytes, struct segment **ret_segment) {
    struct segment *segment = calloc(1, sizeof *segment);

    if (!segment) {
        return -ENOMEM;
    }
    segment->id = (uint64_t)segments->device << SEGMENT_DEVICE_SHIFT | (segments->next_id + 1);
    segment->backing = (struct backing){.store = segments->store, .fd = -1};
    int r = table_set(&segments->by_id, segment->id, segment);
    if (r == 0) {
        r = segments->store->create(&segment->backing, nbytes);
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
    REACHED(SEGMENT_CREATED);
    *ret_segment = segment;
    return 0;
}

static void segment_free(struct segment *segment) {
    if (segment->backing.fd >= 0) {
        close(segment->backing.fd);
    }
    free(segment);
}

/* Memory came back: who found too little of it tries again. */
static void resume_stalled(struct segments *segments) {
    struct list *last = segments->stalled.prev; /* those added meanwhile have to wait again */
    struct list *link = NULL;

    while (segments->dying == segments->lingering && link != last &&
           (link = list_pop(&segments->stalled))) {
        commit_next(container_of(link, struct segment, link));
    }
}

static void trim_work(struct job *job) {
    struct segment *segment = (struct segment *)job;
    const struct store *store = segment->backing.store;

    segment->error = store->trim(&segment->backing, segment->done, segment->piece);
}

static void trim_next(struct segment *segment) {
    struct segments *segments = segment->segments;

    if (segment->done < segment->nbytes && !segments->stopping) {
        segment->piece = bytes_least(segments->store->trim_step, segment->nbytes - segment->done);
        segment->job.work = trim_work;
        segment->job.done = trim_done;
        worker_submit(segments->worker, &segment->job);
        return;
    }
    segments->dying--;
    segment_free(segment);
    REACHED(SEGMENT_FREED);
    resume_stalled(segments);
}

static void trim_done(struct job *job) {
    struct segment *segment = (struct segment *)job;
    char text[STORE_TEXT_SIZE];

    if (segment->error < 0) {
        log_warn("event=segment.trim segment=%" PRIu64 " error=\"%s\"", segment->id,
                 store_text(-segment->error, text));
    }
    segment->done += segment->piece;
    REACHED(PIECE_EMPTIED);
    trim_next(segment);
}

void segment_doom(struct segment *segment) {
    struct segments *segments = segment->segments;

    table_remove(&segments->by_id, segment->id);
    segments->committed -= segment->nbytes;
    segments->destroyed++;
    segments->dying++;
    segment->state = SEGMENT_DYING;
    REACHED(SEGMENT_DOOMED);
}

void segment_empty(struct segment *segment) {
    assert(list_is_empty(&segment->waiters.waiters) && list_is_empty(&segment->link));
    log_debug("event=segment.destroy segment=%" PRIu64 " bytes=%" PRIu64, segment->id,
              segment->nbytes);
    segment->done = 0;
    if (segment->importers == 0) {
        trim_next(segment);
        return;
    }
    segment->state = SEGMENT_LINGERING;
    segment->segments->lingering++;
    segment->segments->lingering_nbytes += segment->nbytes;
}

void segment_import(struct segment *segment) {
    segment->importers++;
}

void segment_unimport(struct segment *segment) {
    assert(segment->importers > 0);
    if (--segment->importers == 0 && segment->state == SEGMENT_LINGERING) {
        segment->state = SEGMENT_DYING;
        segment->segments->lingering--;
        segment->segments->lingering_nbytes -= segment->nbytes;
        trim_next(segment);
    }
}

int segment_cut(struct segment *segment, uint64_t nbytes) {
    struct segments *segments = segment->segments;
    struct segment *rest = calloc(1, sizeof *rest);
    int fd = rest ? fcntl(segment->backing.fd, F_DUPFD_CLOEXEC, 0) : -1;

    if (fd < 0) {
        free(rest);
        return -ENOMEM;
    }
    rest->segments = segments;
    rest->id = segment->id;
    rest->backing = (struct backing){.store = segments->store, .fd = fd};
    rest->state = SEGMENT_DYING;
    rest->nbytes = segment->nbytes;
    rest->done = nbytes;
    segments->committed -= segment->nbytes - nbytes;
    segments->dying++;
    segment->nbytes = nbytes;
    trim_next(rest);
    return 0;
}

/* ------------------------------------------------------------------------------------- use */

static int take_large(struct segments *segments, struct ranges *user, uint64_t nbytes,
                      struct range *range) {
    struct segment *segment = warm_find(segments, user, nbytes);

    if (!segment) {
        segment = reserve_cut(segments, nbytes);
    }
    if (!segment) {
        return -EAGAIN;
    }
    warm_remove(segment);
    segment->user = user;
    *range = (struct range){.segment = segment};
    return STATUS_OK;
}

/* Adds a slab that nobody has used to those of `user`. Returns whether there was one. */
static bool add_slab(const struct segments *segments, struct ranges *user) {
    struct segment *slab = warm_find_slab(segments, true);

    if (!slab || ranges_add(user, slab, slab->nbytes, &slab->empty) < 0) {
        return false;
    }
    slab->user = user;
    return true;
}

static int take_small(const struct segments *segments, struct ranges *user, uint64_t nbytes,
                      struct range *range) {
    while (!range_take(user, nbytes, range)) {
        if (!add_slab(segments, user)) {
            return -EAGAIN;
        }
    }
    if (warm_has(range->segment)) {
        warm_remove(range->segment);
    }
    range->segment->used++;
    return STATUS_OK;
}

int segments_take(struct segments *segments, unsigned user, uint64_t nbytes, struct range *range,
                  struct waitlist **ret_wait, struct shortage *ret_shortage) {
    bool large = segment_is_large(segments, nbytes);
    struct ranges *of = &segments->users[user];

    if (nbytes > segments->capacity) {
        *ret_shortage = (struct shortage){.asked = nbytes};
        return STATUS_OUT_OF_MEMORY;
    }
    int r =
        large ? take_large(segments, of, nbytes, range) : take_small(segments, of, nbytes, range);
    if (r != -EAGAIN) {
        return r;
    }
    struct segment *segment = commit_join(segments, nbytes);
    if (!segment) {
        r = commit_begin(segments, nbytes, &segment, ret_shortage);
        if (r != STATUS_OK) {
            return r;
        }
    }
    *ret_wait = &segment->waiters;
    return -EAGAIN;
}

/* Nobody uses the segment any more; `empty` covers all of a slab. */
static void unused(struct segment *segment, struct range *empty) {
    struct segments *segments = segment->segments;

    if (segment->is_spoilt) {
        if (empty) {
            range_drop(segment->user, empty);
        }
        segment_doom(segment);
        segment_empty(segment);
    } else {
        warm_add(segment, empty);
        warm_shrink(segments, segments->stopping ? 0 : segments->capacity / 4);
    }
}

void segments_give(struct range *range) {
    struct segment *segment = range->segment;

    if (!segment->is_slab) {
        free(range);
        unused(segment, NULL);
        return;
    }
    segment->used--;
    bool is_last = segment->used == 0 && segment->is_spoilt;
    struct range *empty =
        is_last ? range_give_all(segment->user, range) : range_give(segment->user, range);
    if (empty) {
        unused(segment, empty);
    }
}

void segments_abandon(struct range *range) {
    struct segment *segment = range->segment;

    segment->is_spoilt = true;
    if (!segment->is_slab || segment->used == 1) {
        segments_give(range);
    } else {
        segment->used--; /* the range stays taken */
    }
}

struct segment *segments_find(const struct segments *segments, uint64_t id) {
    uint64_t number = id & SEGMENT_NUMBER_MASK;
    bool is_ours = segment_device(id) == segments->device && number && number <= segments->next_id;
    struct segment *segment = is_ours ? table_find(&segments->by_id, id) : NULL;

    return segment && segment->state == SEGMENT_LIVE ? segment : NULL;
}

void segments_init(struct segments *segments) {
    uint64_t least = segments->store->unit > SLAB_MIN ? segments->store->unit : SLAB_MIN;
    uint64_t slab = segments->capacity / 8 / least * least;

    segments->slab_nbytes = bytes_least(slab > least ? slab : least, SLAB_MAX);
    table_init(&segments->by_id);
    for (int user = 0; user < SEGMENT_USERS; user++) {
        ranges_init(&segments->users[user]);
    }
    list_init(&segments->warm);
    list_init(&segments->reserve);
    list_init(&segments->stalled);
}

void segments_stop(struct segments *segments) {
    segments->stopping = true;
    commit_relieve(segments);
}

void segments_fini(struct segments *segments) {
    assert(segments->by_id.count == 0 && segments->dying == 0 && segments->lingering == 0);
    assert(segments->committed == 0 && segments->committing == 0 && segments->warm_nbytes == 0);
    assert(list_is_empty(&segments->warm) && list_is_empty(&segments->reserve));
    assert(list_is_empty(&segments->stalled) && !segments->filling);
    table_fini(&segments->by_id);
}
