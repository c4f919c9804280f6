#include "standing.h"

#include <stdlib.h>

#include "hold.h"
#include "participant.h"
#include "ring_mask.h"
#include "step.h"

const struct standing *standing_of(const struct participant *participant,
                                   const struct storage *storage) {
    list_for_each (link, &participant->channel->standing) {
        const struct standing *standing = container_of(link, struct standing, link);
        if (standing->storage == storage && standing->slot == participant->slot &&
            standing->client == participant->participants->client) {
            return standing;
        }
    }
    return NULL;
}

const struct standing *standing_create(const struct participant *participant,
                                       struct account *account, struct storage *storage) {
    struct channel *channel = participant->channel;
    struct channels *channels = channel->channels;
    struct standing *standing = malloc(sizeof *standing);

    if (!standing) {
        return NULL;
    }
    *standing = (struct standing){.ref = ++channels->next_ref,
                                  .storage = storage,
                                  .account = account,
                                  .client = participant->participants->client,
                                  .slot = participant->slot};
    storage_ref(channels->storages, storage);
    storage->standing++;
    account_charge(account, ACCOUNT_ATTACHMENTS, 1);
    channels->references++;
    list_append(&channel->standing, &standing->link);
    channel->standing_count++;
    REACHED(STANDING_MADE);
    return standing;
}

static void drop(struct channel *channel, struct standing *standing) {
    struct channels *channels = channel->channels;

    list_remove(&standing->link);
    channel->standing_count--;
    channels->references--;
    account_return(standing->account, ACCOUNT_ATTACHMENTS, 1);
    standing->storage->standing--;
    storage_unref(channels->storages, standing->storage);
    free(standing);
    REACHED(STANDING_DROPPED);
}

const struct standing *standing_find(const struct channel *channel, uint64_t ref) {
    list_for_each (link, &channel->standing) {
        const struct standing *standing = container_of(link, struct standing, link);
        if (standing->ref == ref) {
            return standing;
        }
    }
    return NULL;
}

/* Its participant may still send it. */
static bool is_held(const struct channel *channel, const struct standing *standing) {
    const struct participant *participant = channel->seats[standing->slot];

    return participant && !participant->has_left &&
           participant->participants->client == standing->client &&
           holds_find(participant->participants->holds, standing->storage);
}

bool standings_are_loose(const struct channel *channel) {
    list_for_each (link, &channel->standing) {
        if (!is_held(channel, container_of(link, struct standing, link))) {
            return true;
        }
    }
    return false;
}

static bool is_named(const struct channel *channel, uint64_t ref, const uint64_t *needed) {
    for (uint32_t buffer = 0; buffer < channel->ring.shape.buffers; buffer++) {
        if (mask_has(needed, buffer) && ring_ref(&channel->ring, buffer) == ref) {
            return true;
        }
    }
    return false;
}

void standings_sweep(struct channel *channel, const uint64_t *needed) {
    list_for_each (link, &channel->standing) {
        struct standing *standing = container_of(link, struct standing, link);
        if (!is_held(channel, standing) && !is_named(channel, standing->ref, needed)) {
            drop(channel, standing);
        }
    }
}

void standings_drop(struct channel *channel) {
    list_for_each (link, &channel->standing) {
        drop(channel, container_of(link, struct standing, link));
    }
}
