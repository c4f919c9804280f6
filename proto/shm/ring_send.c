#include <sched.h>

#include "ring_cursor.h"
#include "ring_mask.h"
#include <sched.h>

#include "ring_wait.h"
#include "step.h"

#define TURN 24 /* loans in a row while others are woken */

static bool is_closed(const struct ring *ring) {
    return __atomic_load_n(&ring->control->closed, __ATOMIC_ACQUIRE);
}

static void set_floor(struct ring *ring, uint64_t floor) {
    __atomic_store_n(&ring->control->floor, floor, __ATOMIC_RELEASE);
    REACHED(RING_FLOOR_MOVED);
}

static enum ring_result broken(struct ring *ring) {
    __atomic_store_n(&ring->broken, 1, __ATOMIC_RELAXED);
    return RING_BROKEN;
}

/* ----------------------------------------------------------------------------------------- loan */

struct loan {
    uint32_t buffer;
    bool more; /* another one is free, for the next who waits */
};

/* False when a cursor makes no sense. */
static bool add_all_busy(const struct ring *ring, struct ring_span *ret_span, uint64_t *busy) {
    if (!ring_span(ring, ret_span)) {
        return false;
    }
    mask_add_messages(ring, ret_span->need, ret_span->head, busy);
    mask_add_uses(ring, busy);
    return true;
}

/* Drops messages up to the first whose buffer that frees; false when there is none. */
static bool drop_for_buffer(struct ring *ring, const struct ring_span *span) {
    uint64_t uses[RING_MASK_WORDS] = {0};

    mask_add_uses(ring, uses);
    for (uint64_t n = span->need; n < span->head; n++) {
        uint32_t buffer =
            __atomic_load_n(&ring->entries[n & ring->slot_mask].buffer, __ATOMIC_RELAXED);
        if (buffer < ring->shape.buffers && !mask_has(uses, buffer)) {
            set_floor(ring, n + 1);
            return true;
        }
    }
    return false;
}

static enum ring_result look_for_buffer(struct ring *ring, void *what) {
    struct loan *loan = what;
    struct ring_span span;
    uint32_t buffer;

    if (is_closed(ring)) {
        return RING_CLOSED;
    }
    if (ring_own_state(ring) == RING_LEFT) {
        return RING_NOT_IN;
    }
    for (bool dropped = false;; dropped = true) {
        uint64_t busy[RING_MASK_WORDS] = {0};
        if (!add_all_busy(ring, &span, busy)) {
            return broken(ring);
        }
        buffer = mask_find_free(ring, busy, 0);
        if (buffer < ring->shape.buffers) {
            loan->more = mask_find_free(ring, busy, buffer + 1) < ring->shape.buffers;
            break;
        }
        if (dropped || !(ring->shape.flags & RING_DROP_OLDEST) || !drop_for_buffer(ring, &span)) {
            return RING_NOTHING;
        }
    }
    use_set(ring, ring->member, buffer);
    REACHED(RING_BUFFER_LOANED);
    loan->buffer = buffer;
    return RING_OK;
}

static bool buffer_is_likely(const struct ring *ring) {
    uint64_t busy[RING_MASK_WORDS] = {0};
    struct ring_span span;

    return is_closed(ring) || !add_all_busy(ring, &span, busy) ||
           mask_find_free(ring, busy, 0) < ring->shape.buffers;
}

/* A sleeper that was woken gets a processor when the kernel's slice of one that runs is over,
 * milliseconds later, and until then that one would take each buffer. */
static void give_way(struct ring *ring) {
    uint32_t turn = __atomic_load_n(&ring->turn, __ATOMIC_RELAXED) + 1;

    if (turn >= TURN) {
        uint32_t event = __atomic_load_n(&ring->control->free_event, __ATOMIC_RELAXED);
        uint32_t woken = event & ~EVENT_WAITS;
        if (__atomic_exchange_n(&ring->woken, woken, __ATOMIC_RELAXED) != woken) {
            sched_yield();
        }
        turn = 0;
    }
    __atomic_store_n(&ring->turn, turn, __ATOMIC_RELAXED);
}

enum ring_result ring_loan(struct ring *ring, const struct ring_wait *wait, uint32_t *ret_buffer) {
    const struct ring_quest quest = {&ring->control->free_event, look_for_buffer, buffer_is_likely};
    struct loan loan = {0};

