#include "worker.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "list.h"

static void on_thread(uv_work_t *request) {
    struct job *job = container_of(request, struct job, request);

    job->work(job);
}

static void on_loop(uv_work_t *request, int status) {
    struct job *job = container_of(request, struct job, request);
    struct worker *worker = job->worker;

    (void)status;
    job->done(job);
    if (worker->settle) {
        worker->settle(worker->owner);
    }
}

void worker_submit(struct worker *worker, struct job *job) {
    job->worker = worker;
    uv_queue_work(worker->loop, &job->request, on_thread, on_loop);
}

static void do_nothing(struct job *job) {
    (void)job;
}

void worker_start(struct worker *worker) {
    static struct job first = {.work = do_nothing, .done = do_nothing};

    worker_submit(worker, &first);
}

/* ---------------------------------------------------------------------------------------- close */

struct closing {
    struct job job; /* first */
    size_t count;
    int fds[]; /* owned */
};

static void close_all(const int *fds, size_t count) {
    for (size_t i = 0; i < count; i++) {
        close(fds[i]);
    }
}

static void close_work(struct job *job) {
    const struct closing *closing = (struct closing *)job;

    close_all(closing->fds, closing->count);
}

static void close_done(struct job *job) {
    free(job);
}

void worker_close(struct worker *worker, const int *fds, size_t count) {
    struct closing *closing = malloc(sizeof *closing + count * sizeof *fds);

    if (!closing) {
        close_all(fds, count);
        return;
    }
    closing->job.work = close_work;
    closing->job.done = close_done;
    closing->count = count;
    memcpy(closing->fds, fds, count * sizeof *fds);
    worker_submit(worker, &closing->job);
}
