#include "closer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A thread lasts while there is something to close. When so many are blocked, the rest waits. */
enum { THREADS_MAX = 64, STACK_SIZE = 64 * 1024 };

struct closing {
    struct closing *next;
    size_t count;
    int fds[]; /* owned */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct closing *pending; /* owned; guarded by `lock`, as the next one */
static int threads;

static void close_all(const int *fds, size_t count) {
    for (size_t i = 0; i < count; i++) {
        close(fds[i]);
    }
}

/* Takes the next one off the list; NULL: there is none, and one thread less. */
static struct closing *take(void) {
    pthread_mutex_lock(&lock);
    struct closing *closing = pending;
    if (closing) {
        pending = closing->next;
    } else {
        threads--;
    }
    pthread_mutex_unlock(&lock);
    return closing;
}

static void *run(void *unused) {
    struct closing *closing;

    (void)unused;
    while ((closing = take())) {
        close_all(closing->fds, closing->count);
        free(closing);
    }
    return NULL;
}

/* Adds it to the list. Returns whether one thread more is to run. */
static int add(struct closing *closing) {
    pthread_mutex_lock(&lock);
    closing->next = pending;
    pending = closing;
    int one_more = threads < THREADS_MAX;
    threads += one_more;
    pthread_mutex_unlock(&lock);
    return one_more;
}

static int start_thread(void) {
    pthread_attr_t attributes;
    pthread_t thread;

    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_SIZE);
    int r = pthread_create(&thread, &attributes, run, NULL);
    pthread_attr_destroy(&attributes);
    return r;
}

void closer_close(const int *fds, size_t count) {
    struct closing *closing = malloc(sizeof *closing + count * sizeof *fds);

    if (!closing) {
        close_all(fds, count);
        return;
    }
    closing->count = count;
    memcpy(closing->fds, fds, count * sizeof *fds);
    if (add(closing) && start_thread() != 0) {
        run(NULL);
    }
}
