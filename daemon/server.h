/*
 * server.h - the daemon: everything it owns, its loop, its end
 *
 * One thread runs the loop and everything here; only jobs of the worker run beside it. After every
 * event server_settle() runs the calls that can go on, frees clients that are gone and sets the one
 * timer to the next thing that is due.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "accept.h"
#include "catalog.h"
#include "channel.h"
#include "device.h"
#include "lifepage.h"
#include "list.h"
#include "messages.h"
#include "options.h"
#include "segment.h"
#include "storage.h"
#include "ticket.h"
#include "worker.h"

struct client;
struct loop; /* libuv's handles, known to server.c */

struct server {
    const struct options *options; /* borrowed: main's */
    struct acceptor acceptor;
    struct loop *loop;    /* owned */
    struct uv_loop_s *uv; /* borrowed from `loop`: for watching sockets */
    struct worker worker;
    struct worker cuda_worker;
    struct lifepages pages;

    struct segments segments;
    bool is_short_of_shm; /* the capacity is what /dev/shm had room for */
    struct devices devices;
    struct storages storages;
    struct catalog catalog;
    struct tickets tickets;
    struct channels channels;

    struct list clients;    /* of struct client, by id; owned */
    struct list silent;     /* those that have not said HELLO yet, the oldest first */
    struct list returning;  /* of struct client: what they had, or children, goes back in steps */
    struct list gone;       /* of struct client, to be freed before the loop goes on; owned */
    struct list ready;      /* of struct waiter: calls to run again */
    uint64_t clients_count; /* gone ones not included */
    uint64_t silent_count;  /* of these, have not said HELLO */
    uint64_t connected;     /* of these, with an open socket */
    uint64_t next_client;
    uint64_t resend_ms; /* when to send again to starved clients; 0: there are none */

    uint64_t stepped_ms; /* when the last step was of what is done in steps, */
    uint64_t ready_ms;   /* and when a call of `ready` was run, */
    int ready_left;      /* and how many more may be in that millisecond */

    uint64_t boot_id, started_ms;
    uint64_t requests, dropped, waiting;
    uint64_t idle_since_ms;  /* 0: not idle */
    const char *stop_reason; /* static; set: end as soon as this event is handled */
    bool stopping;

    _Alignas(8) char message[WIRE_MESSAGE_MAX]; /* the one being received */
    _Alignas(8) char page[WIRE_LIST_MAX];       /* a handler's reply tail */
};

/* Sets everything up to serve `listener`, which is taken over. 0 or a negative errno: then the
 * listener is still the caller's, and the process is to end. libuv aborts where it is refused
 * a thread or a descriptor. */
int server_init(struct server *server, const struct options *options,
                const struct listener *listener);

/* Serves until told to stop; then asserts that nothing is left. */
void server_run(struct server *server);

/* Milliseconds on a clock that only goes forward; that of this event. */
uint64_t server_now(const struct server *server);

/* Segments destroyed until now, wherever they were. */
uint64_t server_destroyed(const struct server *server);

/* Whether nobody is here, and nothing that somebody could come for. */
bool server_is_idle(const struct server *server);

/* Takes back what nobody needs any more: what the ended had, names and tickets whose time is over,
 * what received messages referred to. Returns whether there was anything. */
bool server_make_room(struct server *server);

/* To be called at the end of every event. */
void server_settle(struct server *server);
