/* A session whose peer ends or breaks the protocol, whose program closes descriptors, or forks. */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "daemon.h"
#include "peer_calls.h"

/* The session is dead, for this call and for the next one. */
static void expect_lost(struct peer *peer, struct caller *caller) {
    struct call *call;

    EXPECT_EQ(STATUS_LOST, caller_join(caller));
    EXPECT_EQ(STATUS_LOST, call_run(peer->session, &stats_frame, 0, &call));
    EXPECT_TRUE(!session_is_alive(peer->session));
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

    reply_deleted(peer, start_delete(&caller, peer) + 1, 1);
    expect_lost(peer, &caller);
    EXPECT_TRUE(strstr(caller.text, "it broke the protocol: a reply to no call") != NULL);
    peer_destroy(peer);
}

TEST(a_reply_of_another_kind_ends_the_session) {
    struct peer *peer = peer_create(&patient);
    struct caller caller;

    reply_granted(peer, start_delete(&caller, peer), 1);
    expect_lost(peer, &caller);
    peer_destroy(peer);
}

TEST(a_reply_that_is_too_short_ends_the_session) {
    struct peer *peer = peer_create(&patient);
    struct caller caller;

    uint32_t request = start_delete(&caller, peer);
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

    uint32_t request = start_delete(&caller, peer);
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

static int map_with(struct peer *peer, uint64_t nbytes, int fd, struct caller *caller) {
    caller_start_map(caller, peer, 1);
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
