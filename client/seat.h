/*
 * seat.h - a participant of a channel: its place at the ring, and the mapped memory
 *
 * A handle has one at a time; in the child of a fork, which leaves its parent's alone, another one.
 * Counted: by its handle, by calls that run on it, by each buffer that was loaned or received, so
 * it outlives the handle. The daemon is told that it has left when its handle is closed and no call
 * runs: it may then give the place to somebody else as soon as no buffer is used.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "messages.h"
#include "ring.h"

struct device;
struct session;
struct storage;
struct channel_buffer;

struct seat {
    atomic_int refs;
    struct session *session; /* counted */
    struct seat *before;     /* counted: the parent's, that this one replaced; NULL: none */
    uint64_t channel;        /* the daemon's number of it */
    uint64_t serial;         /* no other seat of this process has it; never 0 */
    struct ring ring;
    void *block; /* owned mapping: the control block */
    size_t block_nbytes;
    struct storage *_Atomic storage;             /* counted: of the buffers; NULL: no size yet */
    _Atomic uint64_t buffer_nbytes;              /* likewise; 0 */
    _Atomic uint64_t populated[RING_MASK_WORDS]; /* buffers that were */

    _Atomic uint32_t calls; /* that run, times 2, + whether it is closed */
    atomic_int has_left;    /* and the daemon knows */
    _Atomic uint64_t missed;

    pthread_mutex_t lock;
    struct channel_buffer *_Atomic pending; /* owned: received and not opened yet, a stack;
                                               changed under the lock */
};

/* A new participant, of the channel that `request` (or else `name`) names. Asks the daemon. As
 * call_run(); STATUS_SYSTEM: the control block cannot be mapped; STATUS_INTERNAL. */
int seat_join(struct session *session, const struct wire_join *request, const char *name,
              struct seat **ret_seat);

struct seat *seat_ref(struct seat *seat);
void seat_unref(struct seat *seat); /* NULL is fine; unmaps: no lock */

/* Around each call that uses the ring. 0: the seat is closed. */
int seat_enter(struct seat *seat);
void seat_exit(struct seat *seat);

/* No call can begin any more, those that wait are woken. No lock. */
void seat_close(struct seat *seat);
int seat_is_closed(const struct seat *seat);

/* Forgets the buffers' storage; what was received keeps it. */
void seat_retire(struct seat *seat);

/* Finds out where the buffers are; a channel without size gets one that fits `nbytes`, if that is
 * not 0, on `device`. Asks the daemon if that is not known yet. */
int seat_size(struct seat *seat, uint64_t nbytes, const struct device *device);

/* The buffers' storage, borrowed; NULL: no size yet. */
static inline const struct storage *seat_storage(const struct seat *seat) {
    return atomic_load(&seat->storage);
}

/* 0: no size yet. */
uint64_t seat_buffer_nbytes(const struct seat *seat);

/* A buffer's bytes; NULL: no size yet. */
char *seat_buffer(struct seat *seat, uint32_t buffer);

/* Before `nbytes` of a buffer are written. */
void seat_populate(struct seat *seat, uint32_t buffer, uint64_t nbytes);

/* Received, and could not be opened: kept for the next call. Takes the buffer. */
void seat_put_off(struct seat *seat, struct channel_buffer *buffer);

/* One of those, or NULL. */
struct channel_buffer *seat_take_pending(struct seat *seat);

/* Tells the daemon, which waits for that, that what a buffer's messages referred to may be free.
 * Lock of the session held. */
void seat_note_done(struct seat *seat, uint32_t buffer);

/* Undo replies that nobody waits for. Lock of the session held. */
void seat_undo_join(struct session *session, const struct wire_join_reply *reply);
void seat_undo_grant(struct session *session, const struct wire_grant *grant);
