/*
 * channel_desc.h - what is in a message: the 256 bytes that go with its buffer
 *
 * Who fills the buffer writes them, who receives it copies them and believes nothing. Other
 * processes read them: their layout is part of WIRE_LAYOUT. The daemon reads the first eight.
 */
#pragma once

#include <stdint.h>

#include "desc.h"
#include "ring.h"

#define CHANNEL_NDIM_MAX 13 /* what fits; a tensor of more dimensions goes as a bundle of one */

struct channel_desc {
    uint64_t ref;       /* by which the daemon knows what is attached to the buffer; 0: nothing */
    uint64_t storage;   /* the first that is attached, if is_elsewhere */
    int is_elsewhere;   /* the bytes are in that storage, not in the buffer */
    int is_single;      /* a bundle of one that stands for its tensor */
    struct desc memory; /* a tensor, or the index of a bundle */
};

/* A message that is in its buffer. Leaves `memory` as it is: a kilobyte, to be described next. */
static inline void channel_desc_init(struct channel_desc *desc) {
    desc->ref = 0;
    desc->storage = 0;
    desc->is_elsewhere = 0;
    desc->is_single = 0;
}

void channel_desc_write(const struct ring *ring, uint32_t buffer, const struct channel_desc *desc);

/* NULL, or a text that says what is wrong. The description is not checked against any size. */
const char *channel_desc_read(const struct ring *ring, uint32_t buffer,
                              struct channel_desc *ret_desc);
