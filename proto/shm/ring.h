/*
 * ring.h - what participants and daemon do with the control block of a channel
 *
 * A ring passes numbers of buffers: who loans one may write it, sends it as a message, and who
 * receives it may read it until it releases it. Where the buffers are, and what is in them, is not
 * known here; nor are sockets. `struct ring` is one process's view of the block for one participant
 * (or the daemon's); it owns nothing, the mapping must outlive it.
 *
 * A buffer is free iff no member's mask has its bit and no cursor still needs it. What makes it
 * busy happens under the lock, what makes it free is one atomic operation without it. Each
 * operation has one committing store: a process may die between any two instructions. README.md has
 * the protocol, ../model/ its models: change those first.
 *
 * Threads: all functions may be called on one struct ring from any thread at any time, but for
 * ring_open. Waiting: loan, send and recv wait up to a deadline, and return RING_AGAIN at least
 * every RING_SLICE_NS and after each signal, so that the caller can look at signals and at its
 * daemon before it calls again. All others do not wait, but for subscribe and report, which take
 * the lock.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ring_layout.h"

#define RING_SLICE_NS 100000000ull
#define RING_AT_ONCE  1ull /* as 0, and does not wait for whoever has the lock, either */
#define RING_FOREVER  UINT64_MAX

enum ring_result {
    RING_OK = 0,
    RING_AGAIN,     /* not yet: look at signals and at the daemon, then call again */
    RING_TIMED_OUT, /* the deadline is over; ring_report() tells who is in the way */
    RING_LOCKED,    /* the same, and somebody had the lock all the while */
    RING_CLOSED,    /* loan, send: closed; recv: closed, and nothing is left */
    RING_NOT_IN,    /* this member has left; recv on a topic: or has not subscribed */
    RING_BAD,       /* recv: the next message made no sense and is skipped */
    RING_BROKEN,    /* cursors or lock make no sense: this handle can do no more */
};

struct ring_shape {
    uint32_t flags;    /* enum ring_flag */
    uint32_t capacity; /* N: messages */
    uint32_t buffers;  /* M: more than N; a topic's at least N + 2 */
    uint32_t members;  /* P: participants at a time */
    uint64_t buffer_nbytes;
};

struct ring {
    struct ring_control *control; /* these four borrowed: the mapping */
    struct ring_member *members;
    struct ring_entry *entries;
    uint8_t *descs;
    struct ring_shape shape;
    uint32_t slot_mask; /* S - 1 */
    uint32_t words;     /* of a mask of M bits */
    uint32_t client;    /* whose locks this view takes: 1 to 2^31 - 1; 0 for the daemon */
    uint32_t member;    /* which one this is; for the daemon nothing */
    uint32_t turn;      /* loans since it last slept or gave way */
    uint32_t woken;     /* free_event's count of wake-ups then */
    uint32_t broken;    /* set once RING_BROKEN was found */
};

struct ring_wait {
    uint64_t deadline_ns; /* CLOCK_MONOTONIC; 0: do not wait; RING_AT_ONCE, RING_FOREVER */
    uint32_t spin_ns;     /* how long to look, before sleep, whether the other side is quick */
};

struct ring_message {
    uint64_t number;
    uint64_t missed; /* messages dropped or skipped since the one before */
    uint32_t buffer; /* the receiver's, until ring_release() */
};

/* ------------------------------------------------------------------------------------ the block */

/* NULL, or a text that says what is wrong. */
const char *ring_shape_check(const struct ring_shape *shape);

/* Bytes of a control block; the shape must be right. */
size_t ring_nbytes(const struct ring_shape *shape);

/* The daemon: makes a block of zeros (ring_nbytes) a control block. */
void ring_init(void *memory, const struct ring_shape *shape);

/* A view of a mapped block. NULL, or a text that says why not: `nbytes` too small, or not this
 * layout. */
const char *ring_open(void *memory, size_t nbytes, const struct ring_shape *shape, uint32_t client,
                      uint32_t member, struct ring *ret_ring);

/* Another view of the same block, in which `client` takes the locks; others may use `ring` now. */
struct ring ring_view(const struct ring *ring, uint32_t client);

/* The RING_DESC_NBYTES bytes that go with a buffer: written by who loans it, read by who received
 * it (copied first: others can change them). */
void *ring_desc(const struct ring *ring, uint32_t buffer);

/* The first eight bytes of a description: what the message refers to. 0: nothing. */
uint64_t ring_ref(const struct ring *ring, uint32_t buffer);
void ring_set_ref(const struct ring *ring, uint32_t buffer, uint64_t ref);

