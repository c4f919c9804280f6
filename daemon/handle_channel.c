/*
 * handle_channel.c - JOIN, BUFFERS, LEAVE, RETURN
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "call.h"
#include "handle.h"
#include "name.h"
#include "quota.h"

_Static_assert((int)JOIN_TOPIC == (int)RING_TOPIC, "the same flags");
_Static_assert((int)JOIN_DROP_OLDEST == (int)RING_DROP_OLDEST, "the same flags");

enum { CAPACITY = 8, SPARE_BUFFERS = 8, PARTICIPANTS = 128 }; /* where a JOIN does not say */

/* Of one buffer, so that the sum is a number. */
#define BUFFER_NBYTES_MAX ((uint64_t)1 << 52)

static const char *kind_of(uint32_t flags) {
    return flags & RING_TOPIC ? "topic" : "queue";
}

static const char *overflow_of(uint32_t flags) {
    return flags & RING_DROP_OLDEST ? "drop_oldest" : "block";
}

int channel_is_named(struct call *call, int status, const char *name, size_t nbytes) {
    const struct channel *channel = channels_find_name(&call->server->channels, name, nbytes);

    if (!channel) {
        return STATUS_OK;
    }
    const char *kind = kind_of(channel->ring.shape.flags);
    return call_fail(call, status, "\"%.*s\" is a %s: cx.%s(\"%.*s\") opens it", (int)nbytes, name,
                     kind, kind, (int)nbytes, name);
}

/* ------------------------------------------------------------------------------------ shape */

static struct ring_shape shape_of(const struct wire_join *request) {
    uint32_t capacity = request->capacity ? request->capacity : CAPACITY;

    return (struct ring_shape){
        .flags = request->flags & (JOIN_TOPIC | JOIN_DROP_OLDEST),
        .capacity = capacity,
        .buffers = request->buffers ? request->buffers : capacity + SPARE_BUFFERS,
        .members = request->participants ? request->participants : PARTICIPANTS,
    };
}

/* Whether the channel is what was asked for. */
static int check_same(struct call *call, const struct channel *channel,
                      const struct wire_join *request) {
    const struct ring_shape *shape = &channel->ring.shape;
    const struct {
        const char *what;
        uint64_t is, asked;
    } settings[] = {
        {"capacity", shape->capacity, request->capacity},
        {"buffers", shape->buffers, request->buffers},
        {"participants", shape->members, request->participants},
        {"nbytes", shape->buffer_nbytes, channel_buffer_nbytes(request->buffer_nbytes)},
    };
    int length = (int)channel->name_nbytes;

    if ((shape->flags ^ request->flags) & RING_TOPIC) {
        return call_fail(call, STATUS_INVALID, "\"%.*s\" is a %s, and a %s was asked for", length,
                         channel->name, kind_of(shape->flags), kind_of(request->flags));
    }
    if ((shape->flags ^ request->flags) & RING_DROP_OLDEST) {
        return call_fail(call, STATUS_INVALID,
                         "\"%.*s\" has overflow=%s, and overflow=%s was asked for", length,
                         channel->name, overflow_of(shape->flags), overflow_of(request->flags));
    }
    if (request->device && channel->storage && request->device != channel_device(channel)) {
        return call_fail(call, STATUS_INVALID,
                         "\"%.*s\" has its buffers on another device than was asked for", length,
                         channel->name);
    }
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        if (settings[i].asked && settings[i].is && settings[i].asked != settings[i].is) {
            return call_fail(call, STATUS_INVALID,
                             "\"%.*s\" has %s=%" PRIu64 ", and %s=%" PRIu64 " was asked for",
                             length, channel->name, settings[i].what, settings[i].is,
                             settings[i].what, settings[i].asked);
        }
    }
    return STATUS_OK;
}

/* ------------------------------------------------------------------------------------- JOIN */

static int check_nbytes(struct call *call, uint64_t nbytes) {
    return nbytes <= BUFFER_NBYTES_MAX
               ? STATUS_OK
               : call_fail(call, STATUS_INVALID,
                           "buffers of %" PRIu64 " bytes are more than any machine has", nbytes);
}

