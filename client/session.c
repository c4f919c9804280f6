#include "session.h"

#include <assert.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "call.h"
#include "channel_buffer.h"
#include "error.h"
#include "flusher.h"
#include "fork.h"
#include "log.h"
#include "messages.h"
#include "outbox.h"
#include "reclaim.h"
#include "segment.h"
#include "step.h"
#include "storage.h"

enum { JOINS_MAX = 8 };

struct session *session_create(const struct patience *patience, const char *path) {
    struct session *session = calloc(1, sizeof *session);

    if (!session) {
        return NULL;
    }
    session->received = malloc(WIRE_MESSAGE_MAX);
    if (!session->received) {
        free(session);
        return NULL;
    }
    atomic_init(&session->refs, 1);
    pthread_mutex_init(&session->lock, NULL);
    sem_init(&session->joins, 0, JOINS_MAX);
    session->patience = *patience;
    snprintf(session->path, sizeof session->path, "%s", path);
    session->socket = -1;
    fork_add_session(session);
    return session;
}

/* Whether the number still stands for our socket. If not, whatever has it belongs to somebody else
 * and is not ours to use or to close. */
static int socket_is_ours(const struct session *session) {
    struct stat info;

    return session->socket >= 0 && fstat(session->socket, &info) == 0 && S_ISSOCK(info.st_mode) &&
           info.st_dev == session->device && info.st_ino == session->inode;
}

/* Lock held. */
static void close_socket(struct session *session) {
    if (socket_is_ours(session)) {
        shutdown(session->socket, SHUT_RDWR); /* wakes the thread that polls it */
        close(session->socket);
    }
    session->socket = -1;
}

static void drop_page(void **page) {
    if (*page) {
        munmap(*page, WIRE_PAGE_NBYTES);
    }
    *page = NULL;
}

static void destroy(struct session *session) {
    /* As long as there is a descriptor or a page, fork() must know whose it is. */
    pthread_mutex_lock(&session->lock);
    close_socket(session);
    REACHED(SESSION_CLOSED);
    calls_close_descriptors(session);
    outbox_destroy(session);
    drop_page(&session->fork_page);
    drop_page(&session->life_page);
    REACHED(PAGES_DROPPED);
    pthread_mutex_unlock(&session->lock);
    fork_remove_session(session);

    assert(!session->by_id && !atomic_load(&session->released)); /* each holds a reference */
    calls_destroy(session);
    segments_destroy(session);
    free(atomic_load(&session->devices));
    sem_destroy(&session->joins);
    pthread_mutex_destroy(&session->lock);
    free(session->received);
    free(session);
}

struct session *session_ref(struct session *session) {
    atomic_fetch_add_explicit(&session->refs, 1, memory_order_relaxed);
    return session;
}

void session_unref(struct session *session) {
    if (!session) {
        return;
    }
    int is_watched = atomic_load_explicit(&session->is_watched, memory_order_relaxed);
    int refs = atomic_fetch_sub_explicit(&session->refs, 1, memory_order_acq_rel);
    if (refs == 1) {
        destroy(session);
    } else if (refs == 2 && is_watched) {
        reclaim_wake(); /* nobody else has it any more */
    }
}

int session_ref_if_alive(struct session *session) {
    int refs = atomic_load(&session->refs);

    while (refs > 0) {
        if (atomic_compare_exchange_weak(&session->refs, &refs, refs + 1)) {
            return 1;
        }
    }
    return 0;
}

void session_lock(struct session *session) {
    pthread_mutex_lock(&session->lock);
}

void session_drop_fork_page(struct session *session) {
    drop_page(&session->fork_page);
}

/* The second half of a critical section. A storage that is let go while somebody holds the lock is
 * only put on the list; so whoever unlocks looks at the list once more. */
