/* What a real daemon knows by name: awaited, listed, described; and its clients. */
#include <pthread.h>

#include "client_fixture.h"

/* -------------------------------------------------------------------------------------- waiting */

TEST(a_wait_that_brings_nothing_says_what_was_awaited) {
    tcx_get_options_t options = {.timeout = 0.01};
    struct floats floats;
    float data = 1;
    tcx_tensor_t *tensor;

    given_daemon();
    EXPECT_EQ(TCX_TIMEOUT, tcx_get(client, "x", &options, &tensor, NULL));
    EXPECT_STR_EQ("nothing was put under \"x\" within 0.01 s", tcx_error());
    EXPECT_OK(tcx_put(client, "x", floats_on(&floats, &data, 1), NULL, NULL));
    options.newer_than = 1;
    EXPECT_EQ(TCX_TIMEOUT, tcx_get(client, "x", &options, &tensor, NULL));
    EXPECT_STR_EQ("nothing newer than version 1 was put under \"x\" within 0.01 s", tcx_error());
    options.newer_than = 0;
    EXPECT_OK(tcx_get(client, "x", &options, &tensor, NULL));
    tcx_tensor_unref(tensor);
    end_with(1);
}

static void *put_it(void *argument) {
    struct floats floats;
    float data = 5;
    tcx_stats_t stats;

    do {
        EXPECT_OK(tcx_stats(argument, &stats));
    } while (stats.waiting == 0);
    EXPECT_OK(tcx_put(argument, "x", floats_on(&floats, &data, 1), NULL, NULL));
    return NULL;
}

TEST(a_wait_ends_when_the_name_is_put_on_the_same_client) {
    tcx_get_options_t options = {.timeout = -1};
    pthread_t putter;
    tcx_tensor_t *tensor;

    given_daemon();
    EXPECT_EQ(0, pthread_create(&putter, NULL, put_it, client));
    EXPECT_OK(tcx_get(client, "x", &options, &tensor, NULL));
    EXPECT_EQ(5, floats_of(tensor)[0]);
    EXPECT_EQ(0, pthread_join(putter, NULL));
    tcx_tensor_unref(tensor);
    end_with(1);
}

/* --------------------------------------------------------------------------------------- asking */

struct seen {
    int count;
    int stop_after;
    char last[256];
    tcx_entry_t entry; /* its pointers are over */
};

static int see(void *context, const tcx_entry_t *entry) {
    struct seen *seen = context;

    EXPECT_TRUE(strcmp(seen->last, entry->name) < 0);
    snprintf(seen->last, sizeof seen->last, "%s", entry->name);
    seen->entry = *entry;
    return ++seen->count == seen->stop_after;
}

TEST(names_are_listed_in_order_over_many_pages) {
    enum { COUNT = 2000 };
    struct seen seen = {0};
    struct floats floats;
    float data = 1;

    given_daemon();
    for (int i = 0; i < COUNT; i++) {
        char name[200];
        snprintf(name, sizeof name, "%s/%0150d", i % 2 ? "odd" : "even", i);
        EXPECT_OK(tcx_put(client, name, floats_on(&floats, &data, 1), NULL, NULL));
    }
    EXPECT_OK(tcx_list(client, NULL, see, &seen));
    EXPECT_EQ(COUNT, seen.count);
    seen = (struct seen){0};
    EXPECT_OK(tcx_list(client, "odd/", see, &seen));
    EXPECT_EQ(COUNT / 2, seen.count);
    seen = (struct seen){.stop_after = 3};
    EXPECT_OK(tcx_list(client, "", see, &seen));
    EXPECT_EQ(3, seen.count);
    seen = (struct seen){0};
    EXPECT_OK(tcx_list(client, "nothing", see, &seen));
    EXPECT_EQ(0, seen.count);
    end_with(COUNT);
}

TEST(one_name_is_described) {
    tcx_put_options_t options = {.flags = TCX_PUT_READONLY | TCX_PUT_EPHEMERAL, .ttl = 1000};
    struct seen seen = {0};
    struct floats floats;
    float data[5] = {0};
    tcx_tensor_t *tensor;

    given_daemon();
    EXPECT_OK(tcx_put(client, "x", floats_on(&floats, data, 5), &options, &tensor));
    EXPECT_OK(tcx_stat(client, "x", see, &seen));
    EXPECT_EQ(1, seen.entry.version);
    EXPECT_EQ(20, seen.entry.nbytes);
    EXPECT_EQ(info_of(tensor).storage_id, seen.entry.storage_id);
    EXPECT_TRUE(seen.entry.readonly && seen.entry.ephemeral && !seen.entry.is_bundle);
    EXPECT_EQ(1, seen.entry.ndim);
    EXPECT_EQ(1, seen.entry.holders);
    EXPECT_EQ(getpid(), seen.entry.publisher);
    EXPECT_TRUE(seen.entry.ttl_left > 0 && seen.entry.ttl_left <= 1000 && seen.entry.age >= 0);
    EXPECT_EQ(TCX_NOT_FOUND, tcx_stat(client, "y", see, &seen));
    tcx_tensor_unref(tensor);
    end_with(1);
}

static int count_peers(void *context, const tcx_peer_t *peer) {
    int *counts = context;

    EXPECT_EQ(getpid(), peer->pid);
    EXPECT_EQ(getuid(), peer->uid);
    EXPECT_STR_EQ("test_catalog", peer->program);
    EXPECT_TRUE(peer->connected);
    counts[peer->is_self ? 1 : 0]++;
    counts[2] += (int)peer->bytes;
    return 0;
}

TEST(clients_are_listed_with_what_they_hold) {
    int counts[3] = {0};
    char version[32];
    tcx_tensor_t *tensor;

    given_daemon();
    tcx_daemon_version(client, version, sizeof version);
    EXPECT_STR_EQ("", version);
    tcx_client_t *other = daemon_client(&own);
    EXPECT_OK(tcx_zeros(other, (tcx_device_t){0}, float32, 1, (int64_t[]){4}, &tensor));
    EXPECT_OK(tcx_clients(client, count_peers, counts));
    EXPECT_EQ(1, counts[0]);
    EXPECT_EQ(1, counts[1]);
    EXPECT_EQ(16, counts[2]);
    tcx_daemon_version(client, version, sizeof version);
    EXPECT_STR_EQ(TCX_VERSION, version);
    tcx_tensor_unref(tensor);
    tcx_client_close(other);
    end();
}
