/*
 * ring_cursor.h - which messages are still needed, and by whom
 */
#pragma once

#include "ring.h"

/* One moment, under the lock; without it a hint. */
struct ring_span {
    uint64_t floor;
    uint64_t head;
    uint64_t low;  /* the lowest message that a cursor waits for; head when none does */
    uint64_t need; /* the lowest that is needed: low, and a topic's last */
};

/* False when a cursor is too low to make sense. One beyond head needs nothing (its owner finds
 * out). */
bool ring_span(const struct ring *ring, struct ring_span *ret_span);

/* enum ring_state of this member; others can have written anything. */
static inline uint32_t ring_own_state(const struct ring *ring) {
    return __atomic_load_n(&ring->members[ring->member].state, __ATOMIC_ACQUIRE);
}

/* Where this member reads: the queue's cursor, or its own. */
uint64_t *ring_cursor(const struct ring *ring);

static inline uint64_t cursor_after_floor(const uint64_t *cursor, uint64_t floor) {
    uint64_t value = __atomic_load_n(cursor, __ATOMIC_ACQUIRE);

    return value > floor ? value : floor;
}

static inline bool span_full(const struct ring *ring, const struct ring_span *span) {
    return span->head - span->low >= ring->shape.capacity;
}
