#include "ring_cursor.h"
#include "ring_event.h"
#include "ring_futex.h"
#include "ring_lock.h"
#include "ring_mask.h"

/* False when it holds nothing and is not behind. */
static bool describe(const struct ring *ring, uint32_t index, const struct ring_span *span,
                     struct ring_holder *ret_holder) {
    const struct ring_member *member = &ring->members[index];
    struct ring_holder holder = {
        .member = index,
        .client = __atomic_load_n(&member->client, __ATOMIC_RELAXED),
        .holds = ring_uses(ring, index),
    };

    if (__atomic_load_n(&member->state, __ATOMIC_ACQUIRE) == RING_SUBSCRIBED) {
        uint64_t behind = span->head - cursor_after_floor(&member->cursor, span->floor);
        holder.behind = behind < ring->shape.capacity ? (uint32_t)behind : ring->shape.capacity;
    }
    *ret_holder = holder;
    return holder.holds > 0 || holder.behind > 0;
}

uint32_t ring_busy(const struct ring *ring) {
    uint64_t busy[RING_MASK_WORDS] = {0};
    uint32_t count = 0;

    event_fence();
    mask_add_uses(ring, busy);
    for (uint32_t w = 0; w < ring->words; w++) {
        count += (uint32_t)__builtin_popcountll(busy[w]);
    }
    return count;
}

void ring_report(struct ring *ring, struct ring_holder *holders, size_t max,
                 struct ring_report *ret_report) {
    enum ring_result r = ring->client ? ring_lock(ring, 0) : RING_TIMED_OUT;
    uint32_t used = ring_members_used(ring);
    struct ring_report report = {0};
    struct ring_span span;

    bool sane = ring_span(ring, &span);
    report.sent = span.head;
    report.depth = sane ? (uint32_t)(span.head - span.low) : 0;
    report.buffer_nbytes = __atomic_load_n(&ring->control->buffer_nbytes, __ATOMIC_RELAXED);
    report.closed = __atomic_load_n(&ring->control->closed, __ATOMIC_ACQUIRE);
    for (uint32_t m = 0; m < used; m++) {
        struct ring_holder holder;
        if (describe(ring, m, &span, &holder)) {
            if (report.nholders < max) {
                holders[report.nholders] = holder;
            }
            report.nholders++;
        }
    }
    if (r == RING_OK) {
        ring_unlock(ring);
    } else {
        report.lock_owner = ring_lock_owner(ring);
    }
    *ret_report = report;
}
