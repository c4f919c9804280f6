/*
 * bare.h - the least that a ring in shared memory can cost: one sender, one reader, both spinning
 */
#pragma once

#include <stdint.h>

#include "ring_spin.h"

#define IN_FLIGHT 8

struct bare {
    uint64_t head __attribute__((aligned(128)));
    uint64_t tail __attribute__((aligned(128)));
    uint64_t entries[IN_FLIGHT] __attribute__((aligned(128)));
};

static inline void bare_send(struct bare *b, uint64_t value) {
    uint64_t head = __atomic_load_n(&b->head, __ATOMIC_RELAXED);

    while (head - __atomic_load_n(&b->tail, __ATOMIC_ACQUIRE) == IN_FLIGHT) {
        spin_pause();
    }
    b->entries[head % IN_FLIGHT] = value;
    __atomic_store_n(&b->head, head + 1, __ATOMIC_RELEASE);
}

static inline uint64_t bare_recv(struct bare *b) {
    uint64_t tail = __atomic_load_n(&b->tail, __ATOMIC_RELAXED);

    while (__atomic_load_n(&b->head, __ATOMIC_ACQUIRE) == tail) {
        spin_pause();
    }
    uint64_t value = b->entries[tail % IN_FLIGHT];
    __atomic_store_n(&b->tail, tail + 1, __ATOMIC_RELEASE);
    return value;
}
