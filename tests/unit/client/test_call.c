/* Calls and notes against a peer that answers as the test says. */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "tensorcx.h"

#include "daemon.h"
#include "peer.h"
#include "segment.h"
#include "storage.h"

static const struct patience patient = {.answer_ns = 60 * NS_PER_S};
static const struct patience impatient = {.answer_ns = 20 * NS_PER_MS};

static const struct wire_stats stats_fixed;
static const struct wire_delete delete_fixed;
static const struct wire_alloc alloc_fixed = {.nbytes = 64, .device_type = 1};
static const struct wire_get get_fixed = {.flags = GET_WAIT};
static const struct frame stats_frame = REQUEST(STATS, &stats_fixed);
static const struct frame delete_frame = REQUEST(DELETE, &delete_fixed);
static const struct frame alloc_frame = REQUEST(ALLOC, &alloc_fixed);
static const struct frame get_frame = REQUEST(GET, &get_fixed);

static void reply_deleted(struct peer *peer, uint32_t request, uint64_t version) {
    struct wire_delete_reply reply = {.version = version};

    peer_reply(peer, MESSAGE_DELETE, request, STATUS_OK, &reply, sizeof reply, -1);
}

static void reply_granted(struct peer *peer, uint32_t request, uint64_t storage) {
    struct wire_alloc_reply reply = {.grant = {.storage = storage}};

    peer_reply(peer, MESSAGE_ALLOC, request, STATUS_OK, &reply, sizeof reply, -1);
}

static uint64_t deleted_version(const struct caller *caller) {
    return ((const struct wire_delete_reply *)call_fixed(caller->call))->version;
}

/* The next message must be a RELEASE of exactly these. */
static void expect_release(struct peer *peer, uint64_t storage, uint64_t grants) {
    struct wire_returned returned;
    const struct wire_header *header = peer_receive(peer, MESSAGE_RELEASE);

    EXPECT_EQ(sizeof *header + sizeof(struct wire_release) + sizeof returned, header->nbytes);
    memcpy(&returned, (const char *)(header + 1) + sizeof(struct wire_release), sizeof returned);
    EXPECT_EQ(storage, returned.storage);
    EXPECT_EQ(grants, returned.grants);
}

/* An ordinary call still works. */
static void expect_works(struct peer *peer) {
    struct caller caller;

    caller_start(&caller, peer, delete_frame, 0);
    reply_deleted(peer, peer_receive(peer, MESSAGE_DELETE)->request, 99);
    EXPECT_EQ(STATUS_OK, caller_join(&caller));
    EXPECT_EQ(99, deleted_version(&caller));
    call_free(peer->session, caller.call);
}

/* The session is dead, for this call and for the next one. */
static void expect_lost(struct peer *peer, struct caller *caller) {
    struct call *call;

    EXPECT_EQ(STATUS_LOST, caller_join(caller));
    EXPECT_EQ(STATUS_LOST, call_run(peer->session, &stats_frame, 0, &call));
    EXPECT_TRUE(!session_is_alive(peer->session));
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
        caller_start(&callers[i], peer, delete_frame, 0);
        requests[i] = peer_receive(peer, MESSAGE_DELETE)->request;
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

    caller_start(&caller, peer, delete_frame, 0);
    uint32_t request = peer_receive(peer, MESSAGE_DELETE)->request;
    peer_reply(peer, MESSAGE_DELETE, request, STATUS_NOT_FOUND, text, strlen(text), -1);
    EXPECT_EQ(STATUS_NOT_FOUND, caller_join(&caller));
    EXPECT_STR_EQ(text, caller.text);
    expect_works(peer);
    peer_destroy(peer);
}

