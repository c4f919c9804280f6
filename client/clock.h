/*
 * clock.h - the monotonic clock, in nanoseconds
 */
#pragma once

#include <stdint.h>
#include <time.h>

#define NS_PER_S  1000000000LL
#define NS_PER_MS 1000000LL
#define FOREVER   INT64_MAX

/* How long a thread sleeps before it looks around: for signals, for the interrupt function, for a
 * reader that has gone. */
#define SLICE_NS (100 * NS_PER_MS)

static inline int64_t clock_now(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

/* `delay` from now; FOREVER stays that. */
static inline int64_t clock_after(int64_t delay) {
    int64_t when;

    return __builtin_add_overflow(clock_now(), delay, &when) ? FOREVER : when;
}

/* Seconds as users give them, not negative; what is too long is for ever. */
static inline int64_t clock_from_seconds(double seconds) {
    return seconds < 9e9 ? (int64_t)(seconds * 1e9) : FOREVER;
}

static inline struct timespec clock_timespec(int64_t ns) {
    return (struct timespec){.tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S};
}
