/*
 * call.h - requests and their replies; one-way notes
 *
 * Threads share the socket. One of those that wait polls it, and hands others their replies by
 * request id; when it has its own, or its time is up, another one takes the role. A call that is
 * given up stays known until its reply comes, so that what the reply grants can be given back.
 *
 * Knows the frame of a message; what is in it is the caller's business, except that a late reply's
 * grants go back.
 */
#pragma once

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "codec.h"
#include "connection.h"
#include "session.h"

enum call_state {
    CALL_SENT,     /* no reply yet; when the session is dead, there will be none */
    CALL_ANSWERED, /* the reply is in the record */
    CALL_GIVEN_UP, /* nobody waits: a late reply is only undone */
};

struct call {
    struct call *next; /* session::calls */
    enum call_state state;
    uint32_t request;
    uint16_t opcode;
    int sleeps; /* its thread waits on `answered` */
    pthread_cond_t answered;
    uint32_t status; /* of the reply */
    void *body;      /* owned: fixed part and tail of the reply */
    size_t body_nbytes;
    int fd; /* owned: the reply's; -1: none, FD_DROPPED: lost on the way */
};

/* A frame without descriptor, to be completed with tails. */
#define REQUEST(name, fixed_part)                               \
    {                                                           \
        .header.opcode = MESSAGE_##name, .fixed = (fixed_part), \
        .fixed_nbytes = sizeof *(fixed_part), .fd = -1          \
    }

/* Sends a request and waits for its reply. STATUS_OK: *ret_call has it, to be given back with
 * call_free(). Otherwise the daemon's status with the daemon's text, STATUS_LOST, STATUS_TIMEOUT
 * (no answer), STATUS_INTERRUPTED, STATUS_OUT_OF_MEMORY, STATUS_SYSTEM. Takes the lock; waits.
 * `extra_ns`: how much longer than usual the answer may take. */
int call_run(struct session *session, const struct frame *frame, int64_t extra_ns,
             struct call **ret_call);

/* The same for a request that the daemon answers when something happens: waits `timeout_ns`, then
 * cancels and takes the answer that still comes. STATUS_TIMEOUT: nothing happened. */
int call_run_until(struct session *session, const struct frame *frame, int64_t timeout_ns,
                   struct call **ret_call);

/* Waits until the daemon has closed the connection: STATUS_OK. STATUS_TIMEOUT, _INTERRUPTED. */
int call_await_end(struct session *session);

/* The reply's fixed part, and what follows it. Valid until call_free(). */
const void *call_fixed(const struct call *call);
const void *call_tail(const struct call *call, size_t *ret_nbytes);

/* NULL is fine. */
void call_free(struct session *session, struct call *call);

/* Sends a request whose reply nobody waits for: what it says is taken in when it comes. Lock held.
 * Returns whether it was sent. */
int call_detach(struct session *session, const struct frame *frame);

/* Sends a note, or queues it. Takes frame->fd. Never waits. Lock held. */
void call_note(struct session *session, const struct frame *frame);

/* For session.c; lock held, or nobody else knows the session. */
int calls_are_pending(const struct session *session); /* somebody waits for a reply */
void calls_wake_all(struct session *session);
void calls_close_descriptors(struct session *session);
void calls_destroy(struct session *session);
