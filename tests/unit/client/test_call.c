/* Calls against a peer that answers as the test says. */
#include "peer_calls.h"

/* The next message must be a RELEASE of exactly these. */
static void expect_release(struct peer *peer, uint64_t storage, uint64_t grants) {
    struct wire_returned returned;
    const struct wire_header *header = peer_receive(peer, MESSAGE_RELEASE);

    EXPECT_EQ(sizeof *header + sizeof(struct wire_release) + sizeof returned, header->nbytes);
    memcpy(&returned, (const char *)(header + 1) + sizeof(struct wire_release), sizeof returned);
    EXPECT_EQ(storage, returned.storage);
    EXPECT_EQ(grants, returned.grants);
}

/* -------------------------------------------------------------------------------------- replies */

TEST(a_reply_reaches_its_call) {
    struct peer *peer = peer_create(&patient);

    expect_works(peer);
    peer_destroy(peer);
}

TEST(replies_in_another_order_reach_their_calls) {
    enum { COUNT = 8 };
    struct peer *peer = peer_create(&patient);
    struct caller callers[COUNT];
    uint32_t requests[COUNT];

    for (int i = 0; i < COUNT; i++) {
        requests[i] = start_delete(&callers[i], peer);
    }
    for (int i = COUNT - 1; i >= 0; i--) {
        reply_deleted(peer, requests[i], (uint64_t)i);
    }
    for (int i = 0; i < COUNT; i++) {
        EXPECT_EQ(STATUS_OK, caller_join(&callers[i]));
        EXPECT_EQ(i, deleted_version(&callers[i]));
        call_free(peer->session, callers[i].call);
    }
    peer_destroy(peer);
}

TEST(a_failure_brings_the_daemons_text) {
    struct peer *peer = peer_create(&patient);
    struct caller caller;
    const char *text = "no tensor is named \"x\"";

    uint32_t request = start_delete(&caller, peer);
    peer_reply(peer, MESSAGE_DELETE, request, STATUS_NOT_FOUND, text, strlen(text), -1);
    EXPECT_EQ(STATUS_NOT_FOUND, caller_join(&caller));
    EXPECT_STR_EQ(text, caller.text);
    expect_works(peer);
    peer_destroy(peer);
}

TEST(an_unknown_status_is_an_internal_error) {
    struct peer *peer = peer_create(&patient);
    struct caller caller;

    uint32_t request = start_delete(&caller, peer);
    peer_reply(peer, MESSAGE_DELETE, request, 200, "what", 4, -1);
    EXPECT_EQ(STATUS_INTERNAL, caller_join(&caller));
    EXPECT_TRUE(strstr(caller.text, "200") != NULL);
    peer_destroy(peer);
}

TEST(request_ids_wrap_around_zero) {
    struct peer *peer = peer_create(&patient);

    peer->session->last_request = UINT32_MAX - 1;
    for (int i = 0; i < 4; i++) {
        expect_works(peer);
    }
    EXPECT_EQ(3, peer->session->last_request);
    peer_destroy(peer);
}

/* ------------------------------------------------------------------------------- calls given up */

TEST(a_daemon_that_is_silent_is_a_timeout_that_names_it) {
    struct peer *peer = peer_create(&impatient);
    struct call *call;

    peer->session->pid = 4711;
    EXPECT_EQ(STATUS_TIMEOUT, call_run(peer->session, &stats_frame, 0, &call));
    EXPECT_TRUE(strstr(tcx_error(), "tensorcxd (pid 4711) has not answered for 0.02 s: is it") !=
                NULL);
    peer_destroy(peer);
}

TEST(a_timeout_tells_how_long_it_was) {
    struct peer *peer = peer_create(&impatient);
    struct call *call;

    EXPECT_EQ(STATUS_TIMEOUT, call_run(peer->session, &stats_frame, 10 * NS_PER_MS, &call));
    EXPECT_TRUE(strstr(tcx_error(), "has not answered for 0.03 s") != NULL);
    peer_destroy(peer);
}