    give_way(ring);
    enum ring_result r = quest_run(ring, &quest, &loan, wait);

    if (r == RING_OK) {
        if (loan.more) {
            event_signal(quest.event);
        }
        *ret_buffer = loan.buffer;
    }
    return r;
}

bool ring_clear_ref(const struct ring *ring, uint32_t buffer) {
    uint64_t *ref = ring_desc(ring, buffer);

    if (__atomic_load_n(ref, __ATOMIC_RELAXED) == 0) {
        return false;
    }
    __atomic_exchange_n(ref, 0, __ATOMIC_SEQ_CST);
    REACHED(RING_REF_CLEARED);
    return ring_is_watched(ring);
}

/* ----------------------------------------------------------------------------------------- send */

struct sending {
    uint32_t buffer;
    bool more; /* there is room for another, for the next who waits */
};

static enum ring_result look_for_room(struct ring *ring, void *what) {
    struct sending *sending = what;
    struct ring_control *control = ring->control;
    struct ring_span span;

    if (is_closed(ring)) {
        return RING_CLOSED;
    }
    if (ring_own_state(ring) == RING_LEFT) {
        return RING_NOT_IN;
    }
    if (!ring_span(ring, &span)) {
        return broken(ring);
    }
    if (span_full(ring, &span)) {
        if (!(ring->shape.flags & RING_DROP_OLDEST)) {
            return RING_NOTHING;
        }
        span.low = span.head - ring->shape.capacity + 1;
        set_floor(ring, span.low);
    }
    struct ring_entry *entry = &ring->entries[span.head & ring->slot_mask];
    __atomic_store_n(&entry->number, span.head, __ATOMIC_RELAXED);
    REACHED(RING_ENTRY_NUMBERED);
    __atomic_store_n(&entry->buffer, sending->buffer, __ATOMIC_RELAXED);
    __atomic_store_n(&entry->cpu, (uint32_t)sched_getcpu() + 1, __ATOMIC_RELAXED);
    REACHED(RING_ENTRY_WRITTEN);
    __atomic_store_n(&control->head, ++span.head, __ATOMIC_RELEASE); /* commit */
    REACHED(RING_HEAD_MOVED);
    /* not later: another thread of ours could have received it, with the same mask */
    use_clear(ring, ring->member, sending->buffer);
    REACHED(RING_BUFFER_SENT);
    sending->more = !span_full(ring, &span);
    return RING_OK;
}

static bool room_is_likely(const struct ring *ring) {
    struct ring_span span;

    return is_closed(ring) || !ring_span(ring, &span) || !span_full(ring, &span);
}

bool ring_has_room(const struct ring *ring) {
    return (ring->shape.flags & RING_DROP_OLDEST) || room_is_likely(ring);
}

enum ring_result ring_send(struct ring *ring, const struct ring_wait *wait, uint32_t buffer) {
    struct ring_control *control = ring->control;
    const struct ring_quest quest = {&control->room_event, look_for_room, room_is_likely};
    struct sending sending = {.buffer = buffer};
    enum ring_result r = quest_run(ring, &quest, &sending, wait);

    if (r != RING_OK) {
        return r;
    }
    if (ring->shape.flags & RING_TOPIC) {
        event_signal_all(&control->data_event);
    } else {
        event_signal(&control->data_event);
    }
    if (sending.more) {
        event_signal(quest.event);
    }
    if (ring->shape.flags) { /* a topic's last message is no longer kept, or some were dropped */
        event_signal(&control->free_event);
    }
    return RING_OK;
}

/* -------------------------------------------------------------------------------------- release */

void ring_release_for(struct ring *ring, uint32_t member, uint32_t buffer) {
    use_clear(ring, member, buffer);
    REACHED(RING_BUFFER_FREED);
    event_signal(&ring->control->free_event);
}

bool ring_release(struct ring *ring, uint32_t buffer) {
    ring_release_for(ring, ring->member, buffer);
    return ring_is_watched(ring);
}

bool ring_is_watched(const struct ring *ring) {
    event_fence();
    return __atomic_load_n(&ring->control->watched, __ATOMIC_SEQ_CST);
}

void ring_close(struct ring *ring) {
    __atomic_store_n(&ring->control->closed, 1, __ATOMIC_RELEASE);
    REACHED(RING_SHUT);
    event_shout(&ring->control->data_event);
    event_shout(&ring->control->room_event);
    event_shout(&ring->control->free_event);
}
