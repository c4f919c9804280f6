#include <sched.h>

#include "ring_cursor.h"
#include "ring_mask.h"
#include "ring_wait.h"
#include "step.h"

struct receiving {
    bool latest;
    bool more;    /* another message is there, for the next who waits */
    bool skipped; /* messages that this was the last to need */
    struct ring_message message;
};

static bool may_receive(const struct ring *ring) {
    uint32_t state = ring_own_state(ring);

    return ring->shape.flags & RING_TOPIC ? state == RING_SUBSCRIBED : state != RING_LEFT;
}

/* False when the entry cannot be what a sender wrote for message n. */
static bool read_entry(const struct ring *ring, uint64_t n, uint32_t *ret_buffer) {
    const struct ring_entry *entry = &ring->entries[n & ring->slot_mask];
    uint32_t buffer = __atomic_load_n(&entry->buffer, __ATOMIC_RELAXED);

    if (__atomic_load_n(&entry->number, __ATOMIC_RELAXED) != n || buffer >= ring->shape.buffers ||
        use_has(ring, ring->member, buffer)) {
        return false;
    }
    *ret_buffer = buffer;
    return true;
}

static enum ring_result look_for_message(struct ring *ring, void *what) {
    struct receiving *receiving = what;
    struct ring_control *control = ring->control;
    uint64_t *cursor = ring_cursor(ring);
    uint64_t was = __atomic_load_n(cursor, __ATOMIC_RELAXED);
    uint64_t floor = __atomic_load_n(&control->floor, __ATOMIC_RELAXED);
    uint64_t head = __atomic_load_n(&control->head, __ATOMIC_RELAXED);
    uint64_t next = was > floor ? was : floor;
    uint32_t buffer = 0;

    if (!may_receive(ring)) {
        return RING_NOT_IN;
    }
    if (head - next > ring->shape.capacity) {
        __atomic_store_n(&ring->broken, 1, __ATOMIC_RELAXED);
        return RING_BROKEN;
    }
    if (next == head) {
        return __atomic_load_n(&control->closed, __ATOMIC_ACQUIRE) ? RING_CLOSED : RING_NOTHING;
    }
    if (receiving->latest) {
        receiving->skipped = next < head - 1;
        next = head - 1;
    }
    bool good = read_entry(ring, next, &buffer);
    if (good) {
        use_set(ring, ring->member, buffer);
        REACHED(RING_MESSAGE_USED);
    }
    __atomic_store_n(cursor, next + 1, __ATOMIC_RELEASE); /* commit */
    REACHED(RING_CURSOR_MOVED);
    receiving->more = next + 1 < head;
    receiving->message =
        (struct ring_message){.number = next, .missed = next - was, .buffer = buffer};
    return good ? RING_OK : RING_BAD;
}

static bool message_is_likely(const struct ring *ring) {
    const struct ring_control *control = ring->control;
    uint64_t floor = __atomic_load_n(&control->floor, __ATOMIC_ACQUIRE);

    return __atomic_load_n(&control->head, __ATOMIC_ACQUIRE) !=
               cursor_after_floor(ring_cursor(ring), floor) ||
           __atomic_load_n(&control->closed, __ATOMIC_ACQUIRE);
}

/* To look for a sender that shares our core only keeps it from running. */
static bool sender_shares_core(const struct ring *ring) {
    uint64_t last = __atomic_load_n(&ring->control->head, __ATOMIC_RELAXED) - 1;
    uint32_t cpu = __atomic_load_n(&ring->entries[last & ring->slot_mask].cpu, __ATOMIC_RELAXED);

    return cpu == (uint32_t)sched_getcpu() + 1;
}

enum ring_result ring_recv(struct ring *ring, const struct ring_wait *wait, bool latest,
                           struct ring_message *ret_message) {
    struct ring_control *control = ring->control;
    const struct ring_quest quest = {&control->data_event, look_for_message, message_is_likely};
    struct receiving receiving = {.latest = latest};
    struct ring_wait patience = *wait;

    if (patience.spin_ns > 0 && sender_shares_core(ring)) {
        patience.spin_ns = 0;
    }
    enum ring_result r = quest_run(ring, &quest, &receiving, &patience);
    if (r != RING_OK && r != RING_BAD) {
        return r;
    }
    event_signal(&control->room_event);
    if (receiving.more && !(ring->shape.flags & RING_TOPIC)) {
        event_signal(quest.event);
    }
    if (receiving.skipped || r == RING_BAD) {
        event_signal(&control->free_event);
    }
    *ret_message = receiving.message;
    return r;
}

/* ---------------------------------------------------------------------------------- subscribers */

enum ring_result ring_subscribe(struct ring *ring, uint64_t deadline_ns, bool latest) {
    struct ring_member *member = &ring->members[ring->member];
    enum ring_result r = ring_lock(ring, deadline_ns);

    if (r != RING_OK) {
        return r;
    }
    if (__atomic_load_n(&member->state, __ATOMIC_ACQUIRE) == RING_JOINED) {
        uint64_t head = __atomic_load_n(&ring->control->head, __ATOMIC_RELAXED);
        uint64_t floor = __atomic_load_n(&ring->control->floor, __ATOMIC_RELAXED);
        __atomic_store_n(&member->cursor, head - (latest && head > floor), __ATOMIC_RELEASE);
        REACHED(RING_READER_PLACED);
        __atomic_store_n(&member->state, RING_SUBSCRIBED, __ATOMIC_RELEASE); /* commit */
        REACHED(RING_READER_COUNTS);
    } else {
        r = RING_NOT_IN;
    }
    ring_unlock(ring);
    return r;
}

void ring_leave(struct ring *ring) {
    __atomic_store_n(&ring->members[ring->member].state, RING_LEFT, __ATOMIC_RELEASE);
    REACHED(RING_MEMBER_LEFT);
    event_shout(&ring->control->data_event); /* our own threads */
    event_shout(&ring->control->room_event);
    event_shout(&ring->control->free_event);
}
