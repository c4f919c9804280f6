#include "fork.h"

#include <pthread.h>
#include <stddef.h>

#include "client.h"
#include "mapping.h"
#include "session.h"

/* Taken before any other lock of the library. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct session *sessions;   /* not owned, newest first; guarded by `lock` */
static uint64_t last_serial;       /* guarded by `lock` */
static struct tcx_client *clients; /* not owned; guarded by `lock` */

static void prepare(void) {
    pthread_mutex_lock(&lock);
    for (struct tcx_client *client = clients; client; client = client->next) {
        pthread_mutex_lock(&client->lock);
    }
    for (struct session *session = sessions; session; session = session->next) {
        pthread_mutex_lock(&session->lock);
    }
    mappings_lock();
}

/* Plain unlocks: what session_unlock() may do takes `lock`. */
static void unlock_all(void) {
    mappings_unlock();
    for (struct session *session = sessions; session; session = session->next) {
        pthread_mutex_unlock(&session->lock);
    }
    for (struct tcx_client *client = clients; client; client = client->next) {
        pthread_mutex_unlock(&client->lock);
    }
    pthread_mutex_unlock(&lock);
}

static struct session *find_untidy(void) {
    struct session *session;

    pthread_mutex_lock(&lock);
    session = sessions;
    while (session && !(atomic_load(&session->released) && session_ref_if_alive(session))) {
        session = session->next;
    }
    pthread_mutex_unlock(&lock);
    return session;
}

static void parent(void) {
    struct session *session;

    unlock_all();
    /* Storages that were let go while fork() had the locks. */
    while ((session = find_untidy())) {
        session_tidy(session);
        session_unref(session);
    }
}

/* A session whose flusher, which has a reference, stayed in the parent. */
static struct session *find_flushed(void) {
    struct session *session;

    pthread_mutex_lock(&lock);
    session = sessions;
    while (session && !session->has_flusher) {
        session = session->next;
    }
    pthread_mutex_unlock(&lock);
    return session;
}

static void child(void) {
    struct session *session;

    for (session = sessions; session; session = session->next) {
        session_leave_to_parent(session);
    }
    for (struct tcx_client *client = clients; client; client = client->next) {
        client_start_over(client);
    }
    unlock_all();
    while ((session = find_flushed())) {
        session->has_flusher = 0;
        session_unref(session);
    }
}

static void install(void) {
    pthread_atfork(prepare, parent, child);
}

static void install_once(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, install);
}

void fork_add_session(struct session *session) {
    install_once();
    pthread_mutex_lock(&lock);
    session->serial = ++last_serial;
    session->next = sessions;
    sessions = session;
    pthread_mutex_unlock(&lock);
}

void fork_remove_session(struct session *session) {
    pthread_mutex_lock(&lock);
    struct session **link = &sessions;
    while (*link != session) {
        link = &(*link)->next;
    }
    *link = session->next;
    pthread_mutex_unlock(&lock);
}

struct session *fork_next_session(uint64_t boot_id, uint64_t *cursor) {
    struct session *session;

    pthread_mutex_lock(&lock);
    session = sessions;
    while (session && ((*cursor > 0 && session->serial >= *cursor) || session->boot_id != boot_id ||
                       !session_ref_if_alive(session))) {
        session = session->next;
    }
    if (session) {
        *cursor = session->serial;
    }
    pthread_mutex_unlock(&lock);
    return session;
}

void fork_add_client(struct tcx_client *client) {
    install_once();
    pthread_mutex_lock(&lock);
    client->next = clients;
    clients = client;
    pthread_mutex_unlock(&lock);
}

void fork_remove_client(struct tcx_client *client) {
    pthread_mutex_lock(&lock);
    struct tcx_client **link = &clients;
    while (*link != client) {
        link = &(*link)->next;
    }
    *link = client->next;
    pthread_mutex_unlock(&lock);
}