TEST(an_answer_that_is_there_when_time_is_up_is_taken) {
    struct peer *peer = peer_create(&impatient);
    struct patience none = {.answer_ns = 0}; /* as if this process had been stopped meanwhile */
    struct call *call;

    peer->session->patience = none;
    peer->session->last_request = 41;
    reply_deleted(peer, 42, 6);
    EXPECT_EQ(STATUS_OK, call_run(peer->session, &delete_frame, 0, &call));
    call_free(peer->session, call);
    peer_destroy(peer);
}

TEST(a_late_reply_gives_its_grant_back) {
    struct peer *peer = peer_create(&impatient);
    struct call *call;

    EXPECT_EQ(STATUS_TIMEOUT, call_run(peer->session, &alloc_frame, 0, &call));
    reply_granted(peer, peer_receive(peer, MESSAGE_ALLOC)->request, 7);
    peer->session->patience = patient;

    struct caller caller;
    uint32_t request = start_delete(&caller, peer);
    expect_release(peer, 7, 1);
    reply_deleted(peer, request, 1);
    EXPECT_EQ(STATUS_OK, caller_join(&caller));
    call_free(peer->session, caller.call);
    EXPECT_TRUE(peer->session->calls == NULL);
    peer_destroy(peer);
}

TEST(a_late_hold_gives_all_its_grants_back) {
    struct peer *peer = peer_create(&impatient);
    struct wire_hold fixed = {0};
    struct frame frame = REQUEST(HOLD, &fixed);
    uint64_t ids[2] = {3, 4};
    struct {
        struct wire_hold_reply fixed;
        struct wire_grant grants[2];
    } reply = {.grants = {{.storage = 3}, {.storage = 4}}};
    struct call *call;

    frame.tail[0] = ids;
    frame.tail_nbytes[0] = sizeof ids;
    EXPECT_EQ(STATUS_TIMEOUT, call_run(peer->session, &frame, 0, &call));
    uint32_t request = peer_receive(peer, MESSAGE_HOLD)->request;
    peer_reply(peer, MESSAGE_HOLD, request, STATUS_OK, &reply, sizeof reply, -1);
    EXPECT_EQ(STATUS_TIMEOUT, call_run(peer->session, &stats_frame, 0, &call));
    peer_receive(peer, MESSAGE_STATS);
    const struct wire_header *release = peer_receive(peer, MESSAGE_RELEASE);
    EXPECT_EQ(sizeof *release + sizeof(struct wire_release) + 2 * sizeof(struct wire_returned),
              release->nbytes);
    peer_destroy(peer);
}

TEST(a_late_redeemed_ticket_becomes_a_new_one_and_gives_its_grant_back) {
    struct peer *peer = peer_create(&impatient);
    struct wire_redeem fixed = {.ticket = 1, .storage = 7};
    struct frame frame = REQUEST(REDEEM, &fixed);
    struct wire_redeem_reply reply = {.grant = {.storage = 7}};
    struct call *call;

    EXPECT_EQ(STATUS_TIMEOUT, call_run(peer->session, &frame, 0, &call));
    uint32_t request = peer_receive(peer, MESSAGE_REDEEM)->request;
    peer_reply(peer, MESSAGE_REDEEM, request, STATUS_OK, &reply, sizeof reply, -1);
    EXPECT_EQ(STATUS_TIMEOUT, call_run(peer->session, &stats_frame, 0, &call));
    peer_receive(peer, MESSAGE_STATS);
    const struct wire_ticket *ticket = (const void *)(peer_receive(peer, MESSAGE_TICKET) + 1);
    EXPECT_EQ(7, ticket->storage);
    expect_release(peer, 7, 1);
    peer_destroy(peer);
}

static int stop_at_once(void *context) {
    (*(int *)context)++;
    return 1;
}

