/*
 * standing.h - storages that a participant refers to in message after message
 *
 * A standing reference is asked for once and named by any number of messages. It is *held* as long
 * as its participant has not left and its client holds the storage; then it is *loose*, and stays
 * as long as a buffer is in use or needed whose description names it, in its first eight bytes. Who
 * writes nonsense there can have it dropped too early, as by clearing a bit. A channel owns them,
 * at most as many as it has buffers.
 */
#pragma once

#include <stdint.h>

#include "channel.h"
#include "list.h"

struct hold;
struct participant;

struct standing {
    struct list link;        /* channel::held or loose */
    struct standing *next;   /* the next older one of the same hold */
    struct standing **at;    /* what points to us there; NULL: it is loose */
    struct channel *channel; /* borrowed: owns us */
    uint64_t ref;            /* never 0, never used twice */
    struct storage *storage; /* one reference of ours */
    struct account *account; /* is charged */
    uint32_t slot;           /* the participant's */
};

/* The participant's reference to a storage that its client holds, borrowed, or NULL. */
const struct standing *standing_of(const struct participant *participant,
                                   const struct storage *storage);

/* Makes it. There is none, the client holds the storage, the participant has not left, and there is
 * room. NULL: no memory. */
const struct standing *standing_create(const struct participant *participant,
                                       struct account *account, struct storage *storage);

/* The one with this ref, whatever a peer takes for one; borrowed, or NULL. */
struct standing *standing_find(const struct channel *channel, uint64_t ref);

/* The client lets go of the storage, or the participant has left: theirs are loose. */
void standings_let_go(struct hold *hold);
void standings_left(const struct participant *participant);

/* Drops those loose ones that none of these buffers names. */
void standings_sweep(struct channel *channel, const uint64_t *needed);

/* Drops them all. */
void standings_drop(struct channel *channel);
