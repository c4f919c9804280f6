/*
 * peer.h - the other end of a client's connection, played by the test: it sees every message and
 * answers what it likes
 */
#pragma once

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "call.h"
#include "clock.h"
#include "fixture.h"
#include "segment.h"
#include "session.h"
#include "tensorcx.h"

/* Of sessions: no test takes so long; and so short that a test can wait for it. */
static const struct patience patient = {.answer_ns = 60 * NS_PER_S};
static const struct patience impatient = {.answer_ns = 20 * NS_PER_MS};

struct peer {
    struct session *session; /* the client's end */
    int socket;              /* the test's end */
    _Alignas(struct wire_header) char bytes[WIRE_MESSAGE_MAX];
};

static inline struct peer *peer_create(const struct patience *patience) {
    struct peer *peer = malloc(sizeof *peer);
    int ends[2];

    EXPECT_EQ(0, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends));
    peer->session = session_create(patience, "/nowhere");
    session_lock(peer->session);
    session_attach(peer->session, ends[0]);
    session_unlock(peer->session);
    peer->socket = ends[1];
    return peer;
}

static inline void peer_hang_up(struct peer *peer) {
    if (peer->socket >= 0) {
        close(peer->socket);
    }
    peer->socket = -1;
}

static inline void peer_destroy(struct peer *peer) {
    peer_hang_up(peer);
    while (atomic_load(&peer->session->refs) > 1) { /* its flusher ends now; the runner's timeout */
        poll(NULL, 0, 1);
    }
    session_unref(peer->session);
    free(peer);
}

/* The session sends a note that says nothing but this number. */
static inline void peer_note(struct peer *peer, uint32_t number) {
    struct wire_cancel fixed = {.request = number};
    struct frame frame = REQUEST(CANCEL, &fixed);

    session_lock(peer->session);
    call_note(peer->session, &frame);
    session_unlock(peer->session);
}

/* The next message of the client, whose opcode must be this one. */
static inline const struct wire_header *peer_receive(struct peer *peer, int opcode) {
    const struct wire_header *header = (const void *)peer->bytes;
    struct pollfd poller = {.fd = peer->socket, .events = POLLIN};
    int fd;

    EXPECT_EQ(1, poll(&poller, 1, -1)); /* the runner's timeout ends it */
    EXPECT_TRUE(connection_receive(peer->socket, peer->bytes, sizeof peer->bytes, &fd) > 0);
    EXPECT_EQ(opcode, header->opcode);
    return header;
}

/* Sends a reply with a body, and a descriptor unless that is -1. */
static inline void peer_reply(struct peer *peer, int opcode, uint32_t request, int status,
                              const void *body, size_t nbytes, int fd) {
    struct frame frame = {
        .header = {.opcode = (uint16_t)opcode, .request = request, .status = (uint32_t)status},
        .fixed = body,
        .fixed_nbytes = nbytes,
        .fd = fd,
    };

    EXPECT_EQ(0, connection_send(peer->socket, &frame));
}

/* ----------------------------------------------------------- a call made on a thread of its own */

struct caller {
    struct session *session;
    struct frame frame;
    int64_t timeout_ns; /* of a call that waits for something to happen; 0: an ordinary call */
    uint64_t segment;   /* that is to be mapped */
    int status;
    char text[512];
    struct call *call;
    pthread_t thread;
};

static inline void *caller_run(void *argument) {
    struct caller *caller = argument;

    caller->status =
        caller->timeout_ns
            ? call_run_until(caller->session, &caller->frame, caller->timeout_ns, &caller->call)
            : call_run(caller->session, &caller->frame, 0, &caller->call);
    snprintf(caller->text, sizeof caller->text, "%s", tcx_error());
    return NULL;
}

static inline void caller_start(struct caller *caller, struct peer *peer, struct frame frame,
                                int64_t timeout_ns) {
    *caller = (struct caller){.session = peer->session, .frame = frame, .timeout_ns = timeout_ns};
    EXPECT_EQ(0, pthread_create(&caller->thread, NULL, caller_run, caller));
}

static inline void *caller_run_map(void *argument) {
    struct caller *caller = argument;

    caller->status = segment_map(caller->session, caller->segment);
    snprintf(caller->text, sizeof caller->text, "%s", tcx_error());
    return NULL;
}

static inline void caller_start_map(struct caller *caller, struct peer *peer, uint64_t segment) {
    *caller = (struct caller){.session = peer->session, .segment = segment};
    EXPECT_EQ(0, pthread_create(&caller->thread, NULL, caller_run_map, caller));
}

/* Waits for its end; returns the status. */
static inline int caller_join(struct caller *caller) {
    EXPECT_EQ(0, pthread_join(caller->thread, NULL));
    return caller->status;
}
