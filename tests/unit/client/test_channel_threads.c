/* Many threads on the handles of one channel, and a real daemon: for ThreadSanitizer, too. */
#include <pthread.h>
#include <stdatomic.h>

#include "channel_fixture.h"

enum { THREADS = 4, MESSAGES = 400 };

static tcx_channel_t *the_channel;
static _Atomic long long received;
static _Atomic long long sum;

/* Sends copies, loans, references and bundles. */
static void *send_all(void *argument) {
    (void)argument;
    for (int i = 1; i <= MESSAGES; i++) {
        if (i % 4 == 0) {
            tcx_tensor_t *loaned = loan(the_channel, 1);
            floats_of(loaned)[0] = (float)i;
            EXPECT_OK(tcx_channel_send_loan(the_channel, loaned, -1));
            tcx_tensor_unref(loaned);
        } else if (i % 16 == 1) {
            tcx_tensor_t *born = shared(client, (float)i, COUNT);
            EXPECT_OK(tcx_channel_send(the_channel, tcx_tensor_array(born), -1));
            tcx_tensor_unref(born);
        } else {
            EXPECT_OK(try_send(the_channel, (float)i, i % 32 == 3 ? 3000 : COUNT, -1));
        }
    }
    return NULL;
}

static void *receive_all(void *argument) {
    tcx_tensor_t *kept = NULL;
    tcx_tensor_t *tensor;
    tcx_bundle_t *bundle;
    int r;

    (void)argument;
    while ((r = tcx_channel_recv(the_channel, -1, 5, &tensor, &bundle)) == TCX_OK) {
        expect_full(tensor, floats_of(tensor)[0], tcx_tensor_array(tensor)->shape[0]);
        atomic_fetch_add(&sum, (long long)floats_of(tensor)[0]);
        atomic_fetch_add(&received, 1);
        tcx_tensor_unref(kept);
        kept = tensor;
    }
    EXPECT_EQ(TCX_CLOSED, r);
    tcx_tensor_unref(kept);
    return NULL;
}

static void start(pthread_t *threads, void *(*run)(void *)) {
    for (int i = 0; i < THREADS; i++) {
        EXPECT_EQ(0, pthread_create(&threads[i], NULL, run, NULL));
    }
}

static void join(pthread_t *threads) {
    for (int i = 0; i < THREADS; i++) {
        EXPECT_EQ(0, pthread_join(threads[i], NULL));
    }
}

TEST(threads_share_one_handle_to_send_and_to_receive) {
    pthread_t senders[THREADS];
    pthread_t receivers[THREADS];
    tcx_channel_info_t info;

    given_daemon();
    the_channel = open_channel(client, "q", 0, 0);
    send_number(the_channel, 0);
    start(receivers, receive_all);
    start(senders, send_all);
    for (int i = 0; i < MESSAGES; i++) { /* one more looks */
        tcx_channel_info(the_channel, &info);
    }
    join(senders);
    EXPECT_OK(tcx_channel_shutdown(the_channel));
    join(receivers);
    EXPECT_EQ(THREADS * MESSAGES + 1, received);
    EXPECT_EQ(THREADS * MESSAGES * (MESSAGES + 1LL) / 2, sum);
    EXPECT_EQ(0, holders_of(the_channel).buffers);
    tcx_channel_close(the_channel);
    end();
}

static void *receive_until_closed(void *argument) {
    (void)argument;
    EXPECT_EQ(TCX_CLOSED, try_recv(the_channel, -1));
    expect_text("this handle");
    return NULL;
}

TEST(leaving_ends_the_calls_that_wait_on_the_handle) {
    pthread_t threads[THREADS];

    given_daemon();
    tcx_channel_t *other = open_channel(client, "q", 0, 0);
    the_channel = open_channel(client, "q", 0, 0);
    start(threads, receive_until_closed);
    usleep(20000);
    tcx_channel_leave(the_channel);
    join(threads);
    EXPECT_EQ(TCX_CLOSED, try_recv(the_channel, 0));
    EXPECT_EQ(TCX_CLOSED, try_send(the_channel, 1, COUNT, 0));
    EXPECT_EQ(1, look_at(other).handles);
    tcx_channel_close(other);
    tcx_stats_t stats;
    do { /* the daemon knows that both have left; or the runner's timeout */
        EXPECT_OK(tcx_stats(client, &stats));
    } while (stats.channels > 0);
    tcx_channel_close(the_channel);
    end();
}

static int stop_is_wanted(void *context) {
    return *(_Atomic int *)context;
}

static void *wait_for_interrupt(void *argument) {
    (void)argument;
    EXPECT_EQ(TCX_INTERRUPTED, try_recv(the_channel, -1));
    return NULL;
}

TEST(the_interrupt_function_ends_calls_that_wait) {
    _Atomic int stop = 0;
    pthread_t threads[THREADS];
    tcx_client_options_t options = {.no_autostart = 1, .interrupt = stop_is_wanted};
    tcx_client_t *other;

    given_daemon();
    options.socket = own.socket;
    options.context = &stop;
    EXPECT_OK(tcx_client_open(&options, &other));
    the_channel = open_channel(other, "q", 0, 0);
    start(threads, wait_for_interrupt);
    usleep(20000);
    atomic_store(&stop, 1);
    join(threads);
    tcx_channel_close(the_channel);
    tcx_client_close(other);
    end();
}
