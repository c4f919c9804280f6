#include "closer.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "list.h"
#include "step.h"

/* One thread is always there. More come, for as long as there is something to do, when what is to
 * be closed has waited for so long; when so many are blocked, the rest waits. */
enum { THREADS_MAX = 64, PATIENCE_MS = 100, STACK_SIZE = 64 * 1024 };

struct closing {
    struct list link; /* pending */
    uint64_t since_ms;
    size_t count;
    int fds[]; /* owned */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static pthread_cond_t added = PTHREAD_COND_INITIALIZER;
static struct list pending = {&pending, &pending}; /* of struct closing, the oldest first; owned */
static int threads;

static uint64_t now_ms(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void close_all(const int *fds, size_t count) {
    for (size_t i = 0; i < count; i++) {
        close(fds[i]);
    }
}

/* Takes the oldest off the list; NULL: there is none, and one thread less. */
static struct closing *take(bool stays) {
    pthread_mutex_lock(&lock);
    while (stays && list_is_empty(&pending)) {
        pthread_cond_wait(&added, &lock);
    }
    struct list *link = list_pop(&pending);
    threads -= link == NULL;
    pthread_mutex_unlock(&lock);
    return link ? container_of(link, struct closing, link) : NULL;
}

static void *run(void *stays) {
    struct closing *closing;

    while ((closing = take(stays != NULL))) {
        close_all(closing->fds, closing->count);
        REACHED(DESCRIPTORS_CLOSED);
        free(closing);
    }
    return NULL;
}

static int start_thread(void *stays) {
    pthread_attr_t attributes;
    pthread_t thread;

    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_SIZE);
    int r = pthread_create(&thread, &attributes, run, stays);
    pthread_attr_destroy(&attributes);
    return r;
}

int closer_start(void) {
    static int stays;

    threads = 1;
    return -start_thread(&stays);
}

/* Adds it to the list. Returns whether one thread more is to run: all that there are are blocked.
 */
static bool add(struct closing *closing) {
    pthread_mutex_lock(&lock);
    list_append(&pending, &closing->link);
    const struct closing *oldest = container_of(pending.next, struct closing, link);
    bool one_more = closing->since_ms - oldest->since_ms > PATIENCE_MS && threads < THREADS_MAX;
    threads += one_more;
    pthread_cond_signal(&added);
    pthread_mutex_unlock(&lock);
    return one_more;
}

void closer_close(const int *fds, size_t count) {
    struct closing *closing = malloc(sizeof *closing + count * sizeof *fds);

    if (!closing) {
        close_all(fds, count);
        return;
    }
    closing->since_ms = now_ms();
    closing->count = count;
    memcpy(closing->fds, fds, count * sizeof *fds);
    if (add(closing) && start_thread(NULL) != 0) { /* then those that there are do it */
        pthread_mutex_lock(&lock);
        threads--;
        pthread_mutex_unlock(&lock);
    }
}
