/* Queues and topics through a real daemon, in one process. */
#include "channel_fixture.h"

/* ---------------------------------------------------------------------------------------- queue */

TEST(what_is_sent_comes_in_order_and_is_local_memory) {
    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    for (int i = 0; i < 8; i++) {
        send_number(queue, (float)i);
    }
    EXPECT_EQ(8, look_at(queue).depth);
    for (int i = 0; i < 8; i++) {
        expect_next(queue, (float)i);
    }
    send_number(queue, 9);
    tcx_tensor_t *tensor = receive(queue);
    tcx_info_t info = info_of(tensor);
    EXPECT_EQ(0, info.storage_id);
    EXPECT_TRUE(!info.is_shared && !info.readonly);
    EXPECT_TRUE(!tcx_is_shared(client, floats_of(tensor), 4));
    tcx_tensor_unref(tensor);
    tcx_channel_close(queue);
    end();
}

TEST(two_clients_share_a_queue_whose_first_message_sizes_it) {
    given_daemon();
    tcx_client_t *other = daemon_client(&own);
    tcx_channel_t *reader = open_channel(other, "q", 0, 0);
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    EXPECT_EQ(0, look_at(reader).buffer_nbytes);
    EXPECT_EQ(2, look_at(reader).handles);
    send_number(queue, 7);
    EXPECT_EQ(4096, look_at(queue).buffer_nbytes);
    EXPECT_EQ(4096, look_at(reader).buffer_nbytes);
    expect_next(reader, 7);
    EXPECT_EQ(16 * 4096, look_at(reader).nbytes);
    tcx_channel_close(reader);
    tcx_channel_close(queue);
    tcx_client_close(other);
    end();
}

TEST(a_received_tensor_outlives_handle_and_client) {
    given_daemon();
    tcx_client_t *other = daemon_client(&own);
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    tcx_channel_t *reader = open_channel(other, "q", 0, 0);
    send_number(queue, 7);
    tcx_tensor_t *tensor = receive(reader);
    tcx_channel_close(reader);
    tcx_client_close(other);
    EXPECT_EQ(1, holders_of(queue).buffers);
    expect_full(tensor, 7, COUNT);
    tcx_tensor_unref(tensor);
    expect_held(queue, 0);
    tcx_channel_close(queue);
    end();
}

TEST(a_handle_that_is_left_lets_go_of_the_buffers_when_what_was_received_is) {
    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    send_number(queue, 7);
    tcx_tensor_t *tensor = receive(queue);
    tcx_channel_leave(queue);
    expect_full(tensor, 7, COUNT);
    expect_settles(client, 1, 1);
    tcx_tensor_unref(tensor);
    expect_settles(client, 0, 0);
    tcx_channel_close(queue);
    end();
}

TEST(messages_outlive_their_sender_and_the_queue_ends_with_the_last) {
    tcx_stats_t stats;

    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    send_number(queue, 7);
    tcx_channel_close(queue);
    queue = open_channel(client, "q", 0, 0);
    expect_next(queue, 7);
    tcx_channel_close(queue);
    do {
        EXPECT_OK(tcx_stats(client, &stats));
    } while (stats.channels > 0 && usleep(1000) == 0); /* or the runner's timeout */
    end();
}

TEST(strided_sources_scalars_and_no_elements_arrive_packed) {
    float data[6] = {1, 2, 3, 4, 5, 6};
    int64_t shape[2] = {3, 2};
    int64_t strides[2] = {1, 3};
    int64_t none[2] = {0, 5};
    tcx_array_t turned = {
        .data = data, .dtype = float32, .ndim = 2, .shape = shape, .strides = strides};
    tcx_array_t scalar = {.data = data + 5, .dtype = float32, .ndim = 0};
    tcx_array_t empty = {.dtype = {TCX_BOOL, 8, 1}, .ndim = 2, .shape = none};

    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    EXPECT_OK(tcx_channel_send(queue, &empty, 0)); /* does not size the channel */
    EXPECT_EQ(0, look_at(queue).buffer_nbytes);
    EXPECT_OK(tcx_channel_send(queue, &turned, 0));
    EXPECT_OK(tcx_channel_send(queue, &scalar, 0));
    tcx_tensor_t *tensor = receive(queue);
    EXPECT_EQ(0, tcx_tensor_array(tensor)->shape[0]);
    EXPECT_EQ(5, tcx_tensor_array(tensor)->shape[1]);
    EXPECT_EQ(TCX_BOOL, tcx_tensor_array(tensor)->dtype.code);
    tcx_tensor_unref(tensor);
    tensor = receive(queue);
    EXPECT_EQ(4, floats_of(tensor)[1]);
    EXPECT_EQ(2, floats_of(tensor)[2]);
    tcx_tensor_unref(tensor);
    tensor = receive(queue);
    EXPECT_EQ(0, tcx_tensor_array(tensor)->ndim);
    EXPECT_EQ(6, floats_of(tensor)[0]);
    tcx_tensor_unref(tensor);
    tcx_channel_close(queue);
    end();
}

