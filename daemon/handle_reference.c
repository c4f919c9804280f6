/*
 * handle_reference.c - REFER, FETCH, DONE: what messages of channels refer to
 */
#include <inttypes.h>

#include "attachment.h"
#include "call.h"
#include "handle.h"
#include "quota.h"
#include "ring_mask.h"
#include "standing.h"

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

/* The client's handle. */
static int find_handle(struct call *call, uint64_t channel, uint32_t slot,
                       struct participant **ret_participant) {
    *ret_participant = participant_find(&call->client->participants,
                                        channels_find(&call->server->channels, channel), slot);
    return *ret_participant
               ? STATUS_OK
               : call_fail(call, STATUS_STALE, "this client has no handle %u of channel %" PRIu64,
                           slot, channel);
}

/* The channel, if the client uses that buffer of it. */
static int find_used(struct call *call, uint64_t id, uint32_t slot, uint32_t buffer,
                     struct channel **ret_channel) {
    struct participant *participant;
    int r = find_handle(call, id, slot, &participant);

    if (r != STATUS_OK) {
        return r;
    }
    struct channel *channel = participant->channel;
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

static bool is_full(const struct channel *channel) {
    return channel->standings.count >= channel->ring.shape.buffers;
}

/* For all messages that this handle sends. One that has left may be gone once there is room. */
static int refer_standing(struct call *call, const struct wire_refer *request,
                          struct wire_refer_reply *reply) {
    struct participant *participant;
    struct storage *storage = NULL;
    int r = find_handle(call, request->channel, request->slot, &participant);

    if (r == STATUS_OK && participant->has_left) {
        r = call_fail(call, STATUS_STALE, "handle %u of channel %" PRIu64 " has left",
                      request->slot, request->channel);
    }
    if (r == STATUS_OK) {
        r = find_held(call, 1, &storage);
    }
    if (r != STATUS_OK) {
        return r;
    }
    const struct channel *channel = participant->channel;
    const struct standing *standing = standing_of(participant, storage);
    if (!standing && is_full(channel)) {
        channels_settle(&call->server->channels); /* what was let go of just now */
    }
    if (!standing && is_full(channel)) {
        return call_fail(call, STATUS_LIMIT, "channel %" PRIu64 " has %zu standing references",
                         channel->id, channel->standings.count);
    }
    r = standing ? STATUS_OK : check_room(call, 1);
    if (r == STATUS_OK && !standing) {
        standing = standing_create(participant, call->client->account, storage);
    }
    if (r == STATUS_OK && !standing) {
        return call_no_books(call);
    }
    if (r == STATUS_OK) {
        reply->ref = standing->ref;
    }
    return r;
}

int handle_refer(struct call *call, const struct wire_refer *request,
                 struct wire_refer_reply *reply) {
    struct storage *storages[WIRE_HOLDS_MAX];
    struct channel *channel = NULL;
    int count = count_ids(call);

    if (count < 1 || (count > 1 && request->buffer == WIRE_NO_BUFFER)) {
        return call_broken(call, "REFER: the tail is no list of ids");
    }
    if (request->buffer == WIRE_NO_BUFFER) {
        return refer_standing(call, request, reply);
    }
    int r = check_room(call, (uint32_t)count);
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
    struct channel *channel = NULL;
    int r = find_used(call, request->channel, request->slot, request->buffer, &channel);

    (void)reply;
    if (r != STATUS_OK) {
        return r;
    }
    const struct attachment *attachment = attachment_find(channel, request->buffer, request->ref);
    const struct standing *standing = standing_find(channel, request->ref);
    if (standing) {
        return grant_all(call, &standing->storage, 1);
    }
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
