/* What is sent, through a real daemon in one process: loans, what goes by reference, bundles. */
#include "channel_fixture.h"

/* ---------------------------------------------------------------------------------------- loans */

TEST(a_loan_is_sent_without_a_copy) {
    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    tcx_tensor_t *loaned = loan(queue, COUNT);
    float *memory = floats_of(loaned);
    for (int i = 0; i < COUNT; i++) {
        memory[i] = 5;
    }
    EXPECT_EQ(1, holders_of(queue).buffers);
    EXPECT_OK(tcx_channel_send_loan(queue, loaned, 0));
    EXPECT_EQ(TCX_INVALID, tcx_channel_send_loan(queue, loaned, 0));
    expect_text("already");
    tcx_tensor_unref(loaned);
    tcx_tensor_t *tensor = receive(queue);
    EXPECT_TRUE(floats_of(tensor) == memory);
    expect_full(tensor, 5, COUNT);
    EXPECT_EQ(TCX_INVALID, tcx_channel_send_loan(queue, tensor, 0));
    expect_text("received");
    tcx_tensor_unref(tensor);
    tcx_channel_close(queue);
    end();
}

TEST(a_loan_that_is_not_sent_gives_its_buffer_back) {
    int64_t count = COUNT;
    int64_t large = COUNT + 1000;
    tcx_tensor_t *loans[16];
    tcx_tensor_t *view;

    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    for (int i = 0; i < 16; i++) {
        loans[i] = loan(queue, COUNT);
    }
    EXPECT_EQ(TCX_TIMEOUT, tcx_channel_loan(queue, float32, 1, &count, 0.01, &view));
    expect_text("no buffer is free (let received tensors go, or make it with more buffers=)");
    expect_text("which is this one, has 16 buffers");
    EXPECT_OK(tcx_tensor_view(loans[0], float32, 1, &count, 0, 0, &view));
    EXPECT_EQ(TCX_INVALID, tcx_channel_send_loan(queue, view, 0));
    tcx_tensor_unref(loans[0]);
    EXPECT_EQ(16, holders_of(queue).buffers); /* the view has it */
    tcx_tensor_unref(view);
    for (int i = 1; i < 16; i++) {
        tcx_tensor_unref(loans[i]);
    }
    EXPECT_EQ(0, holders_of(queue).buffers);
    EXPECT_EQ(TCX_INVALID, tcx_channel_loan(queue, float32, 1, &large, 0, &view));
    expect_text("larger than a buffer");
    tcx_channel_close(queue);
    end();
}

TEST(a_loan_belongs_to_its_handle) {
    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    tcx_channel_t *again = open_channel(client, "q", 0, 0);
    tcx_tensor_t *loaned = loan(queue, COUNT);
    tcx_tensor_t *born = shared(client, 1, COUNT);
    EXPECT_EQ(TCX_INVALID, tcx_channel_send_loan(again, loaned, 0));
    EXPECT_EQ(TCX_INVALID, tcx_channel_send_loan(queue, born, 0));
    tcx_channel_close(queue);
    floats_of(loaned)[0] = 1; /* still ours */
    tcx_tensor_unref(loaned);
    tcx_tensor_unref(born);
    EXPECT_EQ(0, holders_of(again).buffers);
    tcx_channel_close(again);
    end();
}

/* --------------------------------------------------------------------------------- by reference */

TEST(what_is_shared_goes_by_reference_and_stays_shared) {
    given_daemon();
    tcx_client_t *other = daemon_client(&own);
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    tcx_channel_t *reader = open_channel(other, "q", 0, 0);
    tcx_tensor_t *born = shared(client, 7, COUNT);
    uint64_t id = info_of(born).storage_id;
    EXPECT_OK(tcx_channel_send(queue, tcx_tensor_array(born), 0));
    EXPECT_EQ(0, look_at(queue).buffer_nbytes); /* needs none */
    floats_of(born)[0] = 8;
    tcx_tensor_unref(born); /* the message keeps it */
    tcx_tensor_t *tensor = receive(reader);
    EXPECT_EQ(id, info_of(tensor).storage_id);
    EXPECT_TRUE(info_of(tensor).is_shared);
    EXPECT_EQ(8, floats_of(tensor)[0]);
    EXPECT_EQ(0, holders_of(queue).buffers);
    tcx_tensor_unref(tensor);
    expect_settles(client, 0, 0);
    tcx_channel_close(queue);
    tcx_channel_close(reader);
    tcx_client_close(other);
    end();
}