TEST(the_interrupt_function_ends_a_call) {
    int asked = 0;
    struct patience patience = {60 * NS_PER_S, stop_at_once, &asked};
    struct peer *peer = peer_create(&patience);
    struct call *call;

    EXPECT_EQ(STATUS_INTERRUPTED, call_run(peer->session, &alloc_frame, 0, &call));
    EXPECT_EQ(1, asked);
    reply_granted(peer, peer_receive(peer, MESSAGE_ALLOC)->request, 8);
    EXPECT_EQ(STATUS_INTERRUPTED, call_run(peer->session, &stats_frame, 0, &call));
    peer_receive(peer, MESSAGE_STATS);
    expect_release(peer, 8, 1);
    peer_destroy(peer);
}

static int let_others_read(void *context) {
    struct peer *peer = context;
    struct caller caller;

    /* The reading role is free meanwhile: this thread's own call takes it. */
    peer->session->patience = patient;
    reply_granted(peer, peer_receive(peer, MESSAGE_ALLOC)->request, 9);
    reply_deleted(peer, start_delete(&caller, peer), 1);
    EXPECT_EQ(STATUS_OK, caller_join(&caller));
    call_free(peer->session, caller.call);
    return 1;
}

TEST(an_answer_that_comes_with_the_interrupt_is_given_back) {
    struct patience patience = {60 * NS_PER_S, NULL, NULL};
    struct peer *peer = peer_create(&patience);
    struct call *call;

    peer->session->patience.interrupt = let_others_read;
    peer->session->patience.context = peer;
    EXPECT_EQ(STATUS_INTERRUPTED, call_run(peer->session, &alloc_frame, 0, &call));
    expect_release(peer, 9, 1);
    EXPECT_TRUE(peer->session->calls == NULL);
    peer_destroy(peer);
}

/* ------------------------------------------------------------------------ waiting for something */

TEST(a_wait_that_is_over_is_cancelled) {
    struct peer *peer = peer_create(&patient);
    struct caller caller;
    struct wire_cancel cancel;

    caller_start(&caller, peer, get_frame, NS_PER_MS);
    uint32_t request = peer_receive(peer, MESSAGE_GET)->request;
    memcpy(&cancel, peer_receive(peer, MESSAGE_CANCEL) + 1, sizeof cancel);
    EXPECT_EQ(request, cancel.request);
    peer_reply(peer, MESSAGE_GET, request, STATUS_CANCELLED, NULL, 0, -1);
    EXPECT_EQ(STATUS_TIMEOUT, caller_join(&caller));
    peer_destroy(peer);
}

TEST(an_answer_that_crosses_the_cancellation_is_taken) {
    struct peer *peer = peer_create(&patient);
    struct wire_get_reply reply = {.grant = {.storage = 5}, .version = 12};
    struct caller caller;

    caller_start(&caller, peer, get_frame, NS_PER_MS);
    uint32_t request = peer_receive(peer, MESSAGE_GET)->request;
    peer_receive(peer, MESSAGE_CANCEL);
    peer_reply(peer, MESSAGE_GET, request, STATUS_OK, &reply, sizeof reply, -1);
    EXPECT_EQ(STATUS_OK, caller_join(&caller));
    EXPECT_EQ(12, ((const struct wire_get_reply *)call_fixed(caller.call))->version);
    call_free(peer->session, caller.call);
    peer_destroy(peer);
}

TEST(a_wait_has_no_answer_timeout) {
    struct peer *peer = peer_create(&impatient);
    struct wire_get_reply reply = {.grant = {.storage = 5}, .version = 12};
    struct caller waiter;
    struct call *call;

    caller_start(&waiter, peer, get_frame, FOREVER);
    uint32_t request = peer_receive(peer, MESSAGE_GET)->request;
    /* Ordinary calls time out meanwhile. */
    EXPECT_EQ(STATUS_TIMEOUT, call_run(peer->session, &stats_frame, 0, &call));
    EXPECT_EQ(STATUS_TIMEOUT, call_run(peer->session, &stats_frame, 0, &call));
    peer_reply(peer, MESSAGE_GET, request, STATUS_OK, &reply, sizeof reply, -1);
    EXPECT_EQ(STATUS_OK, caller_join(&waiter));
    call_free(peer->session, waiter.call);
    peer_destroy(peer);
}
