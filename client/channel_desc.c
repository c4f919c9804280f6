#include "channel_desc.h"

#include <string.h>

enum { ELSEWHERE = 1, SINGLE = 2 };

struct shared_desc {
    uint64_t ref; /* where the daemon looks for it */
    uint32_t flags;
    uint32_t nbytes; /* of the encoded description */
    uint64_t storage;
    char encoded[RING_DESC_NBYTES - 24];
};

_Static_assert(sizeof(struct shared_desc) == RING_DESC_NBYTES, "other processes read it");
_Static_assert(24 + 16 * CHANNEL_NDIM_MAX <= RING_DESC_NBYTES - 24, "so many dimensions fit");

void channel_desc_write(const struct ring *ring, uint32_t buffer, const struct channel_desc *desc) {
    struct shared_desc *shared = ring_desc(ring, buffer);

    ring_set_ref(ring, buffer, desc->ref);
    shared->storage = desc->storage;
    shared->flags =
        (desc->is_elsewhere ? (uint32_t)ELSEWHERE : 0u) | (desc->is_single ? (uint32_t)SINGLE : 0u);
    shared->nbytes = (uint32_t)desc_encode(&desc->memory, shared->encoded);
}

const char *channel_desc_read(const struct ring *ring, uint32_t buffer,
                              struct channel_desc *ret_desc) {
    struct shared_desc copy;

    memcpy(&copy, ring_desc(ring, buffer), sizeof copy);
    if (copy.flags & ~(uint32_t)(ELSEWHERE | SINGLE) || copy.nbytes > sizeof copy.encoded) {
        return "it is none of this version";
    }
    ret_desc->ref = copy.ref;
    ret_desc->storage = copy.storage;
    ret_desc->is_elsewhere = (copy.flags & ELSEWHERE) != 0;
    ret_desc->is_single = (copy.flags & SINGLE) != 0;
    if (ret_desc->is_elsewhere && !copy.ref) {
        return "it refers to nothing";
    }
    return desc_decode(copy.encoded, copy.nbytes, &ret_desc->memory);
}
