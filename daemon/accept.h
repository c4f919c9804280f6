/*
 * accept.h - connections coming in, and a socket that can be connected to
 *
 * Owned by the server. Takes new connections until no descriptor is left, then tells one at a time
 * why it cannot stay. Of those that say nothing the oldest give way, so that they never take the
 * place of clients. Notices that the socket's file has vanished and makes it anew. Knows libuv, and
 * clients only as what it makes of a connection.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "listen.h"

struct client;
struct server;
struct uv_poll_s;

struct acceptor {
    struct server *server;         /* borrowed: owns us */
    struct listener listener;      /* owned */
    struct uv_poll_s *connections; /* on listener.fd; NULL: not watched. Owned, at last by libuv */
    struct uv_poll_s *folder;      /* on listener.watch_fd; the same */
    struct client *refused;        /* borrowed: the one that is being told why it cannot stay */
    int reserve_fd;                /* owned: closed to accept a connection when there is no other */
    uint64_t rest_until_ms;        /* accepts nothing until then; 0: it does */
    bool is_crowded;               /* or until fewer connections are silent */
    uint64_t silent_max;           /* most of them */
    uint64_t restore_ms;           /* when to make the vanished socket again; 0: it is there */
    uint64_t look_ms;              /* when to look whether the socket is there; 0: not planned */
    bool is_replaced;              /* another daemon has taken the place */
};

/* Begins to accept on `listener`, which is taken over with its lock. 0 or a negative errno. */
int acceptor_start(struct acceptor *acceptor, struct server *server,
                   const struct listener *listener);

/* Ends that, and removes the socket's file. The lock stays until acceptor_fini(). */
void acceptor_stop(struct acceptor *acceptor);
void acceptor_fini(struct acceptor *acceptor);

/* Does what is due. Returns when the next thing is, UINT64_MAX: nothing. */
uint64_t acceptor_do_due(struct acceptor *acceptor, uint64_t now_ms);

/* The client that was told why it cannot stay is closed: others have their turn. */
void acceptor_refusal_done(struct acceptor *acceptor);
