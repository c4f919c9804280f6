/* Notes, and what becomes of them while the socket takes no more: against a peer that reads later.
 */
#include <fcntl.h>
#include <sys/wait.h>

#include "peer_calls.h"

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
