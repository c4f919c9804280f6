/* Messages by reference, again and again: who asks the daemon, and what keeps the memory meanwhile.
 * A storage that was here before stays in its message's buffer: it is pinned. */
#include "channel_fixture.h"

static tcx_client_t *other;
static tcx_channel_t *queue, *reader; /* of `client`, of `other` */
static tcx_tensor_t *born;            /* is sent */

static void send(tcx_channel_t *channel, const tcx_tensor_t *tensor) {
    EXPECT_OK(tcx_channel_send(channel, tcx_tensor_array(tensor), 0));
}

static uint64_t id_of(const tcx_tensor_t *tensor) {
    return info_of(tensor).storage_id;
}

/* A storage that `reader` has had twice. */
static void given_a_sender(void) {
    given_daemon();
    other = daemon_client(&own);
    queue = open_channel(client, "q", 0, 0);
    reader = open_channel(other, "q", 0, 0);
    born = shared(client, 7, COUNT);
    for (int i = 0; i < 2; i++) {
        send(queue, born);
        expect_next(reader, 7);
    }
    expect_held(queue, 0);
}

static tcx_tensor_t *given_pinned(void) {
    given_a_sender();
    send(queue, born);
    tcx_tensor_t *pinned = receive(reader);
    EXPECT_EQ(1, holders_of(queue).buffers);
    EXPECT_EQ(id_of(born), id_of(pinned));
    return pinned;
}

static void end_all(void) {
    tcx_channel_close(queue);
    tcx_channel_close(reader);
    tcx_client_close(other);
    end();
}

static uint64_t requests(void) {
    tcx_stats_t stats;

    EXPECT_OK(tcx_stats(client, &stats));
    return stats.requests;
}

TEST(what_was_sent_before_asks_nobody) {
    given_a_sender();
    uint64_t before = requests();
    for (int i = 0; i < 100; i++) {
        send(queue, born);
        expect_next(reader, 7);
    }
    EXPECT_EQ(before + 1, requests());
    tcx_tensor_unref(born);
    end_all();
}

TEST(what_is_sent_once_asks_once) {
    tcx_tensor_t *sent[5];

    given_a_sender();
    for (int i = 0; i < 5; i++) {
        sent[i] = shared(client, (float)i, COUNT);
    }
    uint64_t before = requests();
    for (int i = 0; i < 5; i++) {
        send(queue, sent[i]);
    }
    EXPECT_EQ(before + 5 + 1, requests());
    for (int i = 0; i < 5; i++) {
        tcx_tensor_unref(sent[i]);
        expect_next(reader, (float)i);
    }
    tcx_tensor_unref(born);
    end_all();
}

TEST(what_comes_twice_at_a_time_needs_one_buffer) {
    tcx_tensor_t *pinned = given_pinned();
    send(queue, born);
    tcx_tensor_t *again = receive(reader);
    EXPECT_TRUE(floats_of(again) == floats_of(pinned));
    tcx_tensor_unref(pinned);
    EXPECT_EQ(1, holders_of(queue).buffers);
    tcx_tensor_unref(again);
    expect_held(queue, 0);
    tcx_tensor_unref(born);
    end_all();
}

TEST(the_pinned_stays_when_its_sender_lets_go) {
    tcx_tensor_t *pinned = given_pinned();
    tcx_tensor_unref(born);
    tcx_tensor_t *next = shared(client, 8, COUNT); /* would take the place of what is free */
    expect_settles(client, 1, 2);
    expect_full(pinned, 7, COUNT);
    tcx_tensor_unref(pinned);
    expect_settles(client, 1, 1);
    tcx_tensor_unref(next);
    end_all();
}

TEST(the_pinned_stays_when_all_handles_are_closed) {
    tcx_tensor_t *pinned = given_pinned();
    tcx_tensor_unref(born);
    tcx_channel_close(queue);
    tcx_channel_close(reader);
    tcx_tensor_t *next = shared(client, 8, COUNT);
    expect_settles(client, 1, 2);
    queue = open_channel(client, "q", 0, 3); /* the name is free */
    reader = open_channel(other, "q", 0, 3);
    send(queue, next);
    expect_next(reader, 8);
    expect_full(pinned, 7, COUNT);
    tcx_tensor_unref(pinned);
    tcx_tensor_unref(next);
    end_all();
}