static int find_named(struct call *call, const struct wire_join *request,
                      struct channel **ret_channel) {
    const char *name = (const char *)call->tail;
    size_t nbytes = call->tail_nbytes;
    const char *wrong = name_check(name, nbytes);

    if (wrong) {
        return call_fail(call, STATUS_INVALID, "%s", wrong);
    }
    *ret_channel = channels_find_name(&call->server->channels, name, nbytes);
    if (*ret_channel) {
        return check_same(call, *ret_channel, request);
    }
    if (catalog_find(&call->server->catalog, name, nbytes, server_now(call->server))) {
        return call_fail(call, STATUS_EXISTS,
                         "\"%.*s\" is the name of a tensor: take another one, or delete that",
                         (int)nbytes, name);
    }
    if (!(request->flags & JOIN_CREATE)) {
        return call_fail(call, STATUS_NOT_FOUND, "no %s is named \"%.*s\"", kind_of(request->flags),
                         (int)nbytes, name);
    }
    struct ring_shape shape = shape_of(request);
    wrong = ring_shape_check(&shape);
    return wrong ? call_fail(call, STATUS_INVALID, "%s", wrong) : STATUS_OK;
}

/* STATUS_OK: the channel, or NULL when it is to be made, or what the handler returns. */
static int find(struct call *call, const struct wire_join *request, struct channel **ret_channel) {
    if (request->flags & ~(uint32_t)(JOIN_TOPIC | JOIN_DROP_OLDEST | JOIN_CREATE)) {
        return call_broken(call, "unknown flags");
    }
    if (call->client->id > INT32_MAX) {
        return call_fail(call, STATUS_LIMIT,
                         "this daemon has had too many clients for channels: start it anew");
    }
    int r = check_nbytes(call, request->buffer_nbytes);
    if (r != STATUS_OK) {
        return r;
    }
    if (!request->channel) {
        return find_named(call, request, ret_channel);
    }
    if (call->tail_nbytes > 0) {
        return call_broken(call, "JOIN: a channel and a name");
    }
    channels_settle(&call->server->channels); /* one that has ended is not to be joined */
    *ret_channel = channels_find(&call->server->channels, request->channel);
    return *ret_channel && !channel_is_over(*ret_channel)
               ? STATUS_OK
               : call_fail(call, STATUS_NOT_FOUND,
                           "channel %" PRIu64 " is gone: open it anew, by its name",
                           request->channel);
}

/* Makes the storage of a channel's buffers; the reference is the caller's. Whoever participates in
 * the channel still does afterwards. */
static int new_buffers(struct call *call, const struct ring_shape *shape, unsigned device,
                       uint64_t nbytes, struct storage **ret_storage) {
    return new_storage(call, device, shape->buffers * channel_buffer_nbytes(nbytes), ret_storage);
}

static int create(struct call *call, const struct wire_join *request,
                  struct channel **ret_channel) {
    struct ring_shape shape = shape_of(request);
    struct channels *channels = &call->server->channels;
    int r = quota_check(call, ACCOUNT_CHANNELS, 1);

    if (r != STATUS_OK) {
        return r;
    }
    r = channel_create(channels, call->client->account, &shape, (const char *)call->tail,
                       call->tail_nbytes, ret_channel);
    if (r == -EDQUOT) {
        return call_fail(call, STATUS_LIMIT,
                         "there are %" PRIu64 " channels already: the limit is --max-channels",
                         channels->max);
    }
    if (r < 0) {
        return call_fail(
            call, STATUS_SYSTEM,
            "no control block for a channel can be made: %s (it takes a descriptor and "
            "a mapping of the daemon: RLIMIT_NOFILE, sysctl vm.max_map_count)",
            strerror(-r));
    }
    return STATUS_OK;
}

static int take_seat(struct call *call, struct channel *channel,
                     struct participant **ret_participant) {
    const struct client *client = call->client;
    int r = participant_join(&call->client->participants, channel, ret_participant);

    if (r == -EDQUOT) {
        return call_fail(call, STATUS_LIMIT,
                         "this client (pid %d) has %" PRIu64
                         " handles of channels already: the limit is --client-channels",
                         client->pid, client->participants.count);
    }
    if (r == -EBUSY) {
        return call_fail(call, STATUS_LIMIT,
                         "\"%.*s\" has %u participants already: close some, or make it with a "
                         "larger participants=",
                         (int)channel->name_nbytes, channel->name, channel->ring.shape.members);
    }
    return r < 0 ? call_no_books(call) : STATUS_OK;
}