TEST(an_unknown_status_is_an_internal_error) {
    struct peer *peer = peer_create(&patient);
    struct caller caller;

    caller_start(&caller, peer, delete_frame, 0);
    uint32_t request = peer_receive(peer, MESSAGE_DELETE)->request;
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
    caller_start(&caller, peer, delete_frame, 0);
    uint32_t request = peer_receive(peer, MESSAGE_DELETE)->request;
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
    caller_start(&caller, peer, delete_frame, 0);
    reply_deleted(peer, peer_receive(peer, MESSAGE_DELETE)->request, 1);
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

/* ---------------------------------------------------------------------- the end of a connection */

TEST(the_end_of_the_daemon_wakes_all_who_wait) {
    enum { COUNT = 8 };
    struct peer *peer = peer_create(&patient);
    struct caller callers[COUNT];

    for (int i = 0; i < COUNT; i++) {
        caller_start(&callers[i], peer, i % 2 ? get_frame : stats_frame, i % 2 ? FOREVER : 0);
        peer_receive(peer, i % 2 ? MESSAGE_GET : MESSAGE_STATS);
    }
    peer_hang_up(peer);
    for (int i = 0; i < COUNT; i++) {
        EXPECT_EQ(STATUS_LOST, caller_join(&callers[i]));
        EXPECT_TRUE(strstr(callers[i].text, "it has ended") != NULL);
    }
    peer_destroy(peer);
}

TEST(an_end_between_calls_is_noticed) {
    struct peer *peer = peer_create(&patient);

    EXPECT_TRUE(session_is_alive(peer->session));
    peer_hang_up(peer);
    EXPECT_TRUE(!session_is_alive(peer->session));
    peer_destroy(peer);
}

static int answer_and_hang_up(void *context) {
    struct peer *peer = context;

    if (peer->socket >= 0) { /* nobody reads at this moment */
        reply_deleted(peer, peer_receive(peer, MESSAGE_DELETE)->request, 5);
        peer_hang_up(peer);
        EXPECT_TRUE(!session_is_alive(peer->session));
    }
    return 0;
}

TEST(a_reply_that_came_before_the_end_is_not_lost) {
    struct patience patience = {60 * NS_PER_S, NULL, NULL};
    struct peer *peer = peer_create(&patience);
    struct call *call;

    peer->session->patience.interrupt = answer_and_hang_up;
    peer->session->patience.context = peer;
    EXPECT_EQ(STATUS_OK, call_run(peer->session, &delete_frame, 0, &call));
    EXPECT_EQ(5, ((const struct wire_delete_reply *)call_fixed(call))->version);
    call_free(peer->session, call);
    EXPECT_TRUE(!session_is_alive(peer->session));
    EXPECT_EQ(STATUS_LOST, call_run(peer->session, &stats_frame, 0, &call));
    peer_destroy(peer);
}

TEST(a_reply_to_no_call_ends_the_session) {
    struct peer *peer = peer_create(&patient);
    struct caller caller;

    caller_start(&caller, peer, delete_frame, 0);
    reply_deleted(peer, peer_receive(peer, MESSAGE_DELETE)->request + 1, 1);
    expect_lost(peer, &caller);
    EXPECT_TRUE(strstr(caller.text, "it broke the protocol: a reply to no call") != NULL);
    peer_destroy(peer);
}

TEST(a_reply_of_another_kind_ends_the_session) {
    struct peer *peer = peer_create(&patient);
    struct caller caller;

    caller_start(&caller, peer, delete_frame, 0);
    reply_granted(peer, peer_receive(peer, MESSAGE_DELETE)->request, 1);
    expect_lost(peer, &caller);
    peer_destroy(peer);
}

TEST(a_reply_that_is_too_short_ends_the_session) {
    struct peer *peer = peer_create(&patient);
    struct caller caller;

    caller_start(&caller, peer, delete_frame, 0);
    uint32_t request = peer_receive(peer, MESSAGE_DELETE)->request;
    peer_reply(peer, MESSAGE_DELETE, request, STATUS_OK, "1234", 4, -1);
    expect_lost(peer, &caller);
    peer_destroy(peer);
}

static int count_peer(void *context, const tcx_peer_t *peer) {
    (void)peer;
    (*(int *)context)++;
    return 0;
}

TEST(a_list_that_does_not_go_on_is_an_error) {
    struct peer *peer = peer_create(&impatient);
    struct {
        struct wire_clients_reply fixed;
        struct wire_client client;
    } page = {{.count = 1, .more = 1}, {.client = 3}};
    int count = 0;

    for (uint32_t request = 1; request <= 2; request++) {
        peer_reply(peer, MESSAGE_CLIENTS, request, STATUS_OK, &page, sizeof page, -1);
    }
    EXPECT_EQ(STATUS_INTERNAL, daemon_peers(peer->session, 0, 0, count_peer, &count));
    EXPECT_EQ(2, count);
    peer_destroy(peer);
}

TEST(a_descriptor_where_none_belongs_ends_the_session_and_is_closed) {
    struct peer *peer = peer_create(&patient);
    struct wire_delete_reply reply = {1};
    struct caller caller;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    caller_start(&caller, peer, delete_frame, 0);
    uint32_t request = peer_receive(peer, MESSAGE_DELETE)->request;
    peer_reply(peer, MESSAGE_DELETE, request, STATUS_OK, &reply, sizeof reply, fd);
    expect_lost(peer, &caller);
    close(fd);
    peer_destroy(peer); /* the runner counts descriptors */
}

TEST(garbage_of_any_length_ends_the_session) {
    char garbage[256];

    srandom(1);
    for (size_t nbytes = 1; nbytes <= sizeof garbage; nbytes += 5) {
        struct peer *peer = peer_create(&patient);
        struct caller caller;
        for (size_t i = 0; i < nbytes; i++) {
            garbage[i] = (char)random();
        }
        caller_start(&caller, peer, stats_frame, 0);
        peer_receive(peer, MESSAGE_STATS);
        EXPECT_EQ(0, connection_send_bytes(peer->socket, garbage, nbytes, -1));
        expect_lost(peer, &caller);
        peer_destroy(peer);
    }
}

TEST(a_message_longer_than_any_ends_the_session) {
    struct peer *peer = peer_create(&patient);
    struct caller caller;
    char *bytes = calloc(1, WIRE_MESSAGE_MAX + 8);

    caller_start(&caller, peer, stats_frame, 0);
    peer_receive(peer, MESSAGE_STATS);
    EXPECT_EQ(0, connection_send_bytes(peer->socket, bytes, WIRE_MESSAGE_MAX + 8, -1));
    expect_lost(peer, &caller);
    free(bytes);
    peer_destroy(peer);
}

/* ---------------------------------------------------------------------------------- descriptors */

TEST(a_descriptor_number_that_is_no_longer_ours_is_left_alone) {
    struct peer *peer = peer_create(&patient);
    struct call *call;
    int number = peer->session->socket;
    int file = memfd_create("somebody else's", MFD_CLOEXEC);

    EXPECT_EQ(number, dup3(file, number, O_CLOEXEC)); /* as programs do that close everything */
    EXPECT_EQ(STATUS_LOST, call_run(peer->session, &stats_frame, 0, &call));
    EXPECT_TRUE(fcntl(number, F_GETFD) >= 0);
    EXPECT_EQ(0, lseek(number, 0, SEEK_END));
    close(number);
    close(file);
    peer_destroy(peer);
}

static void reply_mapped(struct peer *peer, uint32_t request, uint64_t nbytes, int fd) {
    struct wire_map_reply reply = {.nbytes = nbytes};

    peer_reply(peer, MESSAGE_MAP, request, STATUS_OK, &reply, sizeof reply, fd);
}

static void *run_map(void *argument) {
    struct caller *caller = argument;

    caller->status = segment_map(caller->session, 1);
    snprintf(caller->text, sizeof caller->text, "%s", tcx_error());
    return NULL;
}

static int map_with(struct peer *peer, uint64_t nbytes, int fd, struct caller *caller) {
    *caller = (struct caller){.session = peer->session};
    EXPECT_EQ(0, pthread_create(&caller->thread, NULL, run_map, caller));
    reply_mapped(peer, peer_receive(peer, MESSAGE_MAP)->request, nbytes, fd);
    return caller_join(caller);
}

TEST(without_a_free_descriptor_a_segment_cannot_be_mapped_and_later_it_can) {
    struct peer *peer = peer_create(&patient);
    struct caller caller;
    struct rlimit limit;
    int file = memfd_create("segment", MFD_CLOEXEC);

    EXPECT_EQ(0, ftruncate(file, 8192));
    getrlimit(RLIMIT_NOFILE, &limit);
    struct rlimit tight = {(rlim_t)file + 1, limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &tight);
    EXPECT_EQ(STATUS_SYSTEM, map_with(peer, 8192, file, &caller));
    EXPECT_TRUE(strstr(caller.text, "RLIMIT_NOFILE") != NULL);
    setrlimit(RLIMIT_NOFILE, &limit);
    EXPECT_EQ(STATUS_OK, map_with(peer, 8192, file, &caller));
    expect_works(peer);
    close(file);
    peer_destroy(peer);
}

TEST(a_segment_smaller_than_it_says_is_refused) {
    struct peer *peer = peer_create(&patient);
    struct caller caller;
    int file = memfd_create("segment", MFD_CLOEXEC);

    EXPECT_EQ(0, ftruncate(file, 4096));
    EXPECT_EQ(STATUS_INTERNAL, map_with(peer, 8192, file, &caller));
    EXPECT_EQ(STATUS_INTERNAL, map_with(peer, 4096, -1, &caller));
    EXPECT_EQ(STATUS_INTERNAL, map_with(peer, 0, file, &caller));
    expect_works(peer);
    close(file);
    peer_destroy(peer);
}

/* ---------------------------------------------------------------------------------------- notes */

static int has_outbox(struct peer *peer) {
    session_lock(peer->session);
    int has = peer->session->outbox != NULL;
    session_unlock(peer->session);
    return has;
}

TEST(notes_that_the_socket_does_not_take_wait_in_order) {
    enum { COUNT = 5000 }; /* far more than a socket's buffer has room for */
    struct peer *peer = peer_create(&patient);
    struct wire_cancel cancel;
    struct caller caller;

    for (uint32_t i = 0; i < COUNT; i++) {
        peer_note(peer, i);
    }
    EXPECT_TRUE(has_outbox(peer));
    caller_start(&caller, peer, delete_frame, 0); /* it sends what waits, then itself */
    for (uint32_t i = 0; i < COUNT; i++) {
        memcpy(&cancel, peer_receive(peer, MESSAGE_CANCEL) + 1, sizeof cancel);
        EXPECT_EQ(i, cancel.request);
    }
    reply_deleted(peer, peer_receive(peer, MESSAGE_DELETE)->request, 1);
    EXPECT_EQ(STATUS_OK, caller_join(&caller));
    call_free(peer->session, caller.call);
    EXPECT_TRUE(!has_outbox(peer));
    peer_destroy(peer);
}

/* Lets `count` storages go, one by one, from id 1 on. */
static void release(struct peer *peer, uint64_t count) {
    struct wire_release fixed = {0};
    struct frame frame = REQUEST(RELEASE, &fixed);

    for (uint64_t id = 1; id <= count; id++) {
        struct wire_returned returned = {id, 1};
        frame.tail[0] = &returned;
        frame.tail_nbytes[0] = sizeof returned;
        session_lock(peer->session);
        call_note(peer->session, &frame);
        session_unlock(peer->session);
    }
}

/* They all come, in order. Returns in how many messages. */
static int expect_releases(struct peer *peer, uint64_t count) {
    uint64_t id = 1;
    int messages = 0;

    while (id <= count) {
        const struct wire_header *header = peer_receive(peer, MESSAGE_RELEASE);
        const char *tail = (const char *)(header + 1) + sizeof(struct wire_release);
        const char *end = (const char *)header + header->nbytes;
        EXPECT_EQ(0, (size_t)(end - tail) % sizeof(struct wire_returned));
        for (; tail < end; tail += sizeof(struct wire_returned)) {
            struct wire_returned returned;
            memcpy(&returned, tail, sizeof returned);
            EXPECT_EQ(id, returned.storage);
            EXPECT_EQ(1, returned.grants);
            id++;
        }
        messages++;
    }
    EXPECT_EQ(count + 1, id);
    return messages;
}

TEST(what_is_let_go_arrives_without_another_call) {
    enum { COUNT = 20000 };
    struct peer *peer = peer_create(&patient);

    release(peer, COUNT);
    EXPECT_TRUE(has_outbox(peer));
    EXPECT_TRUE(expect_releases(peer, COUNT) < COUNT / 4); /* those that had to wait are merged */
    /* More can follow when the thread that sent them is gone, too. */
    release(peer, COUNT);
    expect_releases(peer, COUNT);
    expect_works(peer);
    peer_destroy(peer);
}

static void tell_done(struct peer *peer, uint64_t channel) {
    struct wire_done fixed = {.channel = channel};
    struct frame frame = REQUEST(DONE, &fixed);

    session_lock(peer->session);
    call_note(peer->session, &frame);
    session_unlock(peer->session);
}

TEST(a_channel_that_is_done_is_told_once_while_the_daemon_is_slow) {
    enum { COUNT = 20000 };
    struct peer *peer = peer_create(&patient);
    struct wire_done done = {0};
    int messages = 0;

    for (int i = 0; i < COUNT; i++) {
        tell_done(peer, 1);
    }
    EXPECT_TRUE(has_outbox(peer));
    tell_done(peer, 2);
    while (done.channel != 2) {
        memcpy(&done, peer_receive(peer, MESSAGE_DONE) + 1, sizeof done);
        messages++;
    }
    EXPECT_TRUE(messages < COUNT / 4);
    expect_works(peer);
    peer_destroy(peer);
}

TEST(a_session_outlives_its_last_user_until_all_is_sent) {
    enum { COUNT = 5000 };
    struct peer *peer = peer_create(&patient);
    int number = peer->session->socket;
    int fd;

    release(peer, COUNT);
    EXPECT_TRUE(has_outbox(peer));
    session_unref(peer->session);
    expect_releases(peer, COUNT);
    struct pollfd poller = {.fd = peer->socket, .events = POLLIN};
    EXPECT_EQ(1, poll(&poller, 1, -1));
    EXPECT_EQ(0, connection_receive(peer->socket, peer->bytes, sizeof peer->bytes, &fd));
    while (fcntl(number, F_GETFD) >=
           0) { /* it closes the socket right after; the runner's timeout */
        poll(NULL, 0, 1);
    }
    peer_hang_up(peer);
    free(peer);
}

TEST(a_child_does_not_have_the_thread_that_flushes) {
    enum { COUNT = 5000 };
    struct peer *peer = peer_create(&patient);
    struct call *call;
    int status;

    release(peer, COUNT);
    EXPECT_TRUE(has_outbox(peer));
    pid_t pid = fork();
    if (pid == 0) {
        EXPECT_EQ(1, atomic_load(&peer->session->refs));
        EXPECT_EQ(STATUS_LOST, call_run(peer->session, &stats_frame, 0, &call));
        session_unref(peer->session);
        _exit(0);
    }
    EXPECT_EQ(pid, waitpid(pid, &status, 0));
    EXPECT_EQ(0, status);
    expect_releases(peer, COUNT); /* each once: the child has sent nothing */
    expect_works(peer);
    peer_destroy(peer);
}

/* ----------------------------------------------------------------------------------------- fork */

TEST(a_child_leaves_its_parents_connection_alone) {
    struct peer *peer = peer_create(&patient);
    struct call *call;
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        int is_lost = call_run(peer->session, &stats_frame, 0, &call) == STATUS_LOST;
        session_unref(peer->session);
        _exit(is_lost ? 0 : 1);
    }
    EXPECT_EQ(pid, waitpid(pid, &status, 0));
    EXPECT_EQ(0, status);
    expect_works(peer); /* and the child has said nothing */
    peer_destroy(peer);
}

