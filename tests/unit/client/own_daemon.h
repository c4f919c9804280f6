/*
 * own_daemon.h - a real daemon ($TENSORCXD) of the test's own, on a private socket
 */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "clock.h"
#include "fixture.h"
#include "tensorcx.h"

#define EXPECT_OK(call)                                                              \
    do {                                                                             \
        int status_ = (call);                                                        \
        if (status_ != TCX_OK) {                                                     \
            TEST_FAILED("%s: %s: %s", #call, tcx_status_text(status_), tcx_error()); \
        }                                                                            \
    } while (0)

struct own_daemon {
    char folder[32];
    char socket[64];
    pid_t pid; /* in the test's process group: the runner ends it whatever happens */
};

/* Runs it, at the first start or again after its end. Waits until it is ready. */
static inline void daemon_run(struct own_daemon *daemon) {
    char ready[32];
    char said = 0;
    int ends[2];

    EXPECT_TRUE(getenv("TENSORCXD") != NULL);
    EXPECT_EQ(0, pipe(ends));
    snprintf(ready, sizeof ready, "--ready-fd=%d", ends[1]);
    daemon->pid = fork();
    if (daemon->pid == 0) {
        close(ends[0]);
        execl(getenv("TENSORCXD"), "tensorcxd", "--socket", daemon->socket, ready,
              "--warm-seconds=0", "--capacity=1G", "--log-level=error", NULL);
        _exit(127);
    }
    close(ends[1]);
    EXPECT_EQ(1, read(ends[0], &said, 1));
    EXPECT_EQ('R', said);
    close(ends[0]);
}

/* A private folder for its socket; nobody is there. */
static inline void daemon_place(struct own_daemon *daemon) {
    strcpy(daemon->folder, "/tmp/tensorcx-test-XXXXXX");
    EXPECT_TRUE(mkdtemp(daemon->folder) != NULL);
    snprintf(daemon->socket, sizeof daemon->socket, "%s/d.sock", daemon->folder);
}

static inline void daemon_start(struct own_daemon *daemon) {
    daemon_place(daemon);
    daemon_run(daemon);
}

/* Ends it in good order; it must agree. */
static inline void daemon_stop(struct own_daemon *daemon) {
    int status;

    EXPECT_EQ(0, kill(daemon->pid, SIGTERM));
    EXPECT_EQ(daemon->pid, waitpid(daemon->pid, &status, 0));
    EXPECT_EQ(0, status);
}

static inline void daemon_kill(struct own_daemon *daemon) {
    int status;

    EXPECT_EQ(0, kill(daemon->pid, SIGKILL));
    EXPECT_EQ(daemon->pid, waitpid(daemon->pid, &status, 0));
}

/* Removes what it leaves: its folder, lock file and log. */
static inline void daemon_clean(const struct own_daemon *daemon) {
    char file[64];

    snprintf(file, sizeof file, "%s/d.lock", daemon->folder);
    unlink(file);
    snprintf(file, sizeof file, "%s/d.log", daemon->folder);
    unlink(file);
    unlink(daemon->socket);
    EXPECT_EQ(0, rmdir(daemon->folder));
}

static inline tcx_client_t *client_with(const tcx_client_options_t *options) {
    tcx_client_t *client;

    EXPECT_OK(tcx_client_open(options, &client));
    return client;
}

static inline tcx_client_t *daemon_client(const struct own_daemon *daemon) {
    tcx_client_options_t options = {.socket = daemon->socket, .no_autostart = 1};

    return client_with(&options);
}

/* A client that starts it if it does not run. */
static inline tcx_client_t *daemon_starter(const struct own_daemon *daemon) {
    tcx_client_options_t options = {.socket = daemon->socket};

    return client_with(&options);
}

/* Asks until the daemon has exactly so many holds and storages; fails after a generous time. */
static inline void expect_settles(tcx_client_t *client, uint64_t holds, uint64_t storages) {
    int64_t deadline = clock_after(20 * NS_PER_S);
    tcx_stats_t stats;

    do {
        EXPECT_OK(tcx_stats(client, &stats));
    } while ((stats.holds != holds || stats.storages != storages) && clock_now() < deadline);
    EXPECT_EQ(holds, stats.holds);
    EXPECT_EQ(storages, stats.storages);
}

/* --------------------------------------------------------------------------------------- arrays */

/* One dimension of float32. */
struct floats {
    int64_t shape[1];
    tcx_array_t array;
};

static inline const tcx_array_t *floats_on(struct floats *floats, float *data, int64_t count) {
    floats->shape[0] = count;
    floats->array =
        (tcx_array_t){.data = data, .dtype = {TCX_FLOAT, 32, 1}, .ndim = 1, .shape = floats->shape};
    return &floats->array;
}

static inline float *floats_of(const tcx_tensor_t *tensor) {
    return tcx_tensor_array(tensor)->data;
}
