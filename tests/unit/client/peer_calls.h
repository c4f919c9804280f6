/*
 * peer_calls.h - calls that map nothing, and what the peer answers
 */
#pragma once

#include "peer.h"

static const struct wire_stats stats_fixed;
static const struct wire_delete delete_fixed;
static const struct wire_alloc alloc_fixed = {.nbytes = 64, .device_type = 1};
static const struct wire_get get_fixed = {.flags = GET_WAIT};
static const struct frame stats_frame = REQUEST(STATS, &stats_fixed);
static const struct frame delete_frame = REQUEST(DELETE, &delete_fixed);
static const struct frame alloc_frame = REQUEST(ALLOC, &alloc_fixed);
static const struct frame get_frame = REQUEST(GET, &get_fixed);

static inline void reply_deleted(struct peer *peer, uint32_t request, uint64_t version) {
    struct wire_delete_reply reply = {.version = version};

    peer_reply(peer, MESSAGE_DELETE, request, STATUS_OK, &reply, sizeof reply, -1);
}

static inline void reply_granted(struct peer *peer, uint32_t request, uint64_t storage) {
    struct wire_alloc_reply reply = {.grant = {.storage = storage}};

    peer_reply(peer, MESSAGE_ALLOC, request, STATUS_OK, &reply, sizeof reply, -1);
}

static inline uint64_t deleted_version(const struct caller *caller) {
    return ((const struct wire_delete_reply *)call_fixed(caller->call))->version;
}

/* Returns the request, whose reply its call waits for. */
static inline uint32_t start_delete(struct caller *caller, struct peer *peer) {
    caller_start(caller, peer, delete_frame, 0);
    return peer_receive(peer, MESSAGE_DELETE)->request;
}

/* An ordinary call still works. */
static inline void expect_works(struct peer *peer) {
    struct caller caller;

    reply_deleted(peer, start_delete(&caller, peer), 99);
    EXPECT_EQ(STATUS_OK, caller_join(&caller));
    EXPECT_EQ(99, deleted_version(&caller));
    call_free(peer->session, caller.call);
}