TEST(a_child_leaves_a_number_alone_that_is_no_longer_ours) {
    enum { COUNT = 8 };
    struct peer *peer = peer_create(&patient);
    struct caller callers[COUNT];
    struct call *call;
    int status;

    for (int i = 0; i < COUNT; i++) { /* threads that the child does not have */
        caller_start(&callers[i], peer, stats_frame, 0);
        peer_receive(peer, MESSAGE_STATS);
    }
    int number = peer->session->socket;
    int ours = fcntl(number, F_DUPFD_CLOEXEC, 0);
    int file = memfd_create("somebody else's", MFD_CLOEXEC);
    EXPECT_EQ(number, dup3(file, number, O_CLOEXEC));
    pid_t pid = fork();
    if (pid == 0) {
        EXPECT_EQ(0, lseek(number, 0, SEEK_END)); /* still the file */
        EXPECT_EQ(STATUS_LOST, call_run(peer->session, &stats_frame, 0, &call));
        _exit(0);
    }
    EXPECT_EQ(pid, waitpid(pid, &status, 0));
    EXPECT_EQ(0, status);
    close(ours);
    for (int i = 0; i < COUNT; i++) {
        EXPECT_EQ(STATUS_LOST, caller_join(&callers[i]));
    }
    close(number);
    close(file);
    peer_destroy(peer);
}

