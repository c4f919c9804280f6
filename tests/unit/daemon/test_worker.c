/* A serial worker: one job at a time, in the order in which they came. */
#include "fixture.h"
#include "worker.h"

static _Atomic int running;
static int most, order[8], done;

struct numbered {
    struct job job;
    int number;
};

static void work(struct job *job) {
    int now = ++running;

    (void)job;
    most = now > most ? now : most;
    usleep(2000);
    running--;
}

static void note(struct job *job) {
    order[done++] = ((struct numbered *)job)->number;
}

static void run_eight(struct worker *worker) {
    struct numbered jobs[8];
    uv_loop_t loop;

    uv_loop_init(&loop);
    worker->loop = &loop;
    worker_init(worker);
    for (int i = 0; i < 8; i++) {
        jobs[i] = (struct numbered){.job = {.work = work, .done = note}, .number = i};
        worker_submit(worker, &jobs[i].job);
    }
    uv_run(&loop, UV_RUN_DEFAULT);
    EXPECT_EQ(8, done);
    EXPECT_EQ(0, uv_loop_close(&loop));
    uv_library_shutdown();
}

TEST(a_serial_worker_runs_one_job_after_the_other) {
    struct worker worker = {.is_serial = true};

    run_eight(&worker);
    EXPECT_EQ(1, most);
    for (int i = 0; i < 8; i++) {
        EXPECT_EQ(i, order[i]);
    }
}

TEST(another_worker_runs_several_at_a_time) {
    struct worker worker = {0};

    run_eight(&worker);
    EXPECT_TRUE(most > 1);
}