TEST(a_tensor_of_64_dimensions_goes_both_ways) {
    int64_t shape[TCX_NDIM_MAX];
    float data[2] = {3, 4};

    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    for (int i = 0; i < TCX_NDIM_MAX; i++) {
        shape[i] = i == 40 ? 2 : 1;
    }
    tcx_array_t array = {.data = data, .dtype = float32, .ndim = TCX_NDIM_MAX, .shape = shape};
    EXPECT_OK(tcx_channel_send(queue, &array, 0));
    tcx_tensor_t *tensor = receive(queue);
    EXPECT_EQ(TCX_NDIM_MAX, tcx_tensor_array(tensor)->ndim);
    EXPECT_EQ(2, tcx_tensor_array(tensor)->shape[40]);
    EXPECT_EQ(4, floats_of(tensor)[1]);
    tcx_tensor_unref(tensor);
    EXPECT_EQ(0, holders_of(queue).buffers);
    tcx_channel_close(queue);
    end();
}

/* --------------------------------------------------------------------------- full, empty, ended */

TEST(a_full_queue_times_out_and_an_empty_one_does) {
    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 2);
    EXPECT_EQ(TCX_TIMEOUT, try_recv(queue, 0.01));
    expect_text("no message (0 other handles are open)");
    send_number(queue, 1);
    send_number(queue, 2);
    EXPECT_EQ(TCX_TIMEOUT, try_send(queue, 3, COUNT, 0));
    tcx_tensor_t *unused = loan(queue, COUNT);
    EXPECT_TRUE(floats_of(unused)[0] != 3); /* who does not wait does not copy, either */
    tcx_tensor_unref(unused);
    EXPECT_EQ(TCX_TIMEOUT, try_send(queue, 3, COUNT, 0.01));
    expect_text("it is full, 2 of 2 messages wait to be received");
    EXPECT_TRUE(!strstr(tcx_error(), "which is this one")); /* its copy is not in the way */
    EXPECT_EQ(0, holders_of(queue).buffers);                /* the copies are given back */
    expect_next(queue, 1);
    send_number(queue, 3);
    expect_next(queue, 2);
    expect_next(queue, 3);
    EXPECT_EQ(TCX_TIMEOUT, try_recv(queue, 0));
    tcx_channel_close(queue);
    end();
}

TEST(at_once_means_neither_the_daemon_nor_pages_nor_a_text) {
    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 1);
    tcx_channel_options_t large = {.buffer_nbytes = 4 << 20};
    int64_t few = COUNT, many = 1 << 20;
    tcx_tensor_t *loans[2], *tensor;

    EXPECT_EQ(TCX_TIMEOUT, tcx_channel_loan(queue, float32, 1, &few, TCX_AT_ONCE, &tensor));
    EXPECT_EQ(0, look_at(queue).buffer_nbytes); /* it would have had to ask */
    for (int i = 0; i < 2; i++) {
        loans[i] = loan(queue, COUNT);
    }
    EXPECT_EQ(TCX_TIMEOUT, try_recv(queue, TCX_AT_ONCE));
    EXPECT_OK(tcx_channel_send_loan(queue, loans[0], TCX_AT_ONCE));
    EXPECT_EQ(TCX_TIMEOUT, tcx_channel_send_loan(queue, loans[1], TCX_AT_ONCE));
    EXPECT_OK(try_recv(queue, TCX_AT_ONCE));
    EXPECT_OK(tcx_channel_send_loan(queue, loans[1], TCX_AT_ONCE));
    EXPECT_OK(try_recv(queue, TCX_AT_ONCE));

    /* a message that it cannot open waits for the next call */
    tcx_client_t *other = daemon_client(&own);
    tcx_channel_t *sender = open_channel(other, "q", 0, 0);
    tcx_tensor_t *reference = shared(other, 5, COUNT);
    EXPECT_OK(tcx_channel_send(sender, tcx_tensor_array(reference), 20));
    EXPECT_EQ(TCX_TIMEOUT, try_recv(queue, TCX_AT_ONCE));
    EXPECT_EQ(TCX_TIMEOUT, try_recv(queue, TCX_AT_ONCE));
    expect_next(queue, 5);
    tcx_tensor_unref(reference);
    tcx_tensor_unref(loans[0]);
    tcx_tensor_unref(loans[1]);
    tcx_channel_close(sender);
    tcx_client_close(other);
    tcx_channel_close(queue);

    EXPECT_OK(tcx_channel_open(client, "large", &large, &queue));
    EXPECT_EQ(TCX_TIMEOUT, tcx_channel_loan(queue, float32, 1, &many, TCX_AT_ONCE, &tensor));
    EXPECT_OK(tcx_channel_loan(queue, float32, 1, &few, TCX_AT_ONCE, &tensor));
    tcx_tensor_unref(tensor);
    tcx_channel_close(queue);
    end();
}