static pid_t child = -1;

/* Tells the test through the pipe when there is a child. */
static int fork_once(void *context) {
    const int *ends = context;

    if (child == -1) {
        child = fork();
        if (child > 0) {
            EXPECT_EQ(sizeof child, write(ends[1], &child, sizeof child));
        }
    }
    return 0;
}

static void *run_and_split(void *argument) {
    struct caller *caller = argument;

    caller->status = call_run(caller->session, &caller->frame, 0, &caller->call);
    if (child == 0) {
        _exit(caller->status == STATUS_LOST ? 0 : 1);
    }
    return NULL;
}

TEST(a_fork_in_the_middle_of_a_call_splits_cleanly) {
    int ends[2];
    struct patience patience = {60 * NS_PER_S, fork_once, ends};
    struct peer *peer = peer_create(&patience);
    struct caller caller = {.session = peer->session, .frame = delete_frame};
    pid_t pid;
    int status;

    EXPECT_EQ(0, pipe2(ends, O_CLOEXEC));
    EXPECT_EQ(0, pthread_create(&caller.thread, NULL, run_and_split, &caller));
    uint32_t request = peer_receive(peer, MESSAGE_DELETE)->request;
    EXPECT_EQ(sizeof pid, read(ends[0], &pid, sizeof pid));
    EXPECT_EQ(pid, waitpid(pid, &status, 0));
    EXPECT_EQ(0, status);
    reply_deleted(peer, request, 3);
    EXPECT_EQ(STATUS_OK, caller_join(&caller));
    call_free(peer->session, caller.call);
    close(ends[0]);
    close(ends[1]);
    peer_destroy(peer);
}
