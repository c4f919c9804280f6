/*
 * attachment.h - storages that a channel's message refers to
 *
 * They are attached to the buffer that the message is in, and stay while the buffer is in use or
 * needed and its description names them; then a sweep drops them. A channel owns its attachments,
 * at most one for each buffer. Who attaches is charged for each reference.
 */
#pragma once

#include <stdint.h>

#include "channel.h"

struct attachment {
    uint64_t ref;            /* never 0, never used twice */
    struct account *account; /* is charged */
    uint32_t count;
    struct storage *storages[]; /* one reference to each */
};

/* Attaches `count` storages, which are borrowed, to a buffer in place of what is there. NULL: no
 * memory. */
struct attachment *attachment_create(struct channel *channel, uint32_t buffer,
                                     struct account *account, struct storage *const *storages,
                                     uint32_t count);

/* What is attached to a buffer with this ref: borrowed, or NULL. */
const struct attachment *attachment_find(const struct channel *channel, uint32_t buffer,
                                         uint64_t ref);

/* Drops what no buffer names that is used or that a message needs. */
void attachments_sweep(struct channel *channel);

/* Drops what only messages need: nobody can receive them any more. */
void attachments_drop_sent(struct channel *channel);

/* Drops them all. */
void attachments_drop(struct channel *channel);
