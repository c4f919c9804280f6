#include "worker.h"

static void on_thread(uv_work_t *request) {
    struct job *job = container_of(request, struct job, request);

    job->work(job);
}

static void on_loop(uv_work_t *request, int status);

static void run(struct worker *worker, struct job *job) {
    worker->is_busy = true;
    uv_queue_work(worker->loop, &job->request, on_thread, on_loop);
}

static void on_loop(uv_work_t *request, int status) {
    struct job *job = container_of(request, struct job, request);
    struct worker *worker = job->worker;

    (void)status;
    if (worker->is_serial) {
        struct list *next = list_pop(&worker->waiting);
        worker->is_busy = false;
        if (next) {
            run(worker, container_of(next, struct job, link));
        }
    }
    job->done(job);
    if (worker->settle) {
        worker->settle(worker->owner);
    }
}

void worker_submit(struct worker *worker, struct job *job) {
    job->worker = worker;
    if (worker->is_serial && worker->is_busy) {
        list_append(&worker->waiting, &job->link);
    } else {
        run(worker, job);
    }
}

void worker_init(struct worker *worker) {
    list_init(&worker->waiting);
}

static void do_nothing(struct job *job) {
    (void)job;
}

void worker_start(struct worker *worker) {
    static struct job first = {.work = do_nothing, .done = do_nothing};

    worker_submit(worker, &first);
}
