#include "standing.h"

#include <stdlib.h>

#include "hold.h"
#include "participant.h"
#include "ring_mask.h"
#include "step.h"

/* In channel::by_sender. Slots have 10 bits, and no daemon makes 2^54 storages. */
static uint64_t sender_key(uint32_t slot, const struct storage *storage) {
    return (uint64_t)slot << 54 | storage->id;
}

const struct standing *standing_of(const struct participant *participant,
                                   const struct storage *storage) {
    return table_find(&participant->channel->by_sender, sender_key(participant->slot, storage));
}

/* ----------------------------------------------------------------------------------------- make */

static bool enter(struct channel *channel, struct standing *standing) {
    uint64_t key = sender_key(standing->slot, standing->storage);

    if (table_set(&channel->standings, standing->ref, standing) < 0) {
        return false;
    }
    if (table_set(&channel->by_sender, key, standing) < 0) {
        table_remove(&channel->standings, standing->ref);
        return false;
    }
    list_append(&channel->held, &standing->link);
    return true;
}

static void join_hold(struct standing *standing, struct hold *hold) {
    standing->next = hold->standings;
    standing->at = &hold->standings;
    hold->standings = standing;
    if (standing->next) {
        standing->next->at = &standing->next;
    }
}

const struct standing *standing_create(const struct participant *participant,
                                       struct account *account, struct storage *storage) {
    struct channel *channel = participant->channel;
    struct channels *channels = channel->channels;
    struct standing *standing = malloc(sizeof *standing);

    if (!standing) {
        return NULL;
    }
    *standing = (struct standing){.channel = channel,
                                  .ref = ++channels->next_ref,
                                  .storage = storage,
                                  .account = account,
                                  .slot = participant->slot};
    if (!enter(channel, standing)) {
        free(standing);
        return NULL;
    }
    join_hold(standing, holds_find(participant->participants->holds, storage));
    storage_ref(channels->storages, storage);
    account_charge(account, ACCOUNT_ATTACHMENTS, 1);
    channels->references++;
    REACHED(STANDING_MADE);
    return standing;
}

struct standing *standing_find(const struct channel *channel, uint64_t ref) {
    return ref && ref <= channel->channels->next_ref ? table_find(&channel->standings, ref) : NULL;
}

/* ------------------------------------------------------------------------------------------ end */

/* Its participant may not send it any more. */
static void loosen(struct standing *standing) {
    struct channel *channel = standing->channel;

    table_remove(&channel->by_sender, sender_key(standing->slot, standing->storage));
    *standing->at = standing->next;
    if (standing->next) {
        standing->next->at = standing->at;
    }
    standing->at = NULL;
    list_remove(&standing->link);
    list_append(&channel->loose, &standing->link);
    channel_touch(channel);
}

void standings_let_go(struct hold *hold) {
    while (hold->standings) {
        loosen(hold->standings);
    }
}

void standings_left(const struct participant *participant) {
    list_for_each (link, &participant->channel->held) {
        struct standing *standing = container_of(link, struct standing, link);
        if (standing->slot == participant->slot) {
            loosen(standing);
        }
    }
}

static void drop(struct standing *standing) {
    struct channel *channel = standing->channel;
    struct channels *channels = channel->channels;

    table_remove(&channel->standings, standing->ref);
    list_remove(&standing->link);
    channels->references--;
    account_return(standing->account, ACCOUNT_ATTACHMENTS, 1);
    storage_unref(channels->storages, standing->storage);
    free(standing);
    REACHED(STANDING_DROPPED);
}

/* A buffer names it, if there is such a one. */
static void keep(struct channel *channel, uint64_t ref) {
    struct standing *standing = standing_find(channel, ref);

    if (standing && !standing->at) {
        list_remove(&standing->link);
        list_append(&channel->loose, &standing->link);
    }
}

void standings_sweep(struct channel *channel, const uint64_t *needed) {
    struct list unnamed;

    list_init(&unnamed);
    list_splice(&unnamed, &channel->loose);
    for (uint32_t b = 0; !list_is_empty(&unnamed) && b < channel->ring.shape.buffers; b++) {
        if (mask_has(needed, b)) {
            keep(channel, ring_ref(&channel->ring, b));
        }
    }
    list_for_each (link, &unnamed) {
        drop(container_of(link, struct standing, link));
    }
}

void standings_drop(struct channel *channel) {
    list_for_each (held, &channel->held) {
        loosen(container_of(held, struct standing, link));
    }
    list_for_each (loose, &channel->loose) {
        drop(container_of(loose, struct standing, link));
    }
    table_fini(&channel->standings);
    table_fini(&channel->by_sender);
}
