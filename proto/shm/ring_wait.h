/*
 * ring_wait.h - looking for something under the lock, and sleeping until there may be
 */
#pragma once

#include "ring_event.h"
#include "ring_futex.h"
#include "ring_lock.h"
#include "ring_slice.h"
#include "ring_spin.h"

#define RING_NOTHING ((enum ring_result) - 1) /* a look found nothing yet */

/* What loan, send and recv look for. */
struct ring_quest {
    uint32_t *event;
    enum ring_result (*look)(struct ring *ring, void *what); /* under the lock; takes it */
    bool (*likely)(const struct ring *ring);                 /* without the lock, a hint */
};

static inline void quest_spin(const struct ring *ring, const struct ring_quest *quest,
                              uint32_t spin_ns) {
    uint64_t until = ring_now() + spin_ns;

    do {
        for (int i = 0; i < 16; i++) {
            if (quest->likely(ring)) {
                return;
            }
            spin_pause();
        }
    } while (ring_now() < until);
}

/* Sets the flag, looks again, sleeps; RING_NOTHING when woken. */
static inline __attribute__((always_inline)) enum ring_result
quest_sleep(struct ring *ring, const struct ring_quest *quest, void *what, uint64_t deadline_ns,
            uint64_t *slice_ns) {
    uint32_t value = event_prepare(quest->event);
    enum ring_result r = quest->look(ring, what);

    ring_unlock(ring);
    if (r != RING_NOTHING) {
        return r;
    }
    if (*slice_ns == 0) {
        *slice_ns = ring_now() + SLICE_NS;
    }
    __atomic_store_n(&ring->turn, 0, __ATOMIC_RELAXED); /* it is the others' turn */
    uint64_t until = deadline_ns < *slice_ns ? deadline_ns : *slice_ns;
    if (event_sleep(quest->event, value, until)) {
        return RING_NOTHING;
    }
    return deadline_ns <= ring_now() ? RING_TIMED_OUT : RING_AGAIN;
}

/* Inlined into each operation, so that a look is no call through a pointer. */
static inline __attribute__((always_inline)) enum ring_result
quest_run(struct ring *ring, const struct ring_quest *quest, void *what,
          const struct ring_wait *wait) {
    bool woken = false;
    bool spun = wait->spin_ns == 0;
    uint64_t slice_ns = 0;

    for (;;) {
        enum ring_result r = ring_lock(ring, wait->deadline_ns);
        if (r != RING_OK) {
            if (woken) {
                event_pass(quest->event);
            }
            return r;
        }
        if (woken) {
            event_resume(quest->event);
        }
        r = quest->look(ring, what);
        if (r == RING_NOTHING && spun && wait->deadline_ns > RING_AT_ONCE) {
            r = quest_sleep(ring, quest, what, wait->deadline_ns, &slice_ns);
            if (r != RING_NOTHING) {
                return r;
            }
            woken = true;
            continue;
        }
        ring_unlock(ring);
        if (r != RING_NOTHING) {
            return r;
        }
        if (wait->deadline_ns <= RING_AT_ONCE) {
            return RING_TIMED_OUT;
        }
        woken = false;
        spun = true;
        quest_spin(ring, quest, wait->spin_ns);
    }
}
