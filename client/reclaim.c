#include "reclaim.h"

#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "call.h"
#include "channel_buffer.h"
#include "clock.h"
#include "device.h"
#include "error.h"
#include "fork.h"
#include "segment.h"
#include "session.h"
#include "step.h"
#include "tensor.h"

#define STACK_SIZE (512 * 1024) /* the driver's, and deleters of frameworks */
#define RETRY_NS   (100 * NS_PER_MS)
#define EXIT_NS    NS_PER_S        /* that exit() waits for it at most */
#define DELETER_NS (10 * NS_PER_S) /* and an interpreter for a deleter that was called */
#define HURRY_NS   (2 * NS_PER_S)  /* an allocation */

static struct tcx_tensor *_Atomic queue; /* owned, newest first */
static atomic_int is_running;
static atomic_size_t queued;    /* tensors, ever */
static atomic_size_t finished;  /* of these, let go of */
static atomic_size_t rounds;    /* of the thread, ever */
static atomic_size_t unwatched; /* sessions that had nothing more on devices */
static atomic_int hurries;      /* callers of reclaim_hurry() */
static atomic_int is_ending;    /* deleters of others are not to be called any more */
static atomic_int is_deleting;  /* the thread has seen that they may be, and is not yet back */
static sem_t wake;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static struct tcx_tensor *waiting;                       /* owned: taken from the queue */
static struct session *watched;                          /* counted */

void reclaim_lock(void) {
    pthread_mutex_lock(&lock);
}

void reclaim_unlock(void) {
    pthread_mutex_unlock(&lock);
}

/* ----------------------------------------------------------------------------------- in others */

int reclaim_tensor(struct tcx_tensor *tensor) {
    if (!atomic_load(&is_running)) {
        return 0;
    }
    atomic_fetch_add(&queued, 1);
    tensor->next = atomic_load(&queue);
    while (!atomic_compare_exchange_weak(&queue, &tensor->next, tensor)) {
    }
    REACHED(RECLAIM_QUEUED);
    sem_post(&wake);
    return 1;
}

void reclaim_wake(void) {
    sem_post(&wake);
}

void reclaim_watch(struct session *session) {
    if (!session->is_watched) {
        session->is_watched = 1;
        pthread_mutex_lock(&lock);
        session->next_watched = watched;
        watched = session_ref(session);
        pthread_mutex_unlock(&lock);
    }
    sem_post(&wake); /* it has a segment that may never be used */
}

void reclaim_unwatch(struct session *session) {
    session->is_watched = 0;
    pthread_mutex_lock(&lock);
    atomic_fetch_add(&unwatched, 1);
    struct session **link = &watched;
    while (*link != session) {
        link = &(*link)->next_watched;
    }
    *link = session->next_watched;
    pthread_mutex_unlock(&lock);
}

/* -------------------------------------------------------------------------------- in the thread */

/* Which devices have been asked in a round, and which of them are done, by ordinal. */
struct round {
    uint64_t asked;
    uint64_t settled;
};

/* Whether nothing of this process runs on the tensor's device that was launched before the round.
 */
static int is_settled(const struct tcx_tensor *tensor, struct round *round) {
    uint64_t bit = UINT64_C(1) << (tensor->array.device.id & 63);
    struct device *device;

    if (!(round->asked & bit)) {
        round->asked |= bit;
        if (device_find(tensor->array.device, &device) != STATUS_OK || device_settle(device)) {
            round->settled |= bit;
        }
    }
    return (round->settled & bit) != 0;
}

/* The next tensor of the round that can be let go of, out of the list; NULL: none. */
static struct tcx_tensor *next_settled(struct round *round) {
    struct tcx_tensor **link = &waiting;
    struct tcx_tensor *tensor;

    pthread_mutex_lock(&lock);
    while ((tensor = *link)) {
        pthread_mutex_unlock(&lock);
        int settled = is_settled(tensor, round); /* nobody else changes the list, but in a child */
        pthread_mutex_lock(&lock);
        if (settled) {
            *link = tensor->next;
            break;
        }
        link = &tensor->next;
    }
    pthread_mutex_unlock(&lock);
    return tensor;
}

/* Takes what was queued up to now, waits for its devices, and lets it go. Returns when to try
 * again, FOREVER: no need. */
static int64_t reclaim_queue(void) {
    struct round round = {0};
    struct tcx_tensor *tensor;

    pthread_mutex_lock(&lock);
    struct tcx_tensor **last = &waiting;
    while (*last) {
        last = &(*last)->next;
    }
    *last = atomic_exchange(&queue, NULL);
    pthread_mutex_unlock(&lock);
    while ((tensor = next_settled(&round))) {
        REACHED(RECLAIM_SETTLED);
        atomic_store(&is_deleting, 1);
        if (atomic_load(&is_ending) && tensor->release != channel_buffer_unref) {
            tensor->foreign = NULL; /* somebody else's deleter */
        }
        tensor_destroy(tensor);
        atomic_store(&is_deleting, 0);
        atomic_fetch_add(&finished, 1);
        REACHED(RECLAIMED);
    }
    return waiting ? clock_after(RETRY_NS) : FOREVER;
}

