/*
 * segments_fixture.h - segments over a store that only counts, and a clock that stands still
 */
#pragma once

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <uv.h>

#include "bytes.h"
#include "fixture.h"
#include "segment.h"
#include "status.h"

#define KIB ((uint64_t)1 << 10)

/* What the machine has: bytes of all segments of the fake store. */
static _Atomic uint64_t machine_left;
static _Atomic uint64_t pieces_committed;
static _Atomic uint64_t behind[1024]; /* bytes behind the segment with this file */

static _Atomic uint64_t *behind_file(int fd) {
    struct stat info;

    EXPECT_EQ(0, fstat(fd, &info));
    return &behind[info.st_ino % 1024];
}

static int fake_create(struct backing *backing, uint64_t nbytes) {
    (void)nbytes;
    backing->fd = memfd_create("fake", MFD_CLOEXEC);
    return backing->fd < 0 ? -errno : 0;
}

static int fake_commit(struct backing *backing, uint64_t offset, uint64_t nbytes) {
    (void)offset;
    if (nbytes > machine_left) {
        return -ENOSPC;
    }
    machine_left -= nbytes;
    *behind_file(backing->fd) += nbytes;
    pieces_committed++;
    return 0;
}

static int fake_trim(struct backing *backing, uint64_t offset, uint64_t nbytes) {
    _Atomic uint64_t *left = behind_file(backing->fd);
    uint64_t given_back = nbytes < *left ? nbytes : *left;

    (void)offset;
    *left -= given_back;
    machine_left += given_back;
    return 0;
}

static const struct store fake_store = {.name = "fake",
                                        .unit = 4096,
                                        .step = 4 * MIB,
                                        .trim_step = 64 * MIB,
                                        .create = fake_create,
                                        .commit = fake_commit,
                                        .trim = fake_trim};

struct fixture {
    uv_loop_t loop;
    struct worker worker;
    struct list ready;
    struct segments segments;
    struct segments *from; /* where tests take */
    uint64_t now_ms;
    unsigned user;            /* takes */
    struct shortage shortage; /* the last one told */
    int shortages;
};

static void on_failed(void *owner, struct segment *segment, const struct shortage *shortage) {
    struct fixture *f = owner;
    struct list *link;

    f->shortage = *shortage;
    f->shortages++;
    while ((link = list_pop(&segment->waiters.waiters))) {
        container_of(link, struct waiter, link)->on = NULL;
    }
}

static uint64_t now(void *owner) {
    return ((struct fixture *)owner)->now_ms;
}

static void setup(struct fixture *f, uint64_t capacity, uint64_t machine) {
    *f = (struct fixture){.now_ms = 1};
    machine_left = machine;
    memset((void *)behind, 0, sizeof behind);
    pieces_committed = 0;
    uv_loop_init(&f->loop);
    list_init(&f->ready);
    f->worker = (struct worker){.loop = &f->loop};
    f->segments = (struct segments){.store = &fake_store,
                                    .worker = &f->worker,
                                    .ready = &f->ready,
                                    .failed = on_failed,
                                    .now = now,
                                    .owner = f,
                                    .root = "/none", /* the machine has what the fake store has */
                                    .capacity = capacity,
                                    .warm_ms = 1000};
    segments_init(&f->segments);
    f->from = &f->segments;
}

/* Everything must be free by now. */
static void teardown(struct fixture *f) {
    segments_stop(&f->segments);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    segments_fini(&f->segments);
    EXPECT_EQ(0, uv_loop_close(&f->loop));
    uv_library_shutdown(); /* its threads and their descriptors */
}

static struct range *try_take(struct fixture *f, uint64_t nbytes, struct waiter *waiter) {
    struct range *range = malloc(sizeof *range);
    struct waitlist *wait;
    int r = segments_take(f->from, f->user, nbytes, range, &wait, &f->shortage);

    if (r == STATUS_OK) {
        return range;
    }
    free(range);
    if (r == -EAGAIN) {
        waiter_wait(waiter, wait);
    } else {
        EXPECT_EQ(STATUS_OUT_OF_MEMORY, r);
    }
    return NULL;
}

/* Takes `nbytes` and waits for it; NULL when it cannot be had. */
static struct range *take(struct fixture *f, uint64_t nbytes) {
    struct waiter waiter = {.link = {&waiter.link, &waiter.link}};
    struct range *range = try_take(f, nbytes, &waiter);

    if (range || !waiter.on) {
        return range;
    }
    uv_run(&f->loop, UV_RUN_DEFAULT);
    if (list_pop(&f->ready)) {
        range = try_take(f, nbytes, &waiter);
        EXPECT_TRUE(range != NULL);
    }
    return range;
}

static void give(struct fixture *f, struct range *range) {
    segments_give(range);
    uv_run(&f->loop, UV_RUN_DEFAULT);
}
