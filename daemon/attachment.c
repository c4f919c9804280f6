#include "attachment.h"

#include <stdlib.h>

#include "ring_mask.h"
#include "standing.h"
#include "step.h"

static void drop(struct channel *channel, uint32_t buffer) {
    struct channels *channels = channel->channels;
    struct attachment *attachment = channel->attachments[buffer];

    channel->attachments[buffer] = NULL;
    channel->attached--;
    channels->references -= attachment->count;
    account_return(attachment->account, ACCOUNT_ATTACHMENTS, attachment->count);
    for (uint32_t i = 0; i < attachment->count; i++) {
        storage_unref(channels->storages, attachment->storages[i]);
    }
    free(attachment);
    REACHED(ATTACHMENT_DROPPED);
}

struct attachment *attachment_create(struct channel *channel, uint32_t buffer,
                                     struct account *account, struct storage *const *storages,
                                     uint32_t count) {
    struct channels *channels = channel->channels;
    struct attachment *attachment =
        malloc(sizeof *attachment + count * sizeof attachment->storages[0]);

    if (!channel->attachments) {
        channel->attachments = calloc(channel->ring.shape.buffers, sizeof(struct attachment *));
    }
    if (!attachment || !channel->attachments) {
        free(attachment);
        return NULL;
    }
    *attachment =
        (struct attachment){.ref = ++channels->next_ref, .account = account, .count = count};
    for (uint32_t i = 0; i < count; i++) {
        attachment->storages[i] = storages[i];
        storage_ref(channels->storages, storages[i]);
    }
    account_charge(account, ACCOUNT_ATTACHMENTS, count);
    channels->references += count;
    if (channel->attachments[buffer]) {
        drop(channel, buffer);
    }
    channel->attachments[buffer] = attachment;
    channel->attached++;
    REACHED(ATTACHMENT_MADE);
    ring_set_ref(&channel->ring, buffer, attachment->ref);
    return attachment;
}

const struct attachment *attachment_find(const struct channel *channel, uint32_t buffer,
                                         uint64_t ref) {
    const struct attachment *attachment =
        channel->attachments ? channel->attachments[buffer] : NULL;

    return attachment && attachment->ref == ref ? attachment : NULL;
}

static void drop_unless(struct channel *channel, const uint64_t *needed) {
    for (uint32_t buffer = 0; channel->attached > 0 && buffer < channel->ring.shape.buffers;
         buffer++) {
        const struct attachment *attachment = channel->attachments[buffer];
        if (attachment &&
            !(mask_has(needed, buffer) && ring_ref(&channel->ring, buffer) == attachment->ref)) {
            drop(channel, buffer);
        }
    }
}

/* Whether something goes when a buffer is released. */
static bool waits_for_release(const struct channel *channel) {
    return channel->attached > 0 || !list_is_empty(&channel->loose);
}

void attachments_sweep(struct channel *channel) {
    uint64_t needed[RING_MASK_WORDS];
    bool waits = waits_for_release(channel);

    ring_watch(&channel->ring, waits); /* before the look: what is released later is told */
    if (waits) {
        ring_sweep(&channel->ring, needed);
        drop_unless(channel, needed);
        standings_sweep(channel, needed);
        ring_watch(&channel->ring, waits_for_release(channel));
    }
}

void attachments_drop_sent(struct channel *channel) {
    uint64_t used[RING_MASK_WORDS] = {0};

    mask_add_uses(&channel->ring, used);
    drop_unless(channel, used);
    standings_sweep(channel, used);
}

void attachments_drop(struct channel *channel) {
    static const uint64_t nothing[RING_MASK_WORDS];

    drop_unless(channel, nothing);
    standings_drop(channel);
    free(channel->attachments);
    channel->attachments = NULL;
}
