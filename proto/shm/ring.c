#include "ring.h"

static uint32_t slots_of(uint32_t capacity) {
    uint32_t slots = 2;

    while (slots <= capacity) { /* above N: the slot being written is none that is needed */
        slots *= 2;
    }
    return slots;
}

const char *ring_shape_check(const struct ring_shape *shape) {
    uint32_t spare = shape->flags & RING_TOPIC ? 2 : 1; /* a topic keeps its last message */

    if (shape->flags & ~(uint32_t)(RING_TOPIC | RING_DROP_OLDEST)) {
        return "unknown flags";
    }
    if (shape->capacity < 1 || shape->capacity > RING_CAPACITY_MAX) {
        return "the capacity must be 1 to 512 messages";
    }
    if (shape->buffers < shape->capacity + spare || shape->buffers > RING_BUFFERS_MAX) {
        return "there must be at least one buffer more than messages, two in a topic, and at most "
               "896";
    }
    if (shape->members < 1 || shape->members > RING_MEMBERS_MAX) {
        return "there must be 1 to 1024 participants";
    }
    return NULL;
}

static size_t entries_at(const struct ring_shape *shape) {
    return sizeof(struct ring_control) + shape->members * sizeof(struct ring_member);
}

static size_t descs_at(const struct ring_shape *shape) {
    size_t end = entries_at(shape) + slots_of(shape->capacity) * sizeof(struct ring_entry);

    return (end + RING_ALIGN - 1) & ~(size_t)(RING_ALIGN - 1);
}

size_t ring_nbytes(const struct ring_shape *shape) {
    return descs_at(shape) + (size_t)shape->buffers * RING_DESC_NBYTES;
}

void ring_init(void *memory, const struct ring_shape *shape) {
    struct ring_control *control = memory;

    control->magic = RING_MAGIC;
    control->layout = RING_LAYOUT;
    control->flags = shape->flags;
    control->capacity = shape->capacity;
    control->buffers = shape->buffers;
    control->slots = slots_of(shape->capacity);
    control->members = shape->members;
    control->buffer_nbytes = shape->buffer_nbytes;
}

const char *ring_open(void *memory, size_t nbytes, const struct ring_shape *shape, uint32_t client,
                      uint32_t member, struct ring *ret_ring) {
    struct ring_control *control = memory;
    const char *wrong = ring_shape_check(shape);

    if (wrong) {
        return wrong;
    }
    if (nbytes < ring_nbytes(shape)) {
        return "the control block is too small for its shape";
    }
    if (control->magic != RING_MAGIC || control->layout != RING_LAYOUT) {
        return "not a control block of this version";
    }
    *ret_ring = (struct ring){
        .control = control,
        .members = (struct ring_member *)(control + 1),
        .entries = (struct ring_entry *)((uint8_t *)memory + entries_at(shape)),
        .descs = (uint8_t *)memory + descs_at(shape),
        .shape = *shape,
        .slot_mask = slots_of(shape->capacity) - 1,
        .words = (shape->buffers + 63) / 64,
        .client = client,
        .member = member,
    };
    return NULL;
}

struct ring ring_view(const struct ring *ring, uint32_t client) {
    return (struct ring){
        .control = ring->control,
        .members = ring->members,
        .entries = ring->entries,
        .descs = ring->descs,
        .shape = ring->shape,
        .slot_mask = ring->slot_mask,
        .words = ring->words,
        .client = client,
        .member = ring->member,
    };
}

void *ring_desc(const struct ring *ring, uint32_t buffer) {
    return ring->descs + (size_t)buffer * RING_DESC_NBYTES;
}

uint64_t ring_ref(const struct ring *ring, uint32_t buffer) {
    return __atomic_load_n((const uint64_t *)ring_desc(ring, buffer), __ATOMIC_RELAXED);
}

void ring_set_ref(const struct ring *ring, uint32_t buffer, uint64_t ref) {
    __atomic_store_n((uint64_t *)ring_desc(ring, buffer), ref, __ATOMIC_RELAXED);
}