TEST(what_does_not_fit_a_buffer_goes_by_reference) {
    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    send_number(queue, 1);
    EXPECT_OK(try_send(queue, 2, NUMBERS_MAX, 0));
    send_number(queue, 3);
    expect_next(queue, 1);
    tcx_tensor_t *tensor = receive(queue);
    EXPECT_TRUE(info_of(tensor).is_shared);
    expect_full(tensor, 2, NUMBERS_MAX);
    tcx_tensor_unref(tensor);
    expect_next(queue, 3);
    expect_settles(client, 1, 1); /* the buffers */
    tcx_channel_close(queue);
    end();
}

TEST(a_reference_that_nobody_received_goes_with_its_message) {
    given_daemon();
    tcx_channel_t *topic =
        open_channel(client, "t", TCX_CHANNEL_TOPIC | TCX_CHANNEL_DROP_OLDEST, 2);
    for (int i = 0; i < 20; i++) { /* nobody has subscribed */
        EXPECT_OK(try_send(topic, 1, NUMBERS_MAX, 0));
        tcx_tensor_t *born = shared(client, 7, COUNT);
        EXPECT_OK(tcx_channel_send(topic, tcx_tensor_array(born), 0));
        tcx_tensor_unref(born);
    }
    tcx_channel_close(topic);
    end();
}

TEST(a_readonly_reference_stays_readonly) {
    tcx_tensor_t *view;
    int64_t count = COUNT;

    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    tcx_tensor_t *born = shared(client, 7, COUNT);
    EXPECT_OK(tcx_tensor_view(born, float32, 1, &count, 0, 1, &view));
    EXPECT_OK(tcx_channel_send(queue, tcx_tensor_array(view), 0));
    tcx_tensor_t *tensor = receive(queue);
    EXPECT_TRUE(info_of(tensor).readonly);
    tcx_tensor_unref(tensor);
    tcx_tensor_unref(view);
    tcx_tensor_unref(born);
    tcx_channel_close(queue);
    end();
}

TEST(what_lies_in_a_buffer_is_copied_when_it_is_put_or_ticketed_or_sent_on) {
    char ticket[TCX_TICKET_MAX];
    size_t nbytes;
    tcx_tensor_t *put;
    tcx_tensor_t *redeemed;

    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    send_number(queue, 7);
    tcx_tensor_t *tensor = receive(queue);
    EXPECT_OK(tcx_put(client, "x", tcx_tensor_array(tensor), NULL, &put));
    EXPECT_TRUE(floats_of(put) != floats_of(tensor));
    EXPECT_OK(tcx_tensor_ticket(client, tensor, ticket, &nbytes));
    EXPECT_OK(tcx_redeem(client, ticket, nbytes, &redeemed, NULL));
    expect_full(redeemed, 7, COUNT);
    EXPECT_OK(tcx_channel_send(queue, tcx_tensor_array(tensor), 0));
    EXPECT_EQ(1, holders_of(queue).buffers);
    tcx_tensor_unref(tensor);
    expect_next(queue, 7);
    expect_full(put, 7, COUNT);
    tcx_tensor_unref(put);
    tcx_tensor_unref(redeemed);
    EXPECT_OK(tcx_delete(client, "x"));
    tcx_channel_close(queue);
    end();
}

/* -------------------------------------------------------------------------------------- bundles */

