/*
 * segment.h - the segments of a store: committed whole, handed out in ranges, kept warm, destroyed
 *
 * A segment is committing, live (in use, or empty and warm) or dying. Small storages share slabs;
 * large ones have a segment of their own. Committing and emptying run on the worker, in pieces.
 * A segment stays with the user for whom it was first used, so that nobody is shown what another
 * user left in it. One on a device has importers: clients that have it mapped; when it dies it
 * lingers until they are done with it. There is one `struct segments` per store. Knows neither
 * storages nor clients.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bytes.h"
#include "list.h"
#include "range.h"
#include "store.h"
#include "table.h"
#include "waiter.h"
#include "worker.h"

/* Why memory cannot be had. */
struct shortage {
    uint64_t asked;    /* bytes of the segment that was wanted */
    int error;         /* errno of the store; 0: the capacity, or `limit`, is the reason */
    const char *limit; /* static: what has no more memory; NULL: see `error` */
};

enum { SEGMENT_USERS = 33, SEGMENT_DEVICE_SHIFT = 56 };

#define SEGMENT_NUMBER_MASK (((uint64_t)1 << SEGMENT_DEVICE_SHIFT) - 1)

/* LINGERING: dying, but not before its importers are done with it. */
enum segment_state { SEGMENT_COMMITTING, SEGMENT_LIVE, SEGMENT_DYING, SEGMENT_LINGERING };

struct segment {
    struct job job;            /* first: the job's callbacks find us by it */
    struct segments *segments; /* borrowed: our owner */
    uint64_t id;
    uint64_t nbytes;
    struct backing backing;
    enum segment_state state;
    bool is_slab;
    bool is_spoilt;      /* somebody may still write to a part that was given back */
    uint32_t used;       /* of a slab: ranges that are handed out */
    uint32_t importers;  /* clients that have it mapped */
    struct ranges *user; /* borrowed: whose it is since its first use; NULL: never used */
    struct range *empty; /* borrowed: covers all of a slab that nobody uses; NULL: in use */
    struct list link;    /* segments::warm, ::reserve or ::stalled */
    uint64_t warm_since_ms;
    uint64_t stalled_since_ms; /* 0: it never was */
    struct waitlist waiters;   /* requests that need it, while committing */
    uint64_t needed;           /* committing: least bytes that help a waiter */
    uint64_t done;             /* bytes committed, or emptied, so far */
    uint64_t piece;            /* bytes in the worker's hands; committing: 0 when it has none */
    int error;                 /* of the last piece */
};

struct segments {
    const struct store *store; /* borrowed: static */
    struct worker *worker;     /* borrowed: outlives us */
    struct list *ready;        /* borrowed: where waiters go that can be served */
    void (*failed)(void *owner, struct segment *segment, const struct shortage *shortage);
    void *owner;                  /* borrowed: of `failed`, which answers segment->waiters */
    uint64_t (*now)(void *owner); /* milliseconds */
    const char *root; /* borrowed: as for memory_available(); NULL: it is not of the machine */
    uint16_t device;  /* in the highest 8 bits of ids; 0: the CPU */

    struct table by_id;                 /* owned: committing and live ones */
    struct ranges users[SEGMENT_USERS]; /* of live slabs that have been used */
    struct list warm;                   /* live and unused, the longest unused first */
    struct list reserve;                /* live and never used */
    struct list stalled;     /* committing, wait until dying ones have given their memory back */
    struct segment *slab;    /* borrowed: the slab being committed, or NULL */
    struct segment *filling; /* borrowed: being committed for the reserve, or NULL */
    uint64_t capacity, slab_nbytes, warm_ms;
    uint64_t reserve_nbytes;         /* wanted in reserve, at most */
    uint64_t refill_ms;              /* when to see what is missing of it; UINT64_MAX: nothing */
    uint64_t committed, warm_nbytes; /* bytes; what is in reserve is warm as well */
    uint64_t committing;             /* bytes of `committed` that are not there yet */
    uint64_t dying;                  /* segments not yet emptied */
    uint64_t lingering, lingering_nbytes; /* of these, wait for their importers */
    uint64_t next_id, destroyed;
    bool stopping;
};

/* Sets up `segments`, whose borrowed fields, device, capacity, warm_ms and reserve_nbytes the
 * caller has filled in. */
void segments_init(struct segments *segments);

/* Lets everything go without emptying it, so that what clients have mapped stays as it is; waiters
 * are gone already. The worker may still be busy with some pieces; segments_fini() comes after them
 * and asserts that nothing is left. */
void segments_stop(struct segments *segments);
void segments_fini(struct segments *segments);

/* Takes `nbytes` (not 0) for one of the users, who are numbers below SEGMENT_USERS. Returns
 * STATUS_OK and fills in `range`, which lies first in a block of malloc(); STATUS_OUT_OF_MEMORY and
 * sets *ret_shortage; or -EAGAIN and sets *ret_wait: memory is being committed, wait there and ask
 * again.
 */
int segments_take(struct segments *segments, unsigned user, uint64_t nbytes, struct range *range,
                  struct waitlist **ret_wait, struct shortage *ret_shortage);

/* Gives a range back, and the block it lies in. */
void segments_give(struct range *range);

/* The same for one that somebody may still write to, who cannot be asked: nobody gets it again. Its
 * segment is given back to the system when nobody uses the rest. */
void segments_abandon(struct range *range);

/* The live segment of this id, or NULL. */
struct segment *segments_find(const struct segments *segments, uint64_t id);

/* One client more, or one less, has the segment mapped. */
void segment_import(struct segment *segment);
void segment_unimport(struct segment *segment);

/* The device that a segment of this id is on; 0: the CPU. */
static inline unsigned segment_device(uint64_t id) {
    return (unsigned)(id >> SEGMENT_DEVICE_SHIFT);
}

/* Whether a storage of this size has a segment of its own. */
static inline bool segment_is_large(const struct segments *segments, uint64_t nbytes) {
    return nbytes >= segments->slab_nbytes / 2;
}

/* The size of one for `nbytes`: a multiple of 2 MiB, unless the capacity is small, and of the
 * store's unit. */
static inline uint64_t segment_large_nbytes(const struct segments *segments, uint64_t nbytes) {
    uint64_t unit = segments->slab_nbytes / 8;

    return bytes_round_up(nbytes, unit > segments->store->unit ? unit : segments->store->unit);
}

/* For commit.c, warm.c and reserve.c only. */

/* A segment of `nbytes` in which nothing is committed yet, on the books. 0 or a negative errno. */
int segment_create(struct segments *segments, uint64_t nbytes, struct segment **ret_segment);

/* From here on the memory counts as free, and the segment cannot be found any more. */
void segment_doom(struct segment *segment);

/* Gives the memory of a doomed segment back, piece by piece. */
void segment_empty(struct segment *segment);

/* Makes a live segment end at `nbytes`, and gives the rest back likewise. The file keeps its
 * length. 0 or -ENOMEM. */
int segment_cut(struct segment *segment, uint64_t nbytes);
