/*
 * handle_channels.c - CHANNELS
 */
#include <string.h>

#include "call.h"

/* At `to`, one after the other; returns how many. */
static uint32_t add_participants(const struct channel *channel, char *to) {
    struct ring_holder holders[RING_MEMBERS_MAX];
    struct ring_report report;
    struct ring view = channel->ring;
    uint32_t count = 0, next = 0;

    ring_report(&view, holders, RING_MEMBERS_MAX, &report);
    for (uint32_t slot = 0; slot < view.shape.members; slot++) {
        const struct participant *participant = channel->seats[slot];
        bool is_busy = next < report.nholders && holders[next].member == slot;
        if (participant) {
            struct wire_participant entry = {.client = participant->participants->client,
                                             .slot = slot,
                                             .left = participant->has_left,
                                             .holds = is_busy ? holders[next].holds : 0,
                                             .behind = is_busy ? holders[next].behind : 0};
            memcpy(to + count++ * sizeof entry, &entry, sizeof entry);
        }
        next += is_busy;
    }
    return count;
}

/* Adds one channel at `used` of the page. Returns its size, 0 when it does not fit. */
static size_t add_channel(struct server *server, size_t used, const struct channel *channel) {
    const struct ring *ring = &channel->ring;
    struct ring view = *ring;
    struct ring_report report;
    size_t head = sizeof(struct wire_channel) + channel->name_nbytes;
    size_t padded = (head + 7) / 8 * 8;
    size_t nbytes = padded + channel->seated * sizeof(struct wire_participant);
    char *to = server->page + used;

    if (used + nbytes > sizeof server->page) {
        return 0;
    }
    ring_report(&view, NULL, 0, &report);
    struct wire_channel entry = {.channel = channel->id,
                                 .buffer_nbytes = ring->shape.buffer_nbytes,
                                 .messages = report.sent,
                                 .depth = report.depth,
                                 .closed = report.closed != 0,
                                 .flags = ring->shape.flags,
                                 .capacity = ring->shape.capacity,
                                 .buffers = ring->shape.buffers,
                                 .participants = ring->shape.members,
                                 .count = add_participants(channel, to + padded),
                                 .name_nbytes = (uint32_t)channel->name_nbytes};
    memcpy(to, &entry, sizeof entry);
    memcpy(to + sizeof entry, channel->name, channel->name_nbytes);
    memset(to + head, 0, padded - head);
    return nbytes;
}

int handle_channels(struct call *call, const struct wire_channels *request,
                    struct wire_channels_reply *reply) {
    struct server *server = call->server;
    size_t used = 0;

    channels_settle(&server->channels);
    list_for_each (link, &server->channels.all) {
        const struct channel *channel = container_of(link, struct channel, link);
        if (channel->id <= request->after) {
            continue;
        }
        size_t added = add_channel(server, used, channel);
        if (added == 0) {
            reply->more = 1;
            break;
        }
        used += added;
        reply->count++;
    }
    call->reply_tail = server->page;
    call->reply_tail_nbytes = used;
    return STATUS_OK;
}
