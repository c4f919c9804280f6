/*
 * client_fixture.h - a daemon of the test's own with one client of it
 */
#pragma once

#include "client.h"
#include "own_daemon.h"

static struct own_daemon own;
static tcx_client_t *client;

static const tcx_dtype_t float32 = {TCX_FLOAT, 32, 1};

/* The keys to an entry of a bundle, and how many they are. */
#define PATH(...) \
    (const char *[]){__VA_ARGS__}, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)

static inline void given_daemon(void) {
    daemon_start(&own);
    client = daemon_client(&own);
}

/* The end of a test, whatever the daemon still has. */
static inline void end_daemon(void) {
    tcx_client_close(client);
    daemon_stop(&own);
    daemon_clean(&own);
}

/* The end of a test: nothing may be left but so many storages, which names keep. */
static inline void end_with(uint64_t storages) {
    expect_settles(client, 0, storages);
    end_daemon();
}

/* The end of a test: nothing may be left. */
static inline void end(void) {
    end_with(0);
}

/* From now on a client that is connected waits so long for an answer. */
static inline void set_patience(tcx_client_t *connected, int64_t answer_ns) {
    connected->session->patience.answer_ns = answer_ns;
}

static inline tcx_info_t info_of(const tcx_tensor_t *tensor) {
    tcx_info_t info;

    tcx_tensor_info(tensor, &info);
    return info;
}