TEST(a_bundle_lies_in_one_buffer_that_its_last_tensor_gives_back) {
    float data[COUNT] = {1, 2, 3};
    struct floats a;
    struct floats b;
    tcx_item_t items[3] = {
        {PATH("a", "x"), floats_on(&a, data, 3)},
        {PATH("b"), floats_on(&b, data + 1, COUNT - 1)},
        {PATH("none"), NULL},
    };

    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    EXPECT_OK(tcx_channel_send_bundle(queue, items, 3, 0));
    tcx_bundle_t *bundle = receive_bundle(queue);
    EXPECT_EQ(3, tcx_bundle_count(bundle));
    tcx_tensor_t *second = tcx_tensor_ref(item_of(bundle, 1));
    EXPECT_EQ(1, floats_of(item_of(bundle, 0))[0]);
    EXPECT_TRUE(item_of(bundle, 2) == NULL);
    tcx_info_t info;
    tcx_bundle_info(bundle, &info);
    EXPECT_TRUE(!info.is_shared && info.storage_id == 0);
    tcx_bundle_unref(bundle);
    EXPECT_EQ(1, holders_of(queue).buffers);
    EXPECT_EQ(2, floats_of(second)[0]);
    tcx_tensor_unref(second);
    EXPECT_EQ(0, holders_of(queue).buffers);
    tcx_channel_close(queue);
    end();
}

TEST(a_bundle_refers_to_what_is_shared_and_copies_the_rest) {
    float data[3] = {1, 2, 3};
    struct floats floats;
    char ticket[TCX_TICKET_MAX];
    size_t nbytes;
    tcx_bundle_t *redeemed;

    given_daemon();
    tcx_client_t *other = daemon_client(&own);
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    tcx_channel_t *reader = open_channel(other, "q", 0, 0);
    tcx_tensor_t *born = shared(client, 7, COUNT);
    uint64_t id = info_of(born).storage_id;
    tcx_item_t items[2] = {{PATH("private"), floats_on(&floats, data, 3)},
                           {PATH("shared"), tcx_tensor_array(born)}};
    EXPECT_OK(tcx_channel_send_bundle(queue, items, 2, 0));
    tcx_tensor_unref(born);
    tcx_bundle_t *bundle = receive_bundle(reader);
    EXPECT_EQ(3, floats_of(item_of(bundle, 0))[2]);
    EXPECT_EQ(id, info_of(item_of(bundle, 1)).storage_id);
    EXPECT_OK(tcx_bundle_ticket(other, bundle, ticket, &nbytes));
    tcx_bundle_unref(bundle);
    EXPECT_OK(tcx_redeem(client, ticket, nbytes, NULL, &redeemed));
    EXPECT_EQ(3, floats_of(item_of(redeemed, 0))[2]);
    EXPECT_EQ(id, info_of(item_of(redeemed, 1)).storage_id);
    tcx_bundle_unref(redeemed);
    expect_held(queue, 0);
    tcx_channel_close(queue);
    tcx_channel_close(reader);
    tcx_client_close(other);
    end();
}

TEST(a_bundle_that_does_not_fit_goes_by_reference) {
    static float data[NUMBERS_MAX];
    struct floats floats;

    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    tcx_tensor_t *born = shared(client, 7, COUNT);
    tcx_item_t items[2] = {{PATH("private"), floats_on(&floats, data, NUMBERS_MAX)},
                           {PATH("shared"), tcx_tensor_array(born)}};
    data[NUMBERS_MAX - 1] = 3;
    send_number(queue, 1);
    EXPECT_OK(tcx_channel_send_bundle(queue, items, 2, 0));
    tcx_tensor_unref(born);
    expect_next(queue, 1);
    tcx_bundle_t *bundle = receive_bundle(queue);
    EXPECT_EQ(3, floats_of(item_of(bundle, 0))[NUMBERS_MAX - 1]);
    expect_full(item_of(bundle, 1), 7, COUNT);
    tcx_bundle_unref(bundle);
    expect_held(queue, 0);
    tcx_channel_close(queue);
    end();
}
