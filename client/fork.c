#include "fork.h"

#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "call.h"
#include "client.h"
#include "mapping.h"
#include "outbox.h"
#include "page.h"
#include "reclaim.h"
#include "session.h"
#include "step.h"
#include "storage.h"

/* Taken before any other lock of the library. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct session *sessions;   /* not owned, newest first; guarded by `lock` */
static uint64_t last_serial;       /* guarded by `lock` */
static struct tcx_client *clients; /* not owned; guarded by `lock` */

/* A fork page, mapped, and a descriptor of the same open file; NULL: not to be had. */
static void *map_page(int *ret_fd) {
    int fd = page_create("tensorcx-fork");

    if (fd < 0) {
        return NULL;
    }
    void *page = mmap(NULL, WIRE_PAGE_NBYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        close(fd);
        return NULL;
    }
    madvise(page, WIRE_PAGE_NBYTES, MADV_DONTDUMP);
    *ret_fd = fd;
    REACHED(FORK_PAGE_MAPPED);
    return page;
}

/* Tells the daemon to keep what the session holds as long as the child needs it. Without a page it
 * keeps it as long as the life page is mapped, so the child has that; as it has when this process
 * may end before the note is sent, and when there is no way to send it.
 * Lock of the session held, which is not given up before the fork. */
static void keep_for_child(struct session *session) {
    struct wire_fork fixed = {0};
    struct frame frame = REQUEST(FORK, &fixed);

    storages_drain(session);
    atomic_fetch_add(&session->forked, 1);
    if (session->by_id && !atomic_load(&session->is_dead)) {
        session->fork_page = map_page(&frame.fd);
        if (outbox_send(session, &frame) == NO_MEMORY) {
            session_die(session, "there was no memory to tell it of a fork");
        } else if (!atomic_load(&session->is_dead) && session->life_page &&
                   (session->outbox || !session->fork_page)) { /* a dead one's is not taken back */
            session->lends_page = madvise(session->life_page, WIRE_PAGE_NBYTES, MADV_DOFORK) == 0;
        }
        REACHED(FORK_NOTED);
    }
}

/* The life page is this process's again. Lock of the session held. */
static void take_life_page_back(struct session *session) {
    if (session->lends_page) {
        madvise(session->life_page, WIRE_PAGE_NBYTES, MADV_DONTFORK);
        session->lends_page = 0;
    }
}

static void prepare(void) {
    pthread_mutex_lock(&lock);
    for (struct tcx_client *client = clients; client; client = client->next) {
        pthread_mutex_lock(&client->lock);
    }
    for (struct session *session = sessions; session; session = session->next) {
        pthread_mutex_lock(&session->lock);
        if (session_ref_if_alive(session)) { /* else it has no storages any more */
            session->forks++;
            keep_for_child(session);
        }
    }
    reclaim_lock();
    mappings_lock();
    REACHED(FORK_PREPARED);
}

/* Plain unlocks: what session_unlock() may do takes `lock`. */
static void unlock_all(void) {
    mappings_unlock();
    reclaim_unlock();
    for (struct session *session = sessions; session; session = session->next) {
        pthread_mutex_unlock(&session->lock);
    }
    for (struct tcx_client *client = clients; client; client = client->next) {
        pthread_mutex_unlock(&client->lock);
    }
    pthread_mutex_unlock(&lock);
}

/* A session with one of the references that fork() has. */
static struct session *take_forked(void) {
    struct session *session;

    pthread_mutex_lock(&lock);
    session = sessions;
    while (session && session->forks == 0) {
        session = session->next;
    }
    if (session) {
        session->forks--;
    }
    pthread_mutex_unlock(&lock);
    return session;
}

/* Does what session_unlock() would have done: lets go of storages that nobody uses since. */
static void finish(void) {
    struct session *session;

    unlock_all();
    while ((session = take_forked())) {
        session_lock(session);
        session_unlock(session);
        session_unref(session);
    }
}

static void parent(void) {
    for (struct session *session = sessions; session; session = session->next) {
        if (!session->is_inherited) {
            session_drop_fork_page(session);
            take_life_page_back(session);
        }
    }
    REACHED(FORK_PAGE_LEFT);
    finish();
}

static void child(void) {
    REACHED(CHILD_BORN);
    for (struct session *session = sessions; session; session = session->next) {
        session_leave_to_parent(session);
        session->forks += session->has_flusher; /* the thread, and so its reference, is not here */
        session->has_flusher = 0;
    }
    for (struct tcx_client *client = clients; client; client = client->next) {
        client_start_over(client);
    }
    REACHED(CHILD_SEPARATED);
    mappings_start_over();
    reclaim_start_over();
    finish();
    reclaim_drop_inherited();
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
