#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "clock.h"
#include "connect.h"
#include "error.h"
#include "fork.h"
#include "step.h"

#define ANSWER_SECONDS 30.0

/* $TENSORCX_TIMEOUT, or the default; what is not a positive number is ignored. */
static double default_seconds(void) {
    const char *text = getenv("TENSORCX_TIMEOUT");
    char *end;

    if (text && *text) {
        double seconds = strtod(text, &end);
        if (*end == '\0' && seconds > 0) {
            return seconds;
        }
    }
    return ANSWER_SECONDS;
}

static void init_done(pthread_cond_t *done) {
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(done, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

int tcx_client_open(const tcx_client_options_t *options, tcx_client_t **ret_client) {
    static const tcx_client_options_t none;
    const char *autostart = getenv("TENSORCX_AUTOSTART");
    char path[PATH_SIZE];
    char text[PATH_TEXT_SIZE];

    options = options ? options : &none;
    if (!(options->answer_timeout >= 0)) {
        return error(STATUS_INVALID, "answer_timeout must not be negative");
    }
    int r = path_resolve(options->socket, path, text);
    if (r != STATUS_OK) {
        return error(r, "%s", text);
    }
    struct tcx_client *client = calloc(1, sizeof *client);
    if (!client) {
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    double seconds = options->answer_timeout > 0 ? options->answer_timeout : default_seconds();
    memcpy(client->path, path, sizeof path);
    client->autostarts = !options->no_autostart && !(autostart && strcmp(autostart, "0") == 0);
    client->patience =
        (struct patience){clock_from_seconds(seconds), options->interrupt, options->context};
    pthread_mutex_init(&client->lock, NULL);
    init_done(&client->done);
    fork_add_client(client);
    *ret_client = client;
    return STATUS_OK;
}

void tcx_client_close(tcx_client_t *client) {
    if (!client) {
        return;
    }
    fork_remove_client(client);
    session_unref(client->session);
    pthread_cond_destroy(&client->done);
    pthread_mutex_destroy(&client->lock);
    free(client->failure_text);
    free(client);
}

void tcx_client_disconnect(tcx_client_t *client) {
    pthread_mutex_lock(&client->lock);
    struct session *session = client->session;
    client->session = NULL;
    REACHED(SESSION_LEFT);
    pthread_mutex_unlock(&client->lock);
    session_unref(session); /* may take fork.c's lock, which comes before ours */
}

const char *tcx_client_socket(const tcx_client_t *client) {
    return client->path;
}

/* ----------------------------------------------------------------------------------- connecting */

/* One more reference to the current session if it lives. Lock held. */
static struct session *current(struct tcx_client *client) {
    struct session *session = client->session;

    return session && !atomic_load(&session->is_dead) ? session_ref(session) : NULL;
}

struct session *client_last(struct tcx_client *client) {
    if (!client) {
        return NULL;
    }
    pthread_mutex_lock(&client->lock);
    struct session *session = client->session ? session_ref(client->session) : NULL;
    pthread_mutex_unlock(&client->lock);
    return session;
}

void client_start_over(struct tcx_client *client) {
    client->is_connecting = 0;
    init_done(&client->done); /* threads of the parent sleep on it, in the parent */
}

/* Waits while another thread connects. STATUS_OK: look again; otherwise its failure is ours, or
 * STATUS_INTERRUPTED. Lock held, given up meanwhile. */
static int await_other(struct tcx_client *client, int autostarts) {
    uint64_t attempt = client->attempts;

    while (client->is_connecting && client->attempts == attempt) {
        struct timespec until = clock_timespec(clock_after(SLICE_NS));
        pthread_cond_timedwait(&client->done, &client->lock, &until);
        pthread_mutex_unlock(&client->lock);
        int stop =
            client->patience.interrupt && client->patience.interrupt(client->patience.context);
        pthread_mutex_lock(&client->lock);
        if (stop) {
            return error_plain(STATUS_INTERRUPTED);
        }
    }
    if (client->attempts == attempt || client->failure == STATUS_OK ||
        (autostarts && !client->failure_autostarts)) { /* it did not try all that we may */
        return STATUS_OK;
    }
    return error(client->failure, "%s",
                 client->failure_text ? client->failure_text : status_text(client->failure));
}

/* This thread connects; the lock is given up meanwhile. Lock held. */
static int connect_now(struct tcx_client *client, int autostarts, struct session **ret_session) {
    struct session *fresh = NULL;

    client->is_connecting = 1;
    pthread_mutex_unlock(&client->lock);
    int r = connect_session(client->path, &client->patience, autostarts, &fresh);
    char *text = r == STATUS_OK ? NULL : strdup(tcx_error());
    pthread_mutex_lock(&client->lock);

    struct session *old = NULL;
    if (r == STATUS_OK) {
        old = client->session;
        client->session = session_ref(fresh);
        *ret_session = fresh;
        REACHED(SESSION_ENTERED);
    }
    client->is_connecting = 0;
    client->attempts++;
    /* Whoever was interrupted gives up for itself only. */
    client->failure = r == STATUS_INTERRUPTED ? STATUS_OK : r;
    client->failure_autostarts = autostarts;
    free(client->failure_text);
    client->failure_text = text;
    pthread_cond_broadcast(&client->done);
    pthread_mutex_unlock(&client->lock);
    session_unref(old); /* may take fork.c's lock, which comes before ours */
    pthread_mutex_lock(&client->lock);
    return r;
}

static int find_session(struct tcx_client *client, int autostarts, struct session **ret_session) {
    int r = STATUS_OK;

    if (!client) {
        return error(STATUS_INVALID, "no client given");
    }
    pthread_mutex_lock(&client->lock);
    for (;;) {
        struct session *session = current(client);
        if (session) {
            *ret_session = session;
            break;
        }
        if (!client->is_connecting) {
            r = connect_now(client, autostarts, ret_session);
            break;
        }
        r = await_other(client, autostarts);
        if (r != STATUS_OK) {
            break;
        }
    }
    pthread_mutex_unlock(&client->lock);
    return r;
}

int client_session(struct tcx_client *client, struct session **ret_session) {
    return find_session(client, client ? client->autostarts : 0, ret_session);
}

int client_session_running(struct tcx_client *client, struct session **ret_session) {
    return find_session(client, 0, ret_session);
}

int tcx_client_connect(tcx_client_t *client) {
    struct session *session;
    int r = client_session(client, &session);

    if (r == STATUS_OK) {
        session_unref(session);
    }
    return r;
}

void tcx_daemon_version(tcx_client_t *client, char *ret_text, size_t capacity) {
    if (capacity == 0) {
        return;
    }
    pthread_mutex_lock(&client->lock);
    snprintf(ret_text, capacity, "%s", client->session ? client->session->version : "");
    pthread_mutex_unlock(&client->lock);
}