static void leave(struct session *session) {
    struct channel_buffer *spent = channel_buffers_drain(session);
    struct storage *pinned = storages_drain(session);
    struct segment *doomed;
    int is_unreported;

    if (session->is_inherited && !session->by_id) {
        drop_page(&session->fork_page); /* nothing is left that they keep */
        drop_page(&session->life_page);
        REACHED(INHERITANCE_LET_GO);
    }
    doomed = session->doomed;
    session->doomed = NULL;
    is_unreported = session->is_unreported;
    session->is_unreported = 0;
    flusher_start_if_needed(session);
    pthread_mutex_unlock(&session->lock);

    segments_unmap(doomed);
    channel_buffers_free(spent);
    storages_unpin(pinned);
    if (is_unreported) {
        log_line("event=connection.lost socket=%s pid=%d why=\"%s\"", session->path,
                 (int)session->pid, session->why);
    }
}

void session_unlock(struct session *session) {
    leave(session);
    session_tidy(session);
}

void session_tidy(struct session *session) {
    while ((atomic_load(&session->released) || atomic_load(&session->spent)) &&
           pthread_mutex_trylock(&session->lock) == 0) {
        leave(session);
    }
}

void session_attach(struct session *session, int socket) {
    struct stat info;

    session->socket = socket;
    if (fstat(socket, &info) == 0) {
        session->device = info.st_dev;
        session->inode = info.st_ino;
    }
}

int session_socket(struct session *session) {
    if (session->socket >= 0 && !socket_is_ours(session)) {
        session_die(session, "this process has closed its descriptor");
    }
    return session->socket;
}

static void mark_dead(struct session *session) {
    atomic_store(&session->is_dead, 1);
    outbox_destroy(session);
    segments_doom_unused(session);
}

void session_die(struct session *session, const char *format, ...) {
    va_list arguments;

    if (atomic_load(&session->is_dead)) {
        return;
    }
    va_start(arguments, format);
    vsnprintf(session->why, sizeof session->why, format, arguments);
    va_end(arguments);
    close_socket(session);
    if (session->life_page) {
        /* It alone keeps at the daemon what we hold, also for children from now on. */
        madvise(session->life_page, WIRE_PAGE_NBYTES, MADV_DOFORK);
    }
    session->is_unreported = 1;
    mark_dead(session);
    REACHED(SESSION_DEAD);
    calls_wake_all(session);
}

void session_leave_to_parent(struct session *session) {
    session->is_parents = 1;
    calls_close_descriptors(session);
    if (atomic_load(&session->is_dead)) {
        return;
    }
    /* No shutdown: it would end the parent's connection. No session_die(): the parent's threads
     * that wait here are not in this process, and their condition variables may be in any state. */
    if (socket_is_ours(session)) {
        close(session->socket);
    }
    session->socket = -1;
    if (!session->lends_page) {
        session->life_page = NULL; /* not mapped here: MADV_DONTFORK */
    }
    session->lends_page = 0;
    session->is_inherited = 1;
    snprintf(session->why, sizeof session->why, "it was the parent's, from before fork()");
    session->has_reader = 0;
    mark_dead(session);
}

int session_shares(const struct session *session) {
    return session->is_inherited || !atomic_load(&session->is_dead);
}

int session_is_alive(struct session *session) {
    int has_ended = 0;

    if (!atomic_load(&session->is_dead) && pthread_mutex_trylock(&session->lock) == 0) {
        struct pollfd poller = {.fd = session_socket(session), .events = POLLRDHUP};
        has_ended = poller.fd >= 0 && poll(&poller, 1, 0) == 1;
        /* Who waits for a reply finds the end by itself, after the replies that came before it. */
        if (has_ended && !calls_are_pending(session)) {
            session_die(session, "it has ended");
        }
        session_unlock(session);
    }
    return !has_ended && session_shares(session);
}

int session_error_lost(const struct session *session) {
    char pid[32] = "";

    if (session->pid > 0) {
        snprintf(pid, sizeof pid, " (pid %d)", (int)session->pid);
    }
    return error(STATUS_LOST,
                 "the connection to tensorcxd%s at %s is lost: %s; what is mapped stays valid, the "
                 "next call connects anew",
                 pid, session->path, session->why);
}
