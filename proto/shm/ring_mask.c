#include "ring_mask.h"

uint32_t ring_members_used(const struct ring *ring) {
    uint32_t used = __atomic_load_n(&ring->control->members_used, __ATOMIC_ACQUIRE);

    return used < ring->shape.members ? used : ring->shape.members;
}

void mask_add_uses(const struct ring *ring, uint64_t *mask) {
    uint32_t used = ring_members_used(ring);

    for (uint32_t m = 0; m < used; m++) {
        for (uint32_t w = 0; w < ring->words; w++) {
            mask[w] |= __atomic_load_n(&ring->members[m].uses[w], __ATOMIC_ACQUIRE);
        }
    }
}

void mask_add_messages(const struct ring *ring, uint64_t low, uint64_t head, uint64_t *mask) {
    for (uint64_t n = low; n < head; n++) {
        uint32_t buffer =
            __atomic_load_n(&ring->entries[n & ring->slot_mask].buffer, __ATOMIC_ACQUIRE);
        if (buffer < ring->shape.buffers) {
            mask_add(mask, buffer);
        }
    }
}

uint32_t mask_find_free(const struct ring *ring, const uint64_t *busy, uint32_t from) {
    uint32_t buffers = ring->shape.buffers;
    uint64_t below = (UINT64_C(1) << from % 64) - 1; /* taken as busy */

    for (uint32_t w = from / 64; w < ring->words; w++, below = 0) {
        uint64_t free = ~(busy[w] | below);
        if (free) {
            uint32_t buffer = w * 64 + (uint32_t)__builtin_ctzll(free);
            return buffer < buffers ? buffer : buffers;
        }
    }
    return buffers;
}
