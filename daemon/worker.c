#include "worker.h"

#include <stdlib.h>
#include <uv.h>

struct request {
    uv_work_t work;
    struct worker *worker; /* borrowed */
    struct job *job;       /* borrowed */
};

static void on_thread(uv_work_t *work) {
    struct job *job = ((struct request *)work)->job;

    job->work(job);
}

static void on_loop(uv_work_t *work, int status) {
    struct request *request = (struct request *)work;
    struct worker *worker = request->worker;
    struct job *job = request->job;

    (void)status;
    free(request);
    job->done(job);
    if (worker->settle) {
        worker->settle(worker->owner);
    }
}

void worker_submit(struct worker *worker, struct job *job) {
    struct request *request = malloc(sizeof *request);

    if (!request) {
        abort(); /* some hundred bytes: the machine is lost anyway */
    }
    request->worker = worker;
    request->job = job;
    uv_queue_work(worker->loop, &request->work, on_thread, on_loop);
}
