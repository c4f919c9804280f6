#include "flusher.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include "clock.h"
#include "outbox.h"
#include "session.h"
#include "step.h"

#define STACK_SIZE (256 * 1024) /* thread-local variables of the whole program are in it, too */

static void *run(void *argument) {
    struct session *session = argument;

    REACHED(FLUSHER_BEGUN);
    session_lock(session);
    while (session->outbox && session_socket(session) >= 0) {
        struct pollfd poller = {.fd = session->socket, .events = POLLOUT};
        session_unlock(session);
        poll(NULL, 0, 1); /* also a kernel without memory calls the socket writable */
        poll(&poller, 1, SLICE_NS / NS_PER_MS);
        session_lock(session);
        outbox_flush(session);
    }
    session->has_flusher = 0;
    REACHED(FLUSHER_DONE);
    session_unlock(session);
    session_unref(session);
    return NULL;
}

void flusher_start_if_needed(struct session *session) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all;
    sigset_t before;

    if (!session->outbox || session->has_reader || session->has_flusher ||
        atomic_load(&session->is_dead)) {
        return;
    }
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_SIZE);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    session->has_flusher = pthread_create(&thread, &attributes, run, session_ref(session)) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (!session->has_flusher) {
        session_unref(session); /* not the last: our caller has one */
    }
}
