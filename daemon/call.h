/*
 * call.h - a request being handled, and what a handler may answer
 *
 * messages.def lists the handlers: handle_<name>(call, request, reply). Sizes, state and
 * descriptors are checked before one is called. It returns STATUS_OK with `reply` filled in, or
 * what call_fail(), call_wait() or call_broken() return. A handler that waits is run again from the
 * start, so it changes nothing before.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client.h"
#include "codec.h"
#include "server.h"

enum { CALL_WAITS = -1, CALL_BROKEN = -2 };

struct call {
    struct server *server;
    struct client *client;
    const struct wire_rule *rule;
    uint32_t request; /* id; 0 in a note */
    const void *body; /* the fixed part; the tail follows in the same message */
    const uint8_t *tail;
    size_t tail_nbytes;
    int request_fd; /* borrowed; -1: none came, or it could not be delivered */

    const void *reply_tail; /* borrowed until sent */
    size_t reply_tail_nbytes;
    int reply_fd;                    /* -1: none */
    bool reply_fd_is_ours;           /* to be closed when it is sent */
    struct waitlist *wait;           /* of CALL_WAITS */
    const struct shortage *shortage; /* it waited for memory, which cannot be had; NULL: no */
    char text[WIRE_TEXT_MAX + 1];    /* of an error */
};

/* Answers with `status` and a text. */
int call_fail(struct call *call, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Answers that the daemon has no memory for its own books. */
int call_no_books(struct call *call);

/* Waits on `wait`. */
int call_wait(struct call *call, struct waitlist *wait);

/* Where one more entry of `nbytes` comes in a list that is the reply's tail; zeroes follow up to a
 * multiple of 8. NULL: this page is full. */
void *call_add(struct call *call, size_t nbytes);

/* The peer broke `rule`: it is dropped. */
int call_broken(struct call *call, const char *rule);

#define CALL(NAME, name, opcode, state, request_tail, reply_tail, fds)      \
    int handle_##name(struct call *call, const struct wire_##name *request, \
                      struct wire_##name##_reply *reply);
#define NOTE(NAME, name, opcode, state, tail, fds) \
    int handle_##name(struct call *call, const struct wire_##name *request);
#include "messages.def"
#undef CALL
#undef NOTE
