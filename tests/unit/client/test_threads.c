/* Many threads on one client, and a real daemon. Under ThreadSanitizer this is the test of the
 * library's locks. */
#include <pthread.h>

#include "own_daemon.h"

enum { THREADS = 8, ROUNDS = 300, NAMES = 3 };

struct worker {
    tcx_client_t *client;
    int number;
    pthread_t thread;
};

static void run_all(tcx_client_t *client, void *(*run)(void *)) {
    struct worker workers[THREADS];

    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.client = client, .number = i};
        EXPECT_EQ(0, pthread_create(&workers[i].thread, NULL, run, &workers[i]));
    }
    for (int i = 0; i < THREADS; i++) {
        EXPECT_EQ(0, pthread_join(workers[i].thread, NULL));
    }
}

/* Elements of one tensor are all the same number. */
static void expect_whole(const tcx_tensor_t *tensor, int64_t count) {
    const float *data = floats_of(tensor);

    EXPECT_EQ(count, tcx_tensor_array(tensor)->shape[0]);
    EXPECT_EQ(data[0] * 2, data[0] + data[count - 1]);
}

/* Puts under names that all threads share, gets what others put, lets go in all orders. */
static void *put_and_get(void *argument) {
    struct worker *worker = argument;
    enum { COUNT = 600 };
    float data[COUNT];
    struct floats floats;

    for (int round = 0; round < ROUNDS; round++) {
        tcx_tensor_t *mine;
        tcx_tensor_t *theirs;
        char name[16];
        for (int i = 0; i < COUNT; i++) {
            data[i] = (float)(worker->number * ROUNDS + round);
        }
        snprintf(name, sizeof name, "hot%d", round % NAMES);
        EXPECT_OK(tcx_put(worker->client, name, floats_on(&floats, data, COUNT), NULL, &mine));
        EXPECT_OK(tcx_get(worker->client, name, NULL, &theirs, NULL));
        expect_whole(mine, COUNT);
        expect_whole(theirs, COUNT);
        tcx_tensor_unref(round % 2 ? mine : theirs);
        tcx_tensor_unref(round % 2 ? theirs : mine);
    }
    return NULL;
}

TEST(threads_put_get_and_release_and_nothing_is_left) {
    struct own_daemon daemon;

    daemon_start(&daemon);
    tcx_client_t *client = daemon_client(&daemon);
    run_all(client, put_and_get);
    expect_settles(client, 0, NAMES);
    for (int i = 0; i < NAMES; i++) {
        char name[16];
        snprintf(name, sizeof name, "hot%d", i);
        EXPECT_OK(tcx_delete(client, name));
    }
    expect_settles(client, 0, 0);
    tcx_client_close(client);
    daemon_stop(&daemon);
    daemon_clean(&daemon);
}

/* All threads get one name and let go at once: each lookup races with the last release. */
static void *get_one(void *argument) {
    struct worker *worker = argument;

    for (int round = 0; round < ROUNDS; round++) {
        tcx_tensor_t *tensor;
        EXPECT_OK(tcx_get(worker->client, "one", NULL, &tensor, NULL));
        EXPECT_EQ(7, floats_of(tensor)[0]);
        tcx_tensor_unref(tensor);
    }
    return NULL;
}

TEST(a_name_that_all_threads_get_and_drop_stays_right) {
    struct own_daemon daemon;
    struct floats floats;
    float seven = 7;

    daemon_start(&daemon);
    tcx_client_t *client = daemon_client(&daemon);
    EXPECT_OK(tcx_put(client, "one", floats_on(&floats, &seven, 1), NULL, NULL));
    run_all(client, get_one);
    expect_settles(client, 0, 1);
    tcx_client_close(client);
    daemon_stop(&daemon);
    daemon_clean(&daemon);
}

