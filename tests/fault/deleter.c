/*
 * deleter.c - a consumer of DLPack tensors that lets go where Python is not
 *
 * The tests hand over a managed tensor and its deleter; here it is called on a thread that Python
 * has never seen, on many at once, or when the interpreter is gone. Knows no Python and no DLPack:
 * both are plain pointers.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS_MAX = 64 };

struct taken {
    void *managed; /* owned until the deleter is called */
    void (*deleter)(void *managed);
};

void delete_on_thread(void *managed, void (*deleter)(void *));
void delete_on_threads(void **managed, void (**deleters)(void *), int count);
void delete_at_exit(void *managed, void (*deleter)(void *));
void delete_at_unload(void *managed, void (*deleter)(void *));

static void *call(void *argument) {
    struct taken *taken = argument;

    taken->deleter(taken->managed);
    return NULL;
}

/* On one foreign thread; returns when it is done. The caller has given up the GIL or not: the
 * deleter must not care. */
void delete_on_thread(void *managed, void (*deleter)(void *)) {
    struct taken taken = {managed, deleter};
    pthread_t thread;

    if (pthread_create(&thread, NULL, call, &taken) != 0) {
        abort();
    }
    pthread_join(thread, NULL);
}

static pthread_barrier_t together;

static void *call_together(void *argument) {
    pthread_barrier_wait(&together);
    return call(argument);
}

/* On `count` foreign threads at the same moment. */
void delete_on_threads(void **managed, void (**deleters)(void *), int count) {
    struct taken taken[THREADS_MAX];
    pthread_t threads[THREADS_MAX];

    if (count < 1 || count > THREADS_MAX) {
        abort();
    }
    pthread_barrier_init(&together, NULL, (unsigned)count);
    for (int i = 0; i < count; i++) {
        taken[i] = (struct taken){managed[i], deleters[i]};
        if (pthread_create(&threads[i], NULL, call_together, &taken[i]) != 0) {
            abort();
        }
    }
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
    }
    pthread_barrier_destroy(&together);
}

static struct taken at_exit;
static struct taken at_unload;

static void exiting(void) {
    at_exit.deleter(at_exit.managed);
    puts("deleted at exit");
    fflush(stdout);
}

/* From atexit(), which runs after Py_Finalize. */
void delete_at_exit(void *managed, void (*deleter)(void *)) {
    at_exit = (struct taken){managed, deleter};
    atexit(exiting);
}

/* From a destructor of this library, later still. */
void delete_at_unload(void *managed, void (*deleter)(void *)) {
    at_unload = (struct taken){managed, deleter};
}

__attribute__((destructor)) static void unloading(void) {
    if (at_unload.deleter) {
        at_unload.deleter(at_unload.managed);
        puts("deleted at unload");
        fflush(stdout);
    }
}
