/*
 * handle_reference.c - REFER, FETCH, DONE: what messages of channels refer to
 */
#include <inttypes.h>

#include "attachment.h"
#include "call.h"
#include "handle.h"
#include "quota.h"
#include "ring_mask.h"

static int check_room(struct call *call, uint32_t count) {
    uint64_t references = call->server->channels.references;
    uint64_t max = call->server->storages.max;

    if (references > max || count > max - references) {
        return call_fail(
            call, STATUS_LIMIT,
            "messages of channels refer to %" PRIu64
            " storages and this is about %u more: the limit is --max-storages=%" PRIu64,
            references, count, max);
    }
    return quota_check(call, ACCOUNT_ATTACHMENTS, count);
}

/* The channel, if the client uses that buffer of it. */
static int find_used(struct call *call, uint64_t id, uint32_t slot, uint32_t buffer,
                     struct channel **ret_channel) {
    struct channel *channel = channels_find(&call->server->channels, id);

    if (!participant_find(&call->client->participants, channel, slot)) {
        return call_fail(call, STATUS_STALE, "this client has no handle %u of channel %" PRIu64,
                         slot, id);
    }
    if (buffer >= channel->ring.shape.buffers || !use_has(&channel->ring, slot, buffer)) {
        return call_fail(call, STATUS_STALE,
                         "handle %u of channel %" PRIu64 " does not use buffer %u", slot, id,
                         buffer);
    }
    *ret_channel = channel;
    return STATUS_OK;
}

static int find_held(struct call *call, int count, struct storage **ret_storages) {
    for (int i = 0; i < count; i++) {
        uint64_t id = id_at(call, i);
        struct storage *storage = storage_find(&call->server->storages, id);
        if (!storage || !holds_find(&call->client->holds, storage)) {
            return call_fail(call, STATUS_STALE, "this client does not hold storage %" PRIu64, id);
        }
        ret_storages[i] = storage;
    }
    return STATUS_OK;
}

int handle_refer(struct call *call, const struct wire_refer *request,
                 struct wire_refer_reply *reply) {
    struct storage *storages[WIRE_HOLDS_MAX];
    struct channel *channel;
    int count = count_ids(call);

    if (count < 1) {
        return call_broken(call, "REFER: the tail is no list of ids");
    }
    int r = check_room(call, (uint32_t)count);
    if (r != STATUS_OK && make_room(call)) {
        r = check_room(call, (uint32_t)count);
    }
    if (r == STATUS_OK) {
        r = find_used(call, request->channel, request->slot, request->buffer, &channel);
    }
    if (r == STATUS_OK) {
        r = find_held(call, count, storages);
    }
    if (r != STATUS_OK) {
        return r;
    }
    const struct attachment *attachment = attachment_create(
        channel, request->buffer, call->client->account, storages, (uint32_t)count);
    if (!attachment) {
        return call_no_books(call);
    }
    channel_touch(channel);
    reply->ref = attachment->ref;
    return STATUS_OK;
}

int handle_fetch(struct call *call, const struct wire_fetch *request,
                 struct wire_fetch_reply *reply) {
    struct channel *channel;
    int r = find_used(call, request->channel, request->slot, request->buffer, &channel);

    (void)reply;
    if (r != STATUS_OK) {
        return r;
    }
    const struct attachment *attachment = attachment_find(channel, request->buffer, request->ref);
    if (!attachment) {
        return call_fail(call, STATUS_STALE,
                         "buffer %u of channel %" PRIu64 " has no reference %" PRIu64,
                         request->buffer, channel->id, request->ref);
    }
    return grant_all(call, attachment->storages, attachment->count);
}

int handle_done(struct call *call, const struct wire_done *request) {
    struct channel *channel = channels_find(&call->server->channels, request->channel);

    if (channel) {
        channel_touch(channel);
    }
    return STATUS_OK;
}
