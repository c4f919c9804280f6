/*
 * operations_stall.c - a client whose daemon is slow, not waited for, or lost
 *
 * The daemon is stopped for a moment, so that what is sent to it fills the socket. Whoever kills us
 * meanwhile has to let it go on.
 */
#include "operations.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

enum { FLOOD = 1200 }; /* notes: more than a socket takes */

static tcx_tensor_t *flood[FLOOD];

static void have_many(void) {
    for (int i = 0; i < FLOOD; i++) {
        tcx_tensor_unref(flood[i]);
        flood[i] = NULL;
        MUST(tcx_copy(client, &small, (tcx_device_t){0}, &flood[i]));
    }
}

static int thread_count(void) {
    DIR *folder = opendir("/proc/self/task");
    int count = -2; /* "." and ".." */

    while (folder && readdir(folder)) {
        count++;
    }
    closedir(folder);
    return count;
}

static int do_flood(void) {
    tcx_stats_t stats = {0};
    int r = tcx_stats(client, &stats);

    if (r == TCX_OK) {
        kill((pid_t)stats.pid, SIGSTOP);
    }
    for (int i = 0; i < FLOOD; i++) {
        tcx_tensor_unref(flood[i]);
        flood[i] = NULL;
    }
    if (r == TCX_OK) {
        kill((pid_t)stats.pid, SIGCONT);
    }
    while (thread_count() > 1) { /* the one that sends the rest */
        usleep(1000);
    }
    return r == TCX_OK ? tcx_stats(client, &stats) : r;
}

static int do_give_up(void) {
    const tcx_get_options_t patient = {.timeout = 60};

    is_interrupted = 1;
    int r = tcx_get(client, "never", &patient, &tensor, NULL);
    is_interrupted = 0;
    return r == TCX_INTERRUPTED ? TCX_OK : r;
}

/* The program closes all that it does not know. */
static int do_lose(void) {
    close_range(STDERR_FILENO + 1, ~0U, 0);
    int r = tcx_get(client, "theirs", NULL, &tensor, NULL);

    return r == TCX_LOST ? tcx_get(client, "theirs", NULL, &tensor, NULL) : TCX_INTERNAL;
}

static void have_theirs(void) {
    MUST(tcx_put(other, "theirs", &large, NULL, NULL));
}

const struct operation stall_operations[] = {
    {"flood", have_many, do_flood},
    {"give-up", NULL, do_give_up},
    {"lose", have_theirs, do_lose},
    {NULL, NULL, NULL},
};
