/*
 * worker.h - runs what may take over a millisecond on libuv's threads
 *
 * A job is one short piece of work; who has a long one submits its pieces one after the other, so
 * that others get their turn in between.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#include "list.h"

struct worker {
    struct uv_loop_s *loop;      /* borrowed: outlives us */
    void (*settle)(void *owner); /* called on the loop after every `done` */
    void *owner;                 /* borrowed: of `settle` */
    bool is_serial;              /* one job at a time, in their order, so that others get threads */

    bool is_busy;        /* serial: a job is with libuv */
    struct list waiting; /* serial: of struct job, the others */
};

struct job {
    void (*work)(
        struct job *job); /* on a thread: touches nothing that the loop touches meanwhile */
    void (*done)(
        struct job *job);  /* on the loop afterwards; the job may be freed or submitted again */
    struct worker *worker; /* of worker_submit(), as is the rest */
    struct list link;      /* worker::waiting */
    uv_work_t request;
};

/* Sets up a serial worker, whose first four fields the caller has filled in. */
void worker_init(struct worker *worker);

/* Makes the threads, before there is anybody to lose: libuv ends the process when it cannot. */
void worker_start(struct worker *worker);

/* The job must stay where it is until `done` is called. */
void worker_submit(struct worker *worker, struct job *job);
