/*
 * standing.h - storages that a participant refers to in message after message
 *
 * A standing reference is asked for once and named by any number of messages. It stays as long as
 * its participant has not left and its client holds the storage; then as long as a buffer is in use
 * or needed whose description names it, in its first eight bytes. Who writes nonsense there can
 * have it dropped too early, as by clearing a bit. A channel owns them, at most as many as it has
 * buffers.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "channel.h"
#include "list.h"

struct participant;

struct standing {
    struct list link;        /* channel::standing */
    uint64_t ref;            /* never 0, never used twice */
    struct storage *storage; /* one reference of ours */
    struct account *account; /* is charged */
    uint32_t client, slot;   /* the participant's, which may have left */
};

/* The participant's reference to a storage, borrowed, or NULL. */
const struct standing *standing_of(const struct participant *participant,
                                   const struct storage *storage);

/* Makes it. There is none, the client holds the storage, and there is room. NULL: no memory. */
const struct standing *standing_create(const struct participant *participant,
                                       struct account *account, struct storage *storage);

/* The one with this ref, borrowed, or NULL. */
const struct standing *standing_find(const struct channel *channel, uint64_t ref);

/* Whether messages alone keep one. */
bool standings_are_loose(const struct channel *channel);

/* Drops those that messages alone could keep, and none in these buffers does. */
void standings_sweep(struct channel *channel, const uint64_t *needed);

/* Drops them all. */
void standings_drop(struct channel *channel);
