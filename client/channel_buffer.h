/*
 * channel_buffer.h - a buffer of a channel that this process has: loaned, or received in a message
 *
 * Counted: by the tensors that lie in it. Nobody waits to let go of it, on whatever thread: a bit
 * in the ring's memory is cleared. Where the daemon must know (it waits for that; it was received
 * and then inherited by a child of fork(), so that the daemon keeps it for both) it goes on
 * session::spent, from which session_unlock() sends a note. In the child of a fork the bit is the
 * parent's: it only forgets.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

struct seat;
struct session;
struct storage;

enum channel_buffer_state {
    BUFFER_LOANED,
    BUFFER_LEAVING, /* is being sent */
    BUFFER_SENT,    /* and so no longer ours */
    BUFFER_RECEIVED,
    BUFFER_RETURNED, /* spent: the daemon is to clear the bit */
};

struct channel_buffer {
    atomic_int refs;
    atomic_int state; /* enum channel_buffer_state */
    uint32_t number;
    uint64_t forked;             /* session::forked when it was received */
    struct seat *seat;           /* counted */
    struct storage *storage;     /* counted: has its bytes; NULL: there are none */
    struct channel_buffer *next; /* session::spent or seat::pending */
};

/* To be filled in by channel_buffer_set(). NULL: out of memory, error set. */
struct channel_buffer *channel_buffer_create(struct seat *seat);

/* It stands for that buffer from now on; until then letting go of it does nothing. */
void channel_buffer_set(struct channel_buffer *buffer, enum channel_buffer_state state,
                        uint32_t number);

/* The bytes are needed: keeps the storage as well. */
void channel_buffer_keep_bytes(struct channel_buffer *buffer);

struct channel_buffer *channel_buffer_ref(struct channel_buffer *buffer);
void channel_buffer_unref(void *buffer);

/* Sends the notes, and returns what is then to be freed, without the lock. Lock of the session
 * held; only session.c calls these two. */
struct channel_buffer *channel_buffers_drain(struct session *session);
void channel_buffers_free(struct channel_buffer *buffers);
