/*
 * client.h - struct tcx_client: options, and the session that is current
 *
 * The client connects when a call first needs it and again after the session died. One thread
 * connects; others that need it wait for the outcome.
 */
#pragma once

#include <pthread.h>

#include "session.h"
#include "tensorcx.h"

struct tcx_client {
    struct tcx_client *next; /* fork.c's list */
    char path[PATH_SIZE];
    int autostarts;
    struct patience patience;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t done;  /* an attempt to connect is over */
    int is_connecting;
    uint64_t attempts;       /* that are over */
    int failure;             /* status of the last one */
    int failure_autostarts;  /* it would have started a daemon */
    char *failure_text;      /* owned; NULL: none */
    struct session *session; /* counted; NULL before the first one */
};

/* A living session with one more reference; connects, and starts a daemon, if need be. STATUS_OK,
 * or as connect_session(). */
int client_session(struct tcx_client *client, struct session **ret_session);

/* The same without starting a daemon. */
int client_session_running(struct tcx_client *client, struct session **ret_session);

/* The session that is current or was last, with one more reference; NULL: none yet. Never waits. */
struct session *client_last(struct tcx_client *client);

/* In the child of a fork: no thread of the parent connects here. Lock held. */
void client_start_over(struct tcx_client *client);
