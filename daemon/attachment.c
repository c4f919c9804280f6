#include "attachment.h"

#include <stdlib.h>

#include "ring_mask.h"

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
        if (channel->attachments[buffer] && !mask_has(needed, buffer)) {
            drop(channel, buffer);
        }
    }
}

void attachments_sweep(struct channel *channel) {
    uint64_t needed[RING_MASK_WORDS];

    if (channel->attached > 0) {
        ring_sweep(&channel->ring, needed);
        drop_unless(channel, needed);
    }
}

void attachments_drop(struct channel *channel) {
    static const uint64_t nothing[RING_MASK_WORDS];

    drop_unless(channel, nothing);
    free(channel->attachments);
    channel->attachments = NULL;
}
