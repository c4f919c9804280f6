/*
 * handle_channels.c - CHANNELS
 */
#include <string.h>

#include "bytes.h"
#include "call.h"

/* What the control block says now. */
struct view {
    struct ring_report report;
    struct ring_holder holders[RING_MEMBERS_MAX]; /* those who are in no way busy are missing */
};

static void look(const struct channel *channel, struct view *ret_view) {
    struct ring ring = channel->ring;

    ring_report(&ring, ret_view->holders, RING_MEMBERS_MAX, &ret_view->report);
}

/* At `to`, one after the other; returns how many. */
static uint32_t add_participants(const struct channel *channel, const struct view *view, char *to) {
    uint32_t count = 0, next = 0;

    for (uint32_t slot = 0; count < channel->seated; slot++) {
        const struct participant *participant = channel->seats[slot];
        const struct ring_holder *holder = &view->holders[next];
        bool is_busy = next < view->report.nholders && holder->member == slot;
        if (participant) {
            struct wire_participant entry = {.client = participant->participants->client,
                                             .slot = slot,
                                             .left = participant->has_left,
                                             .holds = is_busy ? holder->holds : 0,
                                             .behind = is_busy ? holder->behind : 0};
            memcpy(to + count++ * sizeof entry, &entry, sizeof entry);
        }
        next += is_busy;
    }
    return count;
}

/* Returns whether there was room. */
static bool add_channel(struct call *call, const struct channel *channel) {
    const struct ring_shape *shape = &channel->ring.shape;
    size_t head = sizeof(struct wire_channel) + channel->name_nbytes;
    size_t padded = bytes_round_up(head, 8);
    char *to = call_add(call, padded + channel->seated * sizeof(struct wire_participant));
    struct view view;

    if (!to) {
        return false;
    }
    look(channel, &view);
    struct wire_channel entry = {.channel = channel->id,
                                 .buffer_nbytes = shape->buffer_nbytes,
                                 .messages = view.report.sent,
                                 .depth = view.report.depth,
                                 .closed = view.report.closed != 0,
                                 .flags = shape->flags,
                                 .capacity = shape->capacity,
                                 .buffers = shape->buffers,
                                 .participants = shape->members,
                                 .count = add_participants(channel, &view, to + padded),
                                 .name_nbytes = (uint32_t)channel->name_nbytes,
                                 .device = channel_device(channel)};
    memcpy(to, &entry, sizeof entry);
    memcpy(to + sizeof entry, channel->name, channel->name_nbytes);
    memset(to + head, 0, padded - head);
    return true;
}

int handle_channels(struct call *call, const struct wire_channels *request,
                    struct wire_channels_reply *reply) {
    struct channels *channels = &call->server->channels;

    channels_settle(channels);
    list_for_each (link, &channels->all) {
        const struct channel *channel = container_of(link, struct channel, link);
        if (channel->id <= request->after) {
            continue;
        }
        if (!add_channel(call, channel)) {
            reply->more = 1;
            break;
        }
        reply->count++;
    }
    return STATUS_OK;
}