TEST(the_pinned_is_held_once_it_goes_elsewhere) {
    char ticket[TCX_TICKET_MAX];
    size_t nbytes;
    tcx_tensor_t *found;
    tcx_tensor_t *put;

    tcx_tensor_t *pinned = given_pinned();
    tcx_tensor_unref(born);
    EXPECT_TRUE(tcx_is_shared(other, floats_of(pinned), COUNT * sizeof(float)));
    EXPECT_OK(tcx_put(other, "x", tcx_tensor_array(pinned), NULL, &put));
    EXPECT_EQ(id_of(pinned), id_of(put));
    EXPECT_OK(tcx_tensor_ticket(other, pinned, ticket, &nbytes));
    send(reader, pinned);
    tcx_tensor_unref(put);
    tcx_tensor_unref(pinned);
    EXPECT_OK(tcx_get(client, "x", NULL, &found, NULL));
    expect_full(found, 7, COUNT);
    tcx_tensor_unref(found);
    EXPECT_OK(tcx_delete(client, "x"));
    EXPECT_OK(tcx_redeem(client, ticket, nbytes, &found, NULL));
    expect_full(found, 7, COUNT);
    tcx_tensor_unref(found);
    expect_next(queue, 7);
    end_all();
}

TEST(a_bundle_refers_to_the_pinned) {
    tcx_tensor_t *pinned = given_pinned();
    const char *const path[] = {"a"};
    tcx_item_t item = {path, 1, tcx_tensor_array(pinned)};
    tcx_bundle_t *bundle;

    tcx_tensor_unref(born);
    EXPECT_OK(tcx_put_bundle(other, "x", &item, 1, NULL, NULL));
    tcx_tensor_unref(pinned);
    expect_held(queue, 0);
    EXPECT_OK(tcx_get(client, "x", NULL, NULL, &bundle));
    expect_full(item_of(bundle, 0), 7, COUNT);
    tcx_bundle_unref(bundle);
    EXPECT_OK(tcx_delete(client, "x"));
    end_all();
}

enum { MANY = 30 };

TEST(who_keeps_all_that_it_receives_is_in_nobodys_way) {
    tcx_tensor_t *kept[MANY];
    tcx_tensor_t *sent[MANY];

    given_a_sender();
    for (int i = 0; i < MANY; i++) {
        sent[i] = shared(client, (float)i, COUNT);
        send(queue, sent[i]);
        expect_next(reader, (float)i);
    }
    for (int i = 0; i < MANY; i++) {
        send(queue, sent[i]);
        kept[i] = receive(reader);
    }
    uint32_t pinned = holders_of(queue).buffers;
    EXPECT_TRUE(pinned > 0 && pinned <= 4); /* half of the spare ones */
    for (int i = 0; i < MANY; i++) {
        tcx_tensor_unref(sent[i]);
        expect_full(kept[i], (float)i, COUNT);
        tcx_tensor_unref(kept[i]);
    }
    expect_held(queue, 0);
    tcx_tensor_unref(born);
    end_all();
}

/* More than there may be standing references. */
TEST(many_tensors_are_sent_in_turn) {
    tcx_tensor_t *sent[MANY];

    given_a_sender();
    for (int i = 0; i < MANY; i++) {
        sent[i] = shared(client, (float)i, COUNT);
    }
    for (int i = 0; i < 4 * MANY; i++) {
        send(queue, sent[i % MANY]);
        expect_next(reader, (float)(i % MANY));
    }
    for (int i = 0; i < MANY; i++) {
        tcx_tensor_unref(sent[i]);
    }
    tcx_tensor_unref(born);
    end_all();
}

TEST(a_handle_that_was_closed_takes_its_references_with_it) {
    given_a_sender();
    for (int i = 0; i < 3; i++) {
        tcx_channel_close(queue);
        queue = open_channel(client, "q", 0, 0);
        send(queue, born);
        tcx_channel_t *another = open_channel(client, "another", 0, 0);
        send(another, born);
        expect_next(another, 7);
        tcx_channel_close(another);
        expect_next(reader, 7);
    }
    tcx_tensor_unref(born);
    end_all();
}

