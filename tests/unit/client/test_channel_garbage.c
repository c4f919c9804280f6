/* Peers that write nonsense into a channel, and messages that cannot be opened at the first
 * attempt. */
#include <sys/resource.h>

#include "channel.h"
#include "channel_desc.h"
#include "channel_fixture.h"
#include "layout.h"

static struct ring *ring_of(tcx_channel_t *channel) {
    return &atomic_load(&channel->seat)->ring;
}

/* Sends a message with a good ring entry and whatever `desc` says. */
static void send_desc(tcx_channel_t *channel, const struct channel_desc *desc) {
    struct ring_wait wait = {0};
    uint32_t buffer;

    EXPECT_EQ(RING_OK, ring_loan(ring_of(channel), &wait, &buffer));
    channel_desc_write(ring_of(channel), buffer, desc);
    EXPECT_EQ(RING_OK, ring_send(ring_of(channel), &wait, buffer));
}

static void good_desc(struct channel_desc *desc) {
    static const int64_t shape[1] = {COUNT};
    tcx_array_t array = {.dtype = float32, .ndim = 1, .shape = shape};

    channel_desc_init(desc);
    layout_describe(&array, 0, 0, 0, &desc->memory);
}

/* That message is an error for who receives it, the next one is not, and no buffer is lost. */
static void expect_refused(tcx_channel_t *channel, int status) {
    EXPECT_EQ(status, try_recv(channel, 0));
    send_number(channel, 7);
    expect_next(channel, 7);
    EXPECT_EQ(0, holders_of(channel).buffers);
}

TEST(a_subscription_whose_state_is_nonsense_says_so) {
    given_daemon();
    tcx_channel_t *topic = open_channel(client, "t", TCX_CHANNEL_TOPIC, 2);
    tcx_channel_t *reader = subscribe(topic, 0);
    struct ring *ring = ring_of(reader);
    send_number(topic, 1);
    for (uint32_t state = 0; state <= 77; state += 77) {
        __atomic_store_n(&ring->members[ring->member].state, state, __ATOMIC_RELEASE);
        EXPECT_EQ(TCX_INTERNAL, try_recv(reader, 0));
        expect_text("nonsense into subscription to topic \"t\"");
    }
    tcx_channel_close(reader);
    tcx_channel_close(topic);
    end();
}

TEST(descriptions_that_lie_are_an_error_for_their_receiver_only) {
    struct channel_desc desc;

    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    send_number(queue, 7);
    expect_next(queue, 7);
    good_desc(&desc);
    desc.memory.shape[0] = 1025; /* beyond the buffer */
    send_desc(queue, &desc);
    expect_refused(queue, TCX_INTERNAL);
    good_desc(&desc);
    desc.memory.byte_offset = UINT64_MAX - 3;
    send_desc(queue, &desc);
    expect_refused(queue, TCX_INTERNAL);
    good_desc(&desc);
    desc.memory.byte_offset = UINT64_C(1) << 63; /* no address is so far away */
    send_desc(queue, &desc);
    expect_refused(queue, TCX_INTERNAL);
    good_desc(&desc);
    desc.memory.dtype.bits = 7;
    send_desc(queue, &desc);
    expect_refused(queue, TCX_INTERNAL);
    good_desc(&desc);
    desc.memory.strides[0] = 2;
    desc.memory.shape[0] = 3;
    send_desc(queue, &desc);
    expect_refused(queue, TCX_EXCHANGE);
    good_desc(&desc);
    desc.memory.flags = DESC_BUNDLE; /* of floats */
    send_desc(queue, &desc);
    expect_refused(queue, TCX_INTERNAL);
    desc.memory.dtype = (struct desc_dtype){TCX_UINT, 8, 1}; /* of floats that say they are bytes */
    send_desc(queue, &desc);
    expect_refused(queue, TCX_INTERNAL);
    good_desc(&desc);
    desc.is_single = 1;
    send_desc(queue, &desc);
    expect_refused(queue, TCX_INTERNAL);
    tcx_channel_close(queue);
    end();
}

TEST(references_that_the_daemon_does_not_know_are_stale) {
    struct channel_desc desc;

    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    good_desc(&desc);
    desc.ref = 12345;
    send_desc(queue, &desc);
    expect_refused(queue, TCX_STALE);
    desc.is_elsewhere = 1;
    send_desc(queue, &desc);
    expect_refused(queue, TCX_STALE);
    desc.ref = 0;
    send_desc(queue, &desc);
    expect_refused(queue, TCX_INTERNAL);
    tcx_channel_close(queue);
    end();
}

TEST(a_message_in_a_channel_without_buffers_is_refused) {
    struct channel_desc desc;

    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    good_desc(&desc);
    send_desc(queue, &desc);
    expect_refused(queue, TCX_INTERNAL);
    tcx_channel_close(queue);
    end();
}