/* A tensor that is published again and again by its address while others drop it. */
static void *publish_by_address(void *argument) {
    struct worker *worker = argument;
    tcx_dtype_t dtype = {TCX_FLOAT, 32, 1};
    int64_t shape[1] = {50000}; /* more than travels in a message */

    for (int round = 0; round < ROUNDS / 10; round++) {
        tcx_tensor_t *born;
        tcx_tensor_t *put;
        tcx_tensor_t *got;
        tcx_info_t info;
        char name[16];
        EXPECT_OK(tcx_zeros(worker->client, (tcx_device_t){0}, dtype, 1, shape, &born));
        snprintf(name, sizeof name, "born%d", worker->number);
        EXPECT_OK(tcx_put(worker->client, name, tcx_tensor_array(born), NULL, &put));
        EXPECT_TRUE(floats_of(born) == floats_of(put));
        tcx_tensor_unref(born);
        EXPECT_OK(tcx_get(worker->client, name, NULL, &got, NULL));
        EXPECT_TRUE(floats_of(got) == floats_of(put));
        EXPECT_TRUE(tcx_is_shared(worker->client, floats_of(got) + 1, 8));
        tcx_tensor_info(got, &info);
        EXPECT_TRUE(info.is_shared);
        tcx_tensor_unref(put);
        EXPECT_EQ(0, floats_of(got)[shape[0] - 1]);
        EXPECT_OK(tcx_delete(worker->client, name));
        tcx_tensor_unref(got);
    }
    return NULL;
}

TEST(threads_that_publish_by_address_copy_nothing_and_leave_nothing) {
    struct own_daemon daemon;

    daemon_start(&daemon);
    tcx_client_t *client = daemon_client(&daemon);
    run_all(client, publish_by_address);
    expect_settles(client, 0, 0);
    tcx_client_close(client);
    daemon_stop(&daemon);
    daemon_clean(&daemon);
}

/* ---------------------------------------------------------------------------------- first calls */

static void *connect_once(void *argument) {
    struct worker *worker = argument;

    EXPECT_OK(tcx_client_connect(worker->client));
    return NULL;
}

TEST(threads_that_connect_at_once_share_one_connection) {
    struct own_daemon daemon;
    tcx_stats_t stats;

    daemon_start(&daemon);
    tcx_client_t *client = daemon_client(&daemon);
    run_all(client, connect_once);
    EXPECT_OK(tcx_stats(client, &stats));
    EXPECT_EQ(1, stats.clients);
    tcx_client_close(client);
    daemon_stop(&daemon);
    daemon_clean(&daemon);
}

static void *fail_to_connect(void *argument) {
    struct worker *worker = argument;

    EXPECT_EQ(TCX_UNAVAILABLE, tcx_client_connect(worker->client));
    EXPECT_TRUE(strstr(tcx_error(), "/tmp/no such folder/d.sock") != NULL);
    return NULL;
}

TEST(threads_that_fail_to_connect_all_learn_why) {
    tcx_client_options_t options = {.socket = "/tmp/no such folder/d.sock", .no_autostart = 1};
    tcx_client_t *client;

    EXPECT_OK(tcx_client_open(&options, &client));
    run_all(client, fail_to_connect);
    tcx_client_close(client);
}

/* ------------------------------------------------------------------------------ the daemon dies */

static void *wait_for_ever(void *argument) {
    struct worker *worker = argument;
    tcx_get_options_t options = {.timeout = -1};
    tcx_tensor_t *tensor;

    EXPECT_EQ(TCX_LOST, tcx_get(worker->client, "never", &options, &tensor, NULL));
    return NULL;
}

static void *kill_when_all_wait(void *argument) {
    struct own_daemon *daemon = argument;
    tcx_client_t *client = daemon_client(daemon);
    tcx_stats_t stats;

    do {
        EXPECT_OK(tcx_stats(client, &stats));
    } while (stats.waiting < THREADS);
    daemon_kill(daemon);
    tcx_client_close(client);
    return NULL;
}

TEST(a_killed_daemon_wakes_all_who_wait_and_its_memory_stays) {
    struct own_daemon daemon;
    struct floats floats;
    float seven = 7;
    pthread_t killer;
    tcx_tensor_t *tensor;
    tcx_info_t info;

    daemon_start(&daemon);
    tcx_client_t *client = daemon_client(&daemon);
    EXPECT_OK(tcx_put(client, "x", floats_on(&floats, &seven, 1), NULL, &tensor));
    EXPECT_EQ(0, pthread_create(&killer, NULL, kill_when_all_wait, &daemon));
    run_all(client, wait_for_ever);
    EXPECT_EQ(0, pthread_join(killer, NULL));

    EXPECT_EQ(7, floats_of(tensor)[0]);
    tcx_tensor_info(tensor, &info);
    EXPECT_TRUE(!info.is_shared);
    EXPECT_TRUE(!tcx_is_shared(client, floats_of(tensor), 4));
    EXPECT_EQ(TCX_UNAVAILABLE, tcx_delete(client, "x"));
    tcx_tensor_unref(tensor);
    tcx_client_close(client);
    daemon_clean(&daemon);
}