/* Tells where the buffers are, if they are anywhere. */
static int grant_buffers(struct call *call, const struct channel *channel,
                         struct wire_grant *ret_grant, uint64_t *ret_buffer_nbytes) {
    *ret_buffer_nbytes = channel->ring.shape.buffer_nbytes;
    return channel->storage ? grant(call, channel->storage, ret_grant) : STATUS_OK;
}

static int join(struct call *call, struct channel *channel, struct wire_join_reply *reply) {
    const struct ring *ring = &channel->ring;
    struct participant *participant;
    int r = take_seat(call, channel, &participant);

    if (r != STATUS_OK) {
        return r;
    }
    r = grant_buffers(call, channel, &reply->grant, &reply->buffer_nbytes);
    if (r != STATUS_OK) {
        participant_leave(participant);
        return r;
    }
    reply->channel = channel->id;
    reply->flags = ring->shape.flags;
    reply->capacity = ring->shape.capacity;
    reply->buffers = ring->shape.buffers;
    reply->slots = ring->slot_mask + 1;
    reply->participants = ring->shape.members;
    reply->slot = participant->slot;
    call->reply_fd = channel->fd;
    return STATUS_OK;
}

int handle_join(struct call *call, const struct wire_join *request, struct wire_join_reply *reply) {
    struct channel *channel = NULL;
    struct storage *storage = NULL;
    int r = find(call, request, &channel);

    if (r == STATUS_OK && request->buffer_nbytes && !(channel && channel->storage)) {
        struct ring_shape shape = channel ? channel->ring.shape : shape_of(request);
        r = new_buffers(call, &shape, request->device, request->buffer_nbytes, &storage);
    }
    if (r == STATUS_OK && !client_may_send_descriptor(call->client)) {
        r = call_fail(call, STATUS_LIMIT,
                      "too many replies with descriptors are unread: read them, then repeat the "
                      "call");
    }
    if (r == STATUS_OK && !channel) {
        r = create(call, request, &channel);
    }
    if (r == STATUS_OK && storage) {
        channel_size(channel, storage, channel_buffer_nbytes(request->buffer_nbytes));
    }
    if (r == STATUS_OK) {
        r = join(call, channel, reply);
    }
    if (storage) {
        storage_unref(&call->server->storages, storage);
    }
    return r;
}

/* --------------------------------------------------------------------------------- the rest */

int handle_buffers(struct call *call, const struct wire_buffers *request,
                   struct wire_buffers_reply *reply) {
    struct channel *channel = channels_find(&call->server->channels, request->channel);

    if (!channel || !participants_are_in(&call->client->participants, channel)) {
        return call_fail(call, STATUS_STALE, "this client has no handle of channel %" PRIu64,
                         request->channel);
    }
    if (!channel->storage && request->nbytes) {
        struct storage *storage;
        int r = check_nbytes(call, request->nbytes);
        if (r == STATUS_OK) {
            r = new_buffers(call, &channel->ring.shape, request->device, request->nbytes, &storage);
        }
        if (r != STATUS_OK) {
            return r;
        }
        channel_size(channel, storage, channel_buffer_nbytes(request->nbytes));
        storage_unref(&call->server->storages, storage);
    }
    return grant_buffers(call, channel, &reply->grant, &reply->buffer_nbytes);
}

/* The client's participant, or NULL. */
static struct participant *seat(const struct call *call, uint64_t channel, uint32_t slot) {
    return participant_find(&call->client->participants,
                            channels_find(&call->server->channels, channel), slot);
}

int handle_leave(struct call *call, const struct wire_leave *request) {
    struct participant *participant = seat(call, request->channel, request->slot);

    if (!participant || participant->has_left) {
        return call_broken(call, "LEAVE: not a handle of this client");
    }
    participant_leave(participant);
    return STATUS_OK;
}

int handle_return(struct call *call, const struct wire_return *request) {
    struct participant *participant = seat(call, request->channel, request->slot);

    if (participant) {
        participant_return(participant, request->buffer);
    }
    return STATUS_OK;
}
