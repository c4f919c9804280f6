/* A peer writes what it likes into the block. Whatever it is, others read and write only inside it.
 */
#include "ring_fixture.h"

static void seven_sent(struct rig *rig) {
    *rig = given_rig(0, 8, 12);
    struct ring sender = given_client(rig, 1);

    for (uint32_t n = 0; n < 7; n++) {
        EXPECT_EQ(RING_OK, send_number(rig, &sender, &at_once, n));
    }
}

TEST(a_bad_entry_is_an_error_for_the_reader_of_that_message_only) {
    struct rig rig;
    seven_sent(&rig);
    struct ring reader = given_client(&rig, 2);
    struct ring_message message;

    rig.daemon.entries[0].buffer = 12;
    rig.daemon.entries[1].number = 99;
    rig.daemon.entries[3].buffer = rig.daemon.entries[2].buffer; /* held when its turn comes */
    EXPECT_EQ(RING_BAD, ring_recv(&reader, &at_once, false, &message));
    EXPECT_EQ(RING_BAD, ring_recv(&reader, &at_once, false, &message));
    EXPECT_EQ(RING_OK, ring_recv(&reader, &at_once, false, &message));
    uint32_t held = message.buffer;
    EXPECT_EQ(RING_BAD, ring_recv(&reader, &at_once, false, &message));
    ring_release(&reader, held);
    for (uint32_t n = 4; n < 7; n++) {
        expect_received(&rig, &reader, n);
    }
    expect_at_rest(&rig);
}

TEST(a_cursor_that_makes_no_sense_breaks_the_handle) {
    struct rig rig;
    seven_sent(&rig);
    struct ring reader = given_client(&rig, 2);
    struct ring_message message;

    rig.daemon.control->cursor = 1000;
    EXPECT_EQ(RING_BROKEN, ring_recv(&reader, &at_once, false, &message));
    rig.daemon.control->cursor = 0;
    EXPECT_EQ(RING_BROKEN, ring_recv(&reader, &at_once, false, &message));
}

TEST(a_head_that_makes_no_sense_breaks_the_sender) {
    struct rig rig;
    seven_sent(&rig);
    struct ring sender = given_client(&rig, 2);
    uint32_t buffer;

    rig.daemon.control->head = UINT64_MAX;
    EXPECT_EQ(RING_BROKEN, ring_loan(&sender, &at_once, &buffer));
}

TEST(who_finds_its_lock_overwritten_leaves_it_and_is_broken) {
    struct rig rig;
    seven_sent(&rig);
    struct ring reader = given_client(&rig, 2);
    uint32_t buffer;

    EXPECT_EQ(RING_OK, ring_lock(&reader, 0));
    rig.daemon.control->lock = 77;
    ring_unlock(&reader);
    EXPECT_EQ(77, rig.daemon.control->lock);
    EXPECT_EQ(RING_BROKEN, ring_loan(&reader, &at_once, &buffer));
}

TEST(a_lock_that_is_nobodys_breaks_who_waits_for_it) {
    const uint32_t nobodys[] = {77, UINT32_C(1) << 31, UINT32_MAX};
    struct rig rig;
    seven_sent(&rig);

    ring_slice_ns = 1000000;
    for (uint32_t i = 0; i < 3; i++) {
        struct ring reader = given_client(&rig, 2 + i);
        struct ring_message message;
        rig.daemon.control->lock = nobodys[i];
        EXPECT_EQ(RING_BROKEN, ring_recv(&reader, &for_ever, false, &message));
        rig.daemon.control->lock = 0;
        EXPECT_EQ(RING_BROKEN, ring_recv(&reader, &for_ever, false, &message));
    }
}

/* All that reads the block does what it does with whatever is there now. */
static void use_all(struct ring *daemon, struct ring *client, int i) {
    struct ring_message message;
    struct ring_holder holders[2];
    struct ring_report report;
    uint64_t needed[RING_MASK_WORDS];
    uint32_t buffer;

    client->broken = 0;
    if (ring_loan(client, &at_once, &buffer) == RING_OK) {
        EXPECT_TRUE(buffer < client->shape.buffers);
        ring_send(client, &at_once, buffer);
    }
    ring_subscribe(client, 0, i % 3);
    if (ring_recv(client, &at_once, i % 2, &message) == RING_OK) {
        EXPECT_TRUE(message.buffer < client->shape.buffers);
        ring_release(client, message.buffer);
    }
    ring_sweep(daemon, needed);
    ring_report(client, holders, 2, &report);
}

/* Random words anywhere in the block; ASan watches the block's ends (it is malloc'ed here). */
TEST(random_garbage_is_never_followed_out_of_the_block) {
    struct ring_shape shapes[] = {
        {0, 8, 70, 4, 64},
        {RING_TOPIC, 8, 70, 4, 64},
        {RING_TOPIC | RING_DROP_OLDEST, 8, 12, 4, 64},
        {RING_DROP_OLDEST, 1, 2, 4, 64},
    };
    unsigned seed = 1;

    ring_slice_ns = 1000;
    for (int round = 0; round < 4000; round++) {
        struct ring_shape *shape = &shapes[round % 4];
        size_t nbytes = ring_nbytes(shape);
        uint32_t *block = aligned_alloc(RING_ALIGN, nbytes);
        struct ring daemon, client;

        memset(block, 0, nbytes);
        ring_init(block, shape);
        EXPECT_TRUE(ring_open(block, nbytes, shape, 0, 0, &daemon) == NULL);
        EXPECT_TRUE(ring_seat(&daemon, 1, 7));
        EXPECT_TRUE(ring_open(block, nbytes, shape, 7, 1, &client) == NULL);
        for (int i = 0; i < 20; i++) {
            block[(size_t)rand_r(&seed) % (nbytes / 4)] =
                i % 2 ? (uint32_t)rand_r(&seed) : (uint32_t)rand_r(&seed) % 20;
            block[32 + (size_t)rand_r(&seed) % 40] = (uint32_t)rand_r(&seed) % 3;
            block[32] = 0; /* else most rounds only wait for the lock */
            use_all(&daemon, &client, i);
        }
        ring_vacate(&daemon, 1, NULL);
        ring_repair(&daemon, 7);
        free(block);
    }
}