TEST(a_child_of_fork_keeps_the_pinned) {
    int go[2];
    char byte;

    tcx_tensor_t *pinned = given_pinned();
    EXPECT_EQ(0, pipe(go));
    pid_t pid = fork();
    if (pid == 0) {
        EXPECT_EQ(1, read(go[0], &byte, 1)); /* the parent has let go */
        expect_full(pinned, 7, COUNT);
        EXPECT_OK(tcx_put(other, "x", tcx_tensor_array(pinned), NULL, NULL));
        _exit(0);
    }
    tcx_tensor_unref(pinned);
    tcx_tensor_unref(born);
    tcx_tensor_t *next = shared(client, 8, COUNT);
    expect_settles(client, 2, 2); /* `born`, that the child has, too, and the next */
    EXPECT_EQ(1, write(go[1], "", 1));
    expect_success(pid);
    tcx_tensor_t *found;
    EXPECT_OK(tcx_get(client, "x", NULL, &found, NULL));
    expect_full(found, 7, COUNT);
    tcx_tensor_unref(found);
    tcx_tensor_unref(next);
    EXPECT_OK(tcx_delete(client, "x"));
    close(go[0]);
    close(go[1]);
    end_all();
}

TEST(the_pinned_outlives_its_daemon) {
    tcx_tensor_t *pinned = given_pinned();
    daemon_kill(&own);
    expect_full(pinned, 7, COUNT);
    EXPECT_TRUE(tcx_tensor_ticket(other, pinned, (char[TCX_TICKET_MAX]){0}, &(size_t){0}) !=
                TCX_OK);
    tcx_tensor_unref(pinned);
    tcx_tensor_unref(born);
    tcx_channel_close(queue);
    tcx_channel_close(reader);
    tcx_client_close(other);
    tcx_client_close(client);
    daemon_run(&own);
    client = daemon_client(&own);
    end();
}

/* ----------------------------------------------------------------------- received by nobody */

/* A channel with buffers, and in it `times` messages with a tensor that is nobody's any more. */
static tcx_channel_t *given_sent(unsigned flags, uint32_t capacity, int times) {
    given_daemon();
    tcx_channel_t *channel = open_channel(client, "t", flags, capacity);
    tcx_tensor_t *first = loan(channel, COUNT); /* gives it its size */
    tcx_tensor_unref(first);
    born = shared(client, 7, COUNT);
    for (int i = 0; i < times; i++) {
        send(channel, born);
    }
    tcx_tensor_unref(born);
    expect_settles(client, 1, 2);
    return channel;
}

static void end_channel(tcx_channel_t *channel) {
    expect_settles(client, 1, 1);       /* its buffers: while it is open */
    EXPECT_OK(tcx_delete(client, "t")); /* a queue with messages would stay */
    tcx_channel_close(channel);
    end();
}

TEST(a_topics_last_message_is_free_when_the_next_is_sent) {
    for (int times = 1; times <= 2; times++) {
        tcx_channel_t *topic = given_sent(TCX_CHANNEL_TOPIC, 0, times);
        send_number(topic, 1);
        end_channel(topic);
    }
}

TEST(what_is_dropped_to_send_is_free) {
    for (int times = 1; times <= 2; times++) {
        tcx_channel_t *dropping = given_sent(TCX_CHANNEL_DROP_OLDEST, 2, times);
        send_number(dropping, 1);
        send_number(dropping, 2);
        end_channel(dropping);
    }
}

TEST(what_is_dropped_to_loan_is_free) {
    tcx_tensor_t *loans[10];

    for (int times = 1; times <= 2; times++) {
        tcx_channel_t *dropping = given_sent(TCX_CHANNEL_DROP_OLDEST, 2, times);
        for (int i = 0; i < 10; i++) {
            loans[i] = loan(dropping, COUNT);
        }
        expect_settles(client, 1, 1);
        for (int i = 0; i < 10; i++) {
            tcx_tensor_unref(loans[i]);
        }
        end_channel(dropping);
    }
}

TEST(what_is_skipped_is_free_before_the_newest_is_done) {
    for (int times = 1; times <= 2; times++) {
        given_daemon();
        tcx_channel_t *topic =
            open_channel(client, "t", TCX_CHANNEL_TOPIC | TCX_CHANNEL_DROP_OLDEST, 0);
        tcx_channel_t *newest = subscribe(topic, 1);
        born = shared(client, 7, COUNT);
        for (int i = 0; i < times; i++) {
            send(topic, born);
        }
        tcx_tensor_unref(born);
        send_number(topic, 1);
        expect_settles(client, 1, 2);
        tcx_tensor_t *received = receive(newest);
        expect_settles(client, 1, 1);
        tcx_tensor_unref(received);
        tcx_channel_close(newest);
        end_channel(topic);
    }
}