/* Looks after the segments of all sessions that are watched. Returns when to come again. */
static int64_t tidy_sessions(void) {
    int64_t due = FOREVER;
    struct session *next;

    pthread_mutex_lock(&lock);
    for (struct session *session = watched; session; session = next) {
        next = session->next_watched; /* others are added in front, and only we take one out */
        pthread_mutex_unlock(&lock);
        int64_t its = segments_tidy_devices(session);
        if (its == 0) {
            session_unref(session);
        } else if (its < due) {
            due = its;
        }
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return due;
}

/* Until somebody wakes us, or it is time. */
static void sleep_until(int64_t due) {
    struct timespec time = clock_timespec(due);

    if (due == FOREVER) {
        sem_wait(&wake);
    } else {
        sem_clockwait(&wake, CLOCK_MONOTONIC, &time);
    }
    while (sem_trywait(&wake) == 0) { /* all that came meanwhile is seen in one round */
    }
}

static void *run(void *unused) {
    int64_t due = FOREVER;

    for (;;) {
        sleep_until(due);
        int64_t retry = reclaim_queue();
        due = tidy_sessions();
        due = retry < due ? retry : due;
        atomic_fetch_add(&rounds, 1);
    }
    return unused;
}

/* Whether all is let go of that was queued when there were so many. */
static int is_finished(size_t count) {
    return atomic_load(&finished) >= count;
}

int reclaim_is_hurried(void) {
    return atomic_load(&hurries) > 0;
}

/* What other clients of this process have told the daemon before, it has read afterwards: it reads
 * their sockets in any order. */
static void catch_up(const struct session *asking) {
    struct wire_alive fixed = {0};
    struct frame frame = REQUEST(ALIVE, &fixed);
    struct call *call;
    uint64_t cursor = 0;
    struct session *other;

    while ((other = fork_next_session(asking->boot_id, &cursor))) {
        if (other != asking && call_run(other, &frame, 0, &call) == STATUS_OK) {
            call_free(other, call);
        }
        session_unref(other);
    }
}

size_t reclaim_progress(void) {
    return atomic_load(&finished) + atomic_load(&unwatched);
}

int reclaim_hurry(const struct session *session, size_t since) {
    size_t count = atomic_load(&queued);
    size_t round = atomic_load(&rounds);
    int64_t deadline = clock_after(HURRY_NS);

    pthread_mutex_lock(&lock);
    int has_any = watched != NULL;
    pthread_mutex_unlock(&lock);
    int has_more = has_any || !is_finished(count);
    if (!atomic_load(&is_running) || (!has_more && reclaim_progress() == since)) {
        return 0;
    }
    atomic_fetch_add(&hurries, 1);
    reclaim_wake();
    /* The round that is under way may have begun before. */
    while (has_more && (!is_finished(count) || atomic_load(&rounds) < round + 2) &&
           clock_now() < deadline) {
        poll(NULL, 0, 1);
        reclaim_wake();
    }
    atomic_fetch_sub(&hurries, 1);
    REACHED(RECLAIM_HURRIED);
    catch_up(session);
    return 1;
}

/* A process that ends with something unfinished has not let go of it, and the daemon does not give
 * such memory to anybody before all of its segment is unused. Runs before the driver's own end. */
static void finish_at_exit(void) {
    int64_t deadline = clock_after(EXIT_NS);

    while (atomic_load(&is_running) && !is_finished(atomic_load(&queued)) &&
           clock_now() < deadline) {
        poll(NULL, 0, 1);
    }
}

void tcx_devices_end(void) {
    finish_at_exit();
    atomic_store(&is_ending, 1);
    int64_t deadline = clock_after(DELETER_NS);
    while (atomic_load(&is_running) && atomic_load(&is_deleting) && clock_now() < deadline) {
        poll(NULL, 0, 1);
    }
}

int reclaim_start(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all;
    sigset_t before;

    if (atomic_load(&is_running)) {
        return STATUS_OK;
    }
    sem_init(&wake, 0, 0);
    atexit(finish_at_exit);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_SIZE);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int number = pthread_create(&thread, &attributes, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (number != 0) {
        return error_system(number, "no thread to be had that reclaims memory of CUDA devices");
    }
    atomic_store(&is_running, 1);
    REACHED(RECLAIM_BEGUN);
    return STATUS_OK;
}

/* ------------------------------------------------------------------------- in a child of fork() */

void reclaim_start_over(void) {
    atomic_store(&is_running, 0);
    atomic_store(&finished, atomic_load(&queued));
    atomic_store(&hurries, 0);
    atomic_store(&is_deleting, 0);
    for (struct session *session = watched; session; session = session->next_watched) {
        session->is_watched = 0;
        session->forks++; /* our reference, to be given up with fork's own */
    }
    watched = NULL;
}

/* What the parent's thread lets go of there is only forgotten here, but for the storages, which
 * would keep the fork page. */
void reclaim_drop_inherited(void) {
    struct tcx_tensor *lists[] = {waiting, atomic_exchange(&queue, NULL)};

    waiting = NULL;
    for (size_t i = 0; i < 2; i++) {
        for (struct tcx_tensor *tensor = lists[i]; tensor; tensor = tensor->next) {
            storage_unref(tensor->storage);
        }
    }
}
