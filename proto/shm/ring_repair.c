/* What the daemon does. It takes no lock: single atomic operations, each of which can be repeated.
 */
#include "ring_cursor.h"
#include "ring_event.h"
#include "ring_lock.h"
#include "ring_mask.h"
#include "step.h"

void ring_size(struct ring *ring, uint64_t buffer_nbytes) {
    ring->shape.buffer_nbytes = buffer_nbytes;
    __atomic_store_n(&ring->control->buffer_nbytes, buffer_nbytes, __ATOMIC_RELAXED);
    REACHED(RING_SIZED);
}

bool ring_seat(struct ring *ring, uint32_t index, uint32_t client) {
    struct ring_member *member = &ring->members[index];
    uint32_t state = __atomic_load_n(&member->state, __ATOMIC_ACQUIRE);

    if (ring_uses(ring, index) > 0 || (state != RING_FREE && state != RING_LEFT)) {
        return false;
    }
    __atomic_store_n(&member->client, client, __ATOMIC_RELAXED);
    __atomic_store_n(&member->cursor, 0, __ATOMIC_RELAXED);
    REACHED(RING_MEMBER_NAMED);
    __atomic_store_n(&member->state, RING_JOINED, __ATOMIC_RELEASE);
    REACHED(RING_MEMBER_JOINED);
    if (index >= ring_members_used(ring)) {
        __atomic_store_n(&ring->control->members_used, index + 1, __ATOMIC_RELEASE);
    }
    return true;
}

void ring_vacate(struct ring *ring, uint32_t index, const uint64_t keep[RING_MASK_WORDS]) {
    struct ring_member *member = &ring->members[index];

    for (int w = 0; w < RING_MASK_WORDS; w++) {
        __atomic_fetch_and(&member->uses[w], keep ? keep[w] : 0, __ATOMIC_RELEASE);
    }
    REACHED(RING_USES_CLEARED);
    __atomic_store_n(&member->state, RING_LEFT, __ATOMIC_RELEASE);
    REACHED(RING_MEMBER_VACATED);
}

void ring_repair(struct ring *ring, uint32_t client) {
    ring_lock_repair(ring, client);
    event_shout(&ring->control->data_event);
    event_shout(&ring->control->room_event);
    event_shout(&ring->control->free_event);
}

void ring_watch(struct ring *ring, bool watched) {
    uint32_t *word = &ring->control->watched;

    if (__atomic_load_n(word, __ATOMIC_RELAXED) != watched) {
        __atomic_exchange_n(word, watched, __ATOMIC_SEQ_CST);
        event_fence();
        REACHED(RING_WATCHED);
    }
}

uint32_t ring_uses(const struct ring *ring, uint32_t member) {
    uint32_t count = 0;

    for (int w = 0; w < RING_MASK_WORDS; w++) {
        uint64_t word = __atomic_load_n(&ring->members[member].uses[w], __ATOMIC_ACQUIRE);
        count += (uint32_t)__builtin_popcountll(word);
    }
    return count;
}

/* Masks, messages, masks again, in this order: a buffer is always in a mask or needed until all are
 * done with it, and who takes it sets its bit before it moves the cursor. */
void ring_sweep(const struct ring *ring, uint64_t ret_needed[RING_MASK_WORDS]) {
    uint64_t needed[RING_MASK_WORDS] = {0};
    struct ring_span span;

    mask_add_uses(ring, needed);
    ring_span(ring, &span); /* not of one moment */
    if (span.head - span.need > ring->slot_mask) {
        span.need = span.head - ring->slot_mask - 1; /* every entry there is */
    }
    mask_add_messages(ring, span.need, span.head, needed);
    mask_add_uses(ring, needed);
    for (int w = 0; w < RING_MASK_WORDS; w++) {
        ret_needed[w] = needed[w];
    }
}