TEST(shutdown_ends_sending_and_receivers_get_what_is_left) {
    int64_t count = COUNT;
    tcx_tensor_t *tensor;

    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    send_number(queue, 1);
    EXPECT_OK(tcx_channel_shutdown(queue));
    EXPECT_EQ(TCX_CLOSED, try_send(queue, 2, COUNT, 0));
    expect_text("shut down");
    EXPECT_EQ(TCX_CLOSED, tcx_channel_loan(queue, float32, 1, &count, 0, &tensor));
    expect_next(queue, 1);
    EXPECT_EQ(TCX_CLOSED, try_recv(queue, -1));
    expect_text("nothing is left");
    EXPECT_TRUE(look_at(queue).is_closed);
    tcx_channel_close(queue);
    end();
}

TEST(deleting_the_name_ends_the_channel) {
    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    send_number(queue, 1);
    EXPECT_OK(tcx_delete(client, "q"));
    EXPECT_EQ(TCX_CLOSED, try_send(queue, 2, COUNT, -1));
    expect_next(queue, 1);
    EXPECT_EQ(TCX_CLOSED, try_recv(queue, -1));
    tcx_channel_close(queue);
    end();
}

TEST(settings_that_differ_and_names_that_are_taken_are_refused) {
    tcx_channel_options_t options = {.capacity = 9};
    tcx_channel_options_t wrong = {.flags = 8};
    float one = 1;
    struct floats floats;
    tcx_channel_t *channel;

    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 4);
    EXPECT_EQ(TCX_INVALID, tcx_channel_open(client, "q", &options, &channel));
    expect_text("capacity=4");
    expect_text("capacity=9");
    options.flags = TCX_CHANNEL_TOPIC;
    EXPECT_EQ(TCX_INVALID, tcx_channel_open(client, "q", &options, &channel));
    EXPECT_EQ(TCX_INVALID, tcx_channel_open(client, "q", &wrong, &channel));
    EXPECT_EQ(TCX_INVALID, tcx_channel_open(client, "", NULL, &channel));
    EXPECT_EQ(TCX_EXISTS, tcx_put(client, "q", floats_on(&floats, &one, 1), NULL, NULL));
    EXPECT_OK(tcx_put(client, "x", floats_on(&floats, &one, 1), NULL, NULL));
    EXPECT_EQ(TCX_EXISTS, tcx_channel_open(client, "x", NULL, &channel));
    EXPECT_OK(tcx_delete(client, "x"));
    EXPECT_EQ(TCX_INVALID, tcx_channel_subscribe(queue, 0, &channel));
    EXPECT_EQ(TCX_INVALID, try_send(queue, 1, COUNT, 0.0 / 0.0));
    tcx_channel_close(queue);
    end();
}

/* ---------------------------------------------------------------------------------------- topic */

TEST(all_subscribers_get_all_messages_of_a_topic_that_blocks) {
    given_daemon();
    tcx_channel_t *topic = open_channel(client, "t", TCX_CHANNEL_TOPIC, 2);
    tcx_channel_t *first = subscribe(topic, 0);
    send_number(topic, 1);
    tcx_channel_t *second = subscribe(topic, 0);
    send_number(topic, 2);
    EXPECT_EQ(TCX_TIMEOUT, try_send(topic, 3, COUNT, 0.01));
    expect_text("has yet to receive 2 messages");
    EXPECT_EQ(TCX_INVALID, try_recv(topic, 0));
    EXPECT_EQ(TCX_INVALID, try_send(first, 1, COUNT, 0));
    tcx_tensor_t *a = receive(first);
    expect_full(a, 1, COUNT);
    expect_next(first, 2);
    tcx_tensor_t *b = receive(second);
    expect_full(b, 2, COUNT);
    EXPECT_EQ(2, look_at(topic).readers);
    EXPECT_EQ(3, look_at(topic).handles);
    tcx_channel_close(first);
    EXPECT_EQ(1, look_at(topic).readers);
    tcx_channel_close(second);
    expect_full(a, 1, COUNT);
    tcx_tensor_unref(a);
    tcx_tensor_unref(b);
    tcx_channel_close(topic);
    end();
}

TEST(a_topic_that_drops_counts_what_its_subscribers_missed) {
    given_daemon();
    tcx_channel_t *topic =
        open_channel(client, "t", TCX_CHANNEL_TOPIC | TCX_CHANNEL_DROP_OLDEST, 2);
    tcx_channel_t *all = subscribe(topic, 0);
    tcx_channel_t *newest = subscribe(topic, 1);
    for (int i = 0; i < 5; i++) {
        send_number(topic, (float)i);
    }
    expect_next(newest, 4);
    EXPECT_EQ(4, look_at(newest).missed);
    expect_next(all, 3);
    expect_next(all, 4);
    EXPECT_EQ(3, look_at(all).missed);
    tcx_channel_t *late = subscribe(topic, 1);
    expect_next(late, 4);
    EXPECT_EQ(TCX_TIMEOUT, try_recv(late, 0));
    tcx_channel_close(late);
    tcx_channel_close(all);
    tcx_channel_close(newest);
    tcx_channel_close(topic);
    end();
}
