#include "ring_lock.h"

#include "ring_futex.h"
#include "ring_mask.h"
#include "ring_slice.h"
#include "ring_spin.h"
#include "step.h"

#define WAITERS (1u << 31)
#define SPINS   100 /* some hundred ns: longer than it is held by one who runs */

static bool take(uint32_t *lock, uint32_t client) {
    uint32_t free = 0;

    return __atomic_load_n(lock, __ATOMIC_RELAXED) == 0 &&
           __atomic_compare_exchange_n(lock, &free, client, false, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED);
}

/* False when somebody scribbled into the lock: nobody is there to give it. */
static bool owner_is_member(const struct ring *ring) {
    const uint32_t *lock = &ring->control->lock;
    uint32_t value = __atomic_load_n(lock, __ATOMIC_RELAXED);
    uint32_t used = ring_members_used(ring);

    for (uint32_t m = 0; m < used; m++) {
        if (__atomic_load_n(&ring->members[m].client, __ATOMIC_RELAXED) == (value & ~WAITERS)) {
            return true;
        }
    }
    return value == 0 || __atomic_load_n(lock, __ATOMIC_RELAXED) != value; /* given meanwhile */
}

static enum ring_result sleep_for_lock(struct ring *ring, uint64_t deadline_ns) {
    uint32_t *lock = &ring->control->lock;
    uint64_t until = ring_now() + SLICE_NS;

    if (deadline_ns != 0 && deadline_ns < until) {
        until = deadline_ns;
    }
    while (!take(lock, ring->client)) {
        uint32_t value = __atomic_load_n(lock, __ATOMIC_RELAXED);
        if (value == 0) {
            continue;
        }
        if (!(value & WAITERS) &&
            !__atomic_compare_exchange_n(lock, &value, value | WAITERS, false, __ATOMIC_RELAXED,
                                         __ATOMIC_RELAXED)) {
            continue;
        }
        REACHED(RING_LOCK_AWAITED);
        int r = futex_wait(lock, value | WAITERS, until);
        if (r == -ETIMEDOUT || r == -EINTR) {
            if (!owner_is_member(ring)) {
                __atomic_store_n(&ring->broken, 1, __ATOMIC_RELAXED);
                return RING_BROKEN;
            }
            return deadline_ns <= ring_now() ? RING_LOCKED : RING_AGAIN;
        }
    }
    return RING_OK;
}

enum ring_result ring_lock(struct ring *ring, uint64_t deadline_ns) {
    if (__atomic_load_n(&ring->broken, __ATOMIC_RELAXED)) {
        return RING_BROKEN;
    }
    for (int i = 0; i < SPINS; i++) {
        if (take(&ring->control->lock, ring->client)) {
            REACHED(RING_LOCKED);
            return RING_OK;
        }
        spin_pause();
    }
    enum ring_result r = sleep_for_lock(ring, deadline_ns);
    if (r == RING_OK) {
        REACHED(RING_LOCKED);
    }
    return r;
}

void ring_unlock(struct ring *ring) {
    uint32_t *lock = &ring->control->lock;
    uint32_t value = ring->client;

    while (
        !__atomic_compare_exchange_n(lock, &value, 0, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
        if ((value & ~WAITERS) != ring->client) { /* somebody scribbled: leave it */
            __atomic_store_n(&ring->broken, 1, __ATOMIC_RELAXED);
            return;
        }
    }
    REACHED(RING_UNLOCKED);
    if (value & WAITERS) {
        futex_wake(lock, INT_MAX); /* all: one that was woken may die */
        REACHED(RING_LOCK_PASSED);
    }
}

void ring_lock_repair(struct ring *ring, uint32_t client) {
    uint32_t *lock = &ring->control->lock;
    uint32_t value = __atomic_load_n(lock, __ATOMIC_RELAXED);

    while (
        (value & ~WAITERS) == client &&
        !__atomic_compare_exchange_n(lock, &value, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    }
    REACHED(RING_LOCK_REPAIRED);
    futex_wake(lock, INT_MAX);
}

uint32_t ring_lock_owner(const struct ring *ring) {
    return __atomic_load_n(&ring->control->lock, __ATOMIC_RELAXED) & ~WAITERS;
}