TEST(entries_that_lie_are_skipped_and_cursors_that_lie_break_the_handle) {
    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    send_number(queue, 1);
    send_number(queue, 2);
    ring_of(queue)->entries[0].buffer = 12345;
    EXPECT_EQ(TCX_INTERNAL, try_recv(queue, 0));
    expect_text("a message is skipped");
    expect_next(queue, 2);
    ring_of(queue)->control->head += 1000;
    EXPECT_EQ(TCX_INTERNAL, try_recv(queue, 0));
    expect_text("cannot be used any more");
    EXPECT_EQ(TCX_INTERNAL, try_send(queue, 1, COUNT, 0));
    EXPECT_EQ(8, look_at(queue).capacity); /* the daemon said so, whatever is written there */
    tcx_channel_close(queue);
    end();
}

/* ----------------------------------------------------------------------------- the next attempt */

TEST(a_reference_that_the_daemon_is_too_slow_for_comes_at_the_next_call) {
    given_daemon();
    tcx_client_t *other = daemon_client(&own);
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    tcx_channel_t *reader = open_channel(other, "q", 0, 0);
    tcx_tensor_t *born = shared(client, 7, COUNT);
    EXPECT_OK(tcx_channel_send(queue, tcx_tensor_array(born), 0));
    tcx_tensor_unref(born);
    send_number(queue, 8);
    EXPECT_EQ(0, kill(own.pid, SIGSTOP));
    set_patience(other, 20 * NS_PER_MS);
    EXPECT_EQ(TCX_TIMEOUT, try_recv(reader, 0));
    expect_text("has not answered");
    set_patience(other, 60 * NS_PER_S);
    EXPECT_EQ(0, kill(own.pid, SIGCONT));
    expect_next(queue, 8); /* the other message is the other handle's */
    expect_next(reader, 7);
    EXPECT_EQ(0, holders_of(queue).buffers);
    tcx_channel_close(reader);
    tcx_channel_close(queue);
    tcx_client_close(other);
    end();
}

TEST(a_message_that_was_never_opened_goes_with_its_handle) {
    given_daemon();
    tcx_client_t *other = daemon_client(&own);
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    tcx_channel_t *reader = open_channel(other, "q", 0, 0);
    EXPECT_OK(try_send(queue, 7, NUMBERS_MAX, 0));
    EXPECT_EQ(0, kill(own.pid, SIGSTOP));
    set_patience(other, 20 * NS_PER_MS);
    EXPECT_EQ(TCX_TIMEOUT, try_recv(reader, 0));
    set_patience(other, 60 * NS_PER_S);
    EXPECT_EQ(0, kill(own.pid, SIGCONT));
    EXPECT_EQ(1, holders_of(queue).buffers);
    tcx_channel_close(reader);
    expect_held(queue, 0);
    tcx_channel_close(queue);
    tcx_client_close(other);
    end();
}

TEST(a_join_that_was_given_up_leaves_no_handle) {
    tcx_channel_options_t sized = {.buffer_nbytes = 4096};
    tcx_channel_t *channel;

    given_daemon();
    tcx_client_t *other = daemon_client(&own);
    EXPECT_OK(tcx_client_connect(other));
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    EXPECT_EQ(0, kill(own.pid, SIGSTOP));
    set_patience(other, 20 * NS_PER_MS);
    EXPECT_EQ(TCX_TIMEOUT, tcx_channel_open(other, "q", &sized, &channel));
    set_patience(other, 60 * NS_PER_S);
    EXPECT_EQ(0, kill(own.pid, SIGCONT));
    tcx_stats_t stats;
    do { /* the late reply is taken in with others; or the runner's timeout */
        EXPECT_OK(tcx_stats(other, &stats));
    } while (stats.storages == 0 || look_at(queue).handles != 1);
    tcx_channel_close(queue);
    tcx_client_close(other);
    end();
}

TEST(without_descriptors_a_channel_cannot_be_opened_and_nothing_stays) {
    struct rlimit limit;
    tcx_channel_t *channel;

    given_daemon();
    EXPECT_OK(tcx_client_connect(client));
    tcx_client_t *other = daemon_client(&own);
    tcx_channel_t *queue = open_channel(other, "q", 0, 0);
    EXPECT_EQ(0, getrlimit(RLIMIT_NOFILE, &limit));
    struct rlimit none = {.rlim_cur = 3, .rlim_max = limit.rlim_max};
    EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &none));
    EXPECT_EQ(TCX_SYSTEM, tcx_channel_open(client, "q", NULL, &channel));
    EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &limit));
    expect_text("RLIMIT_NOFILE");
    tcx_stats_t stats;
    EXPECT_OK(tcx_stats(client, &stats));
    EXPECT_EQ(1, look_at(queue).handles);
    tcx_channel_close(queue);
    tcx_client_close(other);
    end();
}