/* --------------------------------------------------------------------------------- participants */

/* A free buffer, the caller's to write until it sends or releases it.
 * OK, AGAIN, TIMED_OUT, LOCKED, CLOSED, NOT_IN, BROKEN. */
enum ring_result ring_loan(struct ring *ring, const struct ring_wait *wait, uint32_t *ret_buffer);

/* Before anything is written to a loaned buffer: it no longer names what its last message referred
 * to. True: the daemon wants to know. */
bool ring_clear_ref(const struct ring *ring, uint32_t buffer);

/* Sends a loaned buffer; when that fails the buffer still is the caller's. A full ring waits, or
 * drops its oldest. OK, AGAIN, TIMED_OUT, LOCKED, CLOSED, NOT_IN, BROKEN. */
enum ring_result ring_send(struct ring *ring, const struct ring_wait *wait, uint32_t buffer);

/* A hint: whether a send would have nothing to wait for. */
bool ring_has_room(const struct ring *ring);

/* The next message, or with `latest` the newest. OK, AGAIN, TIMED_OUT, LOCKED, CLOSED, NOT_IN, BAD,
 * BROKEN.
 */
enum ring_result ring_recv(struct ring *ring, const struct ring_wait *wait, bool latest,
                           struct ring_message *ret_message);

/* Gives back what was loaned or received, once. True: the daemon wants to know. */
bool ring_release(struct ring *ring, uint32_t buffer);

/* After a send or receive that may be the end of other messages: whether the daemon wants to know.
 */
bool ring_is_watched(const struct ring *ring);

/* Topics: from the next message on, or with `latest` from the last one. OK, AGAIN, TIMED_OUT,
 * LOCKED, NOT_IN (it is subscribed, or has left), BROKEN. */
enum ring_result ring_subscribe(struct ring *ring, uint64_t deadline_ns, bool latest);

/* Sends and receives no more: calls that wait return NOT_IN. What it holds stays held. Then tell
 * the daemon. */
void ring_leave(struct ring *ring);

/* Ends the channel for all: nothing is sent any more, readers receive what is left. */
void ring_close(struct ring *ring);

/* -------------------------------------------------------------------------------------- anybody */

struct ring_holder {
    uint32_t member;
    uint32_t client;
    uint32_t holds;  /* buffers */
    uint32_t behind; /* messages it has yet to receive; 0 when it has no cursor */
};

struct ring_report {
    uint32_t lock_owner; /* the client that kept the lock from the reporter all the while, or 0 */
    uint32_t depth;      /* messages not yet received (by the slowest) */
    uint32_t closed;
    uint32_t nholders;      /* how many there are; the caller's array has the first ones */
    uint64_t sent;          /* messages since the beginning */
    uint64_t buffer_nbytes; /* 0: no size yet. Whoever writes nonsense can make it that */
};

/* Who holds buffers or is behind, in the order of members. Waits for the lock up to a slice;
 * without it the figures may not belong to one moment. */
void ring_report(struct ring *ring, struct ring_holder *holders, size_t max,
                 struct ring_report *ret_report);

/* How many buffers members have. One that has just received counts in all who received before. */
uint32_t ring_busy(const struct ring *ring);

/* ----------------------------------------------------------------------------------- the daemon */

/* The buffers' size, once it is known. */
void ring_size(struct ring *ring, uint64_t buffer_nbytes);

/* Gives a member to a client. False while an earlier one still holds buffers there, or is in it. */
bool ring_seat(struct ring *ring, uint32_t member, uint32_t client);

/* Its client is really gone: it has left, and holds nothing but what is in `keep` (NULL: nothing).
 * Then ring_repair(). May be repeated. */
void ring_vacate(struct ring *ring, uint32_t member, const uint64_t keep[RING_MASK_WORDS]);

/* After the vacating: takes the lock from a client that is really gone and wakes everybody. */
void ring_repair(struct ring *ring, uint32_t client);

/* Releases for a member what it has returned by way of the daemon. */
void ring_release_for(struct ring *ring, uint32_t member, uint32_t buffer);

/* Whether who makes a buffer free, or its description name something else, is to tell from now on.
 * What a later sweep does not see is told. */
void ring_watch(struct ring *ring, bool watched);

/* How many buffers a member has now. */
uint32_t ring_uses(const struct ring *ring, uint32_t member);

/* The buffers that anybody uses, or a message needs. What is not among them is not, and was not
 * while this ran, on its way to anybody, unless loaned since. */
void ring_sweep(const struct ring *ring, uint64_t ret_needed[RING_MASK_WORDS]);
