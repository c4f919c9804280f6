/* Joining a channel: the test plays a daemon whose replies are incomplete or cannot be right. */
#include <sys/mman.h>

#include "peer.h"
#include "ring.h"
#include "seat.h"

static const struct ring_shape shape = {.capacity = 4, .buffers = 12, .members = 3};

static struct wire_join_reply good_reply(void) {
    return (struct wire_join_reply){.grant = {.storage = 77},
                                    .channel = 5,
                                    .buffer_nbytes = 4096,
                                    .capacity = 4,
                                    .buffers = 12,
                                    .slots = 8,
                                    .participants = 3,
                                    .slot = 2};
}

/* A control block in a file of so many bytes. */
static int control_block(size_t nbytes) {
    int file = memfd_create("block", MFD_CLOEXEC);

    EXPECT_EQ(0, ftruncate(file, (off_t)ring_nbytes(&shape)));
    void *block = mmap(NULL, ring_nbytes(&shape), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    EXPECT_TRUE(block != MAP_FAILED);
    ring_init(block, &shape);
    munmap(block, ring_nbytes(&shape));
    EXPECT_EQ(0, ftruncate(file, (off_t)nbytes));
    return file;
}

struct joiner {
    struct session *session;
    struct seat *seat;
    int status;
    char text[512];
    pthread_t thread;
};

static void *run_join(void *argument) {
    struct joiner *joiner = argument;
    struct wire_join request = {.flags = JOIN_CREATE};

    joiner->status = seat_join(joiner->session, &request, "q", &joiner->seat);
    snprintf(joiner->text, sizeof joiner->text, "%s", tcx_error());
    return NULL;
}

/* Joins, and is answered so. Takes `file`. */
static struct joiner join_with(struct peer *peer, const struct wire_join_reply *reply, int file) {
    struct joiner joiner = {.session = peer->session};

    EXPECT_EQ(0, pthread_create(&joiner.thread, NULL, run_join, &joiner));
    uint32_t request = peer_receive(peer, MESSAGE_JOIN)->request;
    peer_reply(peer, MESSAGE_JOIN, request, STATUS_OK, reply, sizeof *reply, file);
    if (file >= 0) {
        close(file);
    }
    EXPECT_EQ(0, pthread_join(joiner.thread, NULL));
    return joiner;
}

/* The daemon may give the place away, and has its grant back. */
static void expect_undone(struct peer *peer, const struct wire_join_reply *reply) {
    const struct wire_leave *leave = (const void *)(peer_receive(peer, MESSAGE_LEAVE) + 1);

    EXPECT_EQ(reply->channel, leave->channel);
    EXPECT_EQ(reply->slot, leave->slot);
    peer_receive(peer, MESSAGE_RELEASE);
}

TEST(a_join_without_a_descriptor_can_be_repeated_later) {
    struct peer *peer = peer_create(&patient);
    struct wire_join_reply reply = good_reply();
    struct joiner joiner = join_with(peer, &reply, -1);

    EXPECT_EQ(STATUS_SYSTEM, joiner.status);
    EXPECT_TRUE(strstr(joiner.text, "repeat the call") != NULL);
    expect_undone(peer, &reply);
    reply.grant.storage = 0;
    reply.buffer_nbytes = 0;
    joiner = join_with(peer, &reply, control_block(ring_nbytes(&shape)));
    EXPECT_EQ(STATUS_OK, joiner.status);
    seat_close(joiner.seat);
    seat_unref(joiner.seat);
    peer_receive(peer, MESSAGE_LEAVE);
    peer_destroy(peer);
}

TEST(a_control_block_that_cannot_be_right_is_refused) {
    struct peer *peer = peer_create(&patient);
    struct wire_join_reply reply = good_reply();

    EXPECT_EQ(STATUS_INTERNAL,
              join_with(peer, &reply, control_block(ring_nbytes(&shape) - 1)).status);
    expect_undone(peer, &reply);
    reply.slot = 3;
    EXPECT_EQ(STATUS_INTERNAL, join_with(peer, &reply, control_block(ring_nbytes(&shape))).status);
    expect_undone(peer, &reply);
    reply.slot = 2;
    reply.buffers = 4;
    EXPECT_EQ(STATUS_INTERNAL, join_with(peer, &reply, control_block(ring_nbytes(&shape))).status);
    expect_undone(peer, &reply);
    peer_destroy(peer);
}
