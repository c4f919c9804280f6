/*
 * ring_futex.h - the kernel's side of lock and events: words that processes share
 */
#pragma once

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline uint64_t ring_now(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Sleeps while *word is `value`. 0 when woken; -EAGAIN, -EINTR or -ETIMEDOUT, and then no wake-up
 * was spent on this caller. */
static inline int futex_wait(uint32_t *word, uint32_t value, uint64_t until_ns) {
    struct timespec t = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};

    if (syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, &t, NULL, FUTEX_BITSET_MATCH_ANY) == 0) {
        return 0;
    }
    return -errno;
}

static inline void futex_wake(uint32_t *word, int count) {
    syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}
