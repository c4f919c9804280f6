#include "ring_cursor.h"

#include "ring_mask.h"

static uint64_t lower(uint64_t low, const uint64_t *cursor, uint64_t floor) {
    uint64_t value = cursor_after_floor(cursor, floor);

    return value < low ? value : low;
}

static uint64_t lowest_subscribed(const struct ring *ring, uint64_t floor, uint64_t head) {
    uint32_t used = ring_members_used(ring);
    uint64_t low = head;

    for (uint32_t m = 0; m < used; m++) {
        const struct ring_member *member = &ring->members[m];
        if (__atomic_load_n(&member->state, __ATOMIC_ACQUIRE) == RING_SUBSCRIBED) {
            low = lower(low, &member->cursor, floor);
        }
    }
    return low;
}

bool ring_span(const struct ring *ring, struct ring_span *ret_span) {
    const struct ring_control *control = ring->control;
    uint64_t floor = __atomic_load_n(&control->floor, __ATOMIC_ACQUIRE);
    uint64_t head = __atomic_load_n(&control->head, __ATOMIC_ACQUIRE);
    bool topic = ring->shape.flags & RING_TOPIC;
    uint64_t low =
        topic ? lowest_subscribed(ring, floor, head) : lower(head, &control->cursor, floor);
    uint64_t need = topic && low == head && head > floor ? head - 1 : low;

    *ret_span = (struct ring_span){.floor = floor, .head = head, .low = low, .need = need};
    return floor <= head && head - low <= ring->shape.capacity;
}

uint64_t *ring_cursor(const struct ring *ring) {
    return ring->shape.flags & RING_TOPIC ? &ring->members[ring->member].cursor
                                          : &ring->control->cursor;
}
