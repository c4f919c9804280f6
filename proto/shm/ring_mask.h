/*
 * ring_mask.h - masks of buffers: what a member uses, which buffers are busy
 *
 * A search errs only towards busy, as bits are set under the lock only.
 */
#pragma once

#include "ring.h"

/* How many members to look at: what the daemon has raised it to, but never beyond the shape. */
uint32_t ring_members_used(const struct ring *ring);

/* Adds what all members use. */
void mask_add_uses(const struct ring *ring, uint64_t *mask);

/* Adds what messages from `low` on need; under the lock, where head - low <= N. */
void mask_add_messages(const struct ring *ring, uint64_t low, uint64_t head, uint64_t *mask);

/* The lowest buffer that is in `busy` not, at `from` or above; M when there is none. */
uint32_t mask_find_free(const struct ring *ring, const uint64_t *busy, uint32_t from);

static inline bool mask_has(const uint64_t *mask, uint32_t buffer) {
    return mask[buffer / 64] >> buffer % 64 & 1;
}

static inline void mask_add(uint64_t *mask, uint32_t buffer) {
    mask[buffer / 64] |= UINT64_C(1) << buffer % 64;
}

/* One member's bit, in the block. */
static inline void use_set(const struct ring *ring, uint32_t member, uint32_t buffer) {
    __atomic_fetch_or(&ring->members[member].uses[buffer / 64], UINT64_C(1) << buffer % 64,
                      __ATOMIC_RELAXED);
}

static inline void use_clear(const struct ring *ring, uint32_t member, uint32_t buffer) {
    __atomic_fetch_and(&ring->members[member].uses[buffer / 64], ~(UINT64_C(1) << buffer % 64),
                       __ATOMIC_RELEASE);
}

static inline bool use_has(const struct ring *ring, uint32_t member, uint32_t buffer) {
    uint64_t word = __atomic_load_n(&ring->members[member].uses[buffer / 64], __ATOMIC_ACQUIRE);

    return word >> buffer % 64 & 1;
}
