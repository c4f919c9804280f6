#include "worker.h"

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
