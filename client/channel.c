#include "channel.h"

#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "clock.h"
#include "device_list.h"
#include "error.h"
#include "name.h"
#include "ring_cursor.h"
#include "step.h"
#include "storage.h"

_Static_assert((int)TCX_CHANNEL_TOPIC == (int)JOIN_TOPIC, "the same flags");
_Static_assert((int)TCX_CHANNEL_DROP_OLDEST == (int)JOIN_DROP_OLDEST, "the same flags");

const char *channel_kind(const struct tcx_channel *channel) {
    const struct seat *seat = atomic_load(&channel->seat);

    return channel->is_reader                    ? "subscription to topic"
           : seat->ring.shape.flags & RING_TOPIC ? "topic"
                                                 : "queue";
}

/* --------------------------------------------------------------------------------- open, close */

/* Takes the seat, also on failure. */
static int create(struct tcx_client *client, const char *name, struct seat *seat,
                  struct tcx_channel **ret_channel) {
    size_t length = strlen(name);
    struct tcx_channel *channel = calloc(1, sizeof *channel + length + 1);

    if (!channel) {
        seat_close(seat);
        seat_unref(seat);
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    channel->client = client;
    atomic_init(&channel->seat, seat);
    memcpy(channel->name, name, length);
    REACHED(CHANNEL_OPENED);
    *ret_channel = channel;
    return STATUS_OK;
}

/* Where the buffers of a channel with size are to be. */
static int set_device(struct session *session, const struct device *device,
                      struct wire_join *request) {
    uint16_t index = 0;
    int r = request->buffer_nbytes ? device_index(session, device, &index) : STATUS_OK;

    request->device = index;
    return r;
}

/* Of a channel that was there before. */
static int check_device(const struct tcx_channel *channel) {
    const struct storage *storage = seat_storage(atomic_load(&channel->seat));
    char is[DEVICE_TEXT_SIZE];
    char asked[DEVICE_TEXT_SIZE];

    if (!storage || !channel->has_device || storage->device == channel->device) {
        return STATUS_OK;
    }
    return error(STATUS_INVALID, "\"%s\" has device=%s, and device=%s was asked for", channel->name,
                 device_text(device_name(storage->device), is),
                 device_text(device_name(channel->device), asked));
}

static struct wire_join request_of(const tcx_channel_options_t *options) {
    return (struct wire_join){
        .flags = options->flags | JOIN_CREATE,
        .capacity = options->capacity,
        .buffers = options->buffers,
        .participants = options->participants,
        .buffer_nbytes = options->buffer_nbytes,
    };
}

int tcx_channel_open(tcx_client_t *client, const char *name, const tcx_channel_options_t *options,
                     tcx_channel_t **ret_channel) {
    static const tcx_channel_options_t none;
    const char *wrong = name ? name_check(name, strlen(name)) : "a channel needs a name";
    tcx_channel_t *channel = NULL;
    struct session *session;
    struct seat *seat;

    options = options ? options : &none;
    if (wrong) {
        return error(STATUS_INVALID, "%s", wrong);
    }
    if (options->flags & ~(unsigned)(TCX_CHANNEL_TOPIC | TCX_CHANNEL_DROP_OLDEST)) {
        return error(STATUS_INVALID, "unknown channel flags 0x%x", options->flags);
    }
    struct wire_join request = request_of(options);
    struct device *device;
    int r = device_find(options->device, &device);
    r = r == STATUS_OK ? client_session(client, &session) : r;
    if (r != STATUS_OK) {
        return r;
    }
    r = set_device(session, device, &request);
    r = r == STATUS_OK ? seat_join(session, &request, name, &seat) : r;
    session_unref(session);
    r = r == STATUS_OK ? create(client, name, seat, &channel) : r;
    if (r != STATUS_OK) {
        return r;
    }
    channel->has_device = options->device.type != 0;
    channel->device = device;
    r = check_device(channel);
    if (r != STATUS_OK) {
        tcx_channel_close(channel);
        return r;
    }
    *ret_channel = channel;
    return STATUS_OK;
}

void tcx_channel_leave(tcx_channel_t *channel) {
    seat_close(atomic_load(&channel->seat));
}

void tcx_channel_close(tcx_channel_t *channel) {
    if (channel) {
        tcx_channel_leave(channel);
        seat_unref(atomic_load(&channel->seat));
        free(channel);
    }
}

/* ---------------------------------------------------------------------------------------- calls */

static int error_closed(const struct tcx_channel *channel) {
    return error(STATUS_CLOSED, "this handle of %s \"%s\" is closed", channel_kind(channel),
                 channel->name);
}

/* In the child of a fork: a seat of our own in place of the parent's. */
static int join_anew(struct tcx_channel *channel, struct seat *inherited) {
    struct wire_join request = {.channel = inherited->channel};
    struct session *session;
    struct seat *seat;

    if (channel->is_reader) {
        return error(STATUS_CLOSED,
                     "the subscription to topic \"%s\" is the parent's, from before fork(): "
                     "subscribe in the child",
                     channel->name);
    }
    int r = client_session_running(channel->client, &session);
    if (r != STATUS_OK) {
        return r;
    }
    r = session->boot_id != inherited->session->boot_id
            ? error(STATUS_LOST, "the daemon that had channel \"%s\" has ended", channel->name)
            : seat_join(session, &request, "", &seat);
    session_unref(session);
    if (r != STATUS_OK) {
        return r;
    }
    seat->before = inherited; /* other threads may just look at it: kept as long as we are */
    if (atomic_compare_exchange_strong(&channel->seat, &inherited, seat)) {
        REACHED(CHANNEL_REJOINED);
        seat_retire(seat->before);
    } else { /* another thread was faster */
        seat->before = NULL;
        seat_close(seat);
        seat_unref(seat);
    }
    return STATUS_OK;
}

/* The seat to use. */
static int find_seat(struct tcx_channel *channel, double timeout, struct seat **ret_seat) {
    struct seat *seat;

    while (atomic_load_explicit(&(seat = atomic_load(&channel->seat))->session->is_dead,
                                memory_order_relaxed)) {
        if (timeout == TCX_AT_ONCE) {
            return STATUS_TIMEOUT;
        }
        if (seat_is_closed(seat)) {
            return error_closed(channel);
        }
        int r = seat->session->is_parents ? join_anew(channel, seat)
                                          : session_error_lost(seat->session);
        if (r != STATUS_OK) {
            return r;
        }
    }
    *ret_seat = seat;
    return STATUS_OK;
}

int channel_begin(struct channel_call *call, struct tcx_channel *channel, enum channel_verb verb,
                  double timeout) {
    struct seat *seat = NULL;

    if (timeout != timeout) {
        return error(STATUS_INVALID, "a timeout is a number of seconds");
    }
    int r = find_seat(channel, timeout, &seat);
    if (r != STATUS_OK) {
        return r;
    }
    if (!seat_enter(seat)) {
        return error_closed(channel);
    }
    int64_t deadline = timeout > 0 ? clock_after(clock_from_seconds(timeout)) : 0;
    *call = (struct channel_call){
        .channel = channel,
        .seat = seat,
        .verb = verb,
        .timeout = timeout,
        .wait.deadline_ns = timeout == TCX_AT_ONCE               ? RING_AT_ONCE
                            : timeout < 0 || deadline == FOREVER ? RING_FOREVER
                                                                 : (uint64_t)deadline,
    };
    return STATUS_OK;
}

void channel_end(struct channel_call *call) {
    seat_exit(call->seat);
}

static int may_wait(const struct channel_call *call) {
    struct session *session = call->seat->session;
    const struct patience *patience = &session->patience;

    if (seat_is_closed(call->seat)) {
        return error_closed(call->channel);
    }
    if (patience->interrupt && patience->interrupt(patience->context)) {
        return error_plain(STATUS_INTERRUPTED);
    }
    return session_is_alive(session) ? STATUS_OK : session_error_lost(session);
}

static int error_broken(const struct tcx_channel *channel) {
    return error(STATUS_INTERNAL,
                 "somebody has written nonsense into %s \"%s\", which cannot be used any more: "
                 "delete it, and make it anew",
                 channel_kind(channel), channel->name);
}

/* The handle was closed, or a daemon that is told to end takes all seats back. */
static int error_not_in(const struct channel_call *call) {
    const struct tcx_channel *channel = call->channel;

    if (seat_is_closed(call->seat)) {
        return error_closed(channel);
    }
    if (ring_own_state(&call->seat->ring) != RING_LEFT) {
        return error_broken(channel);
    }
    return session_is_alive(call->seat->session)
               ? error(STATUS_LOST, "tensorcxd is ending, and has taken %s \"%s\" back",
                       channel_kind(channel), channel->name)
               : session_error_lost(call->seat->session);
}

static int error_of(const struct channel_call *call, enum ring_result result) {
    const struct tcx_channel *channel = call->channel;

    switch (result) {
    case RING_TIMED_OUT:
    case RING_LOCKED:
        if (channel_is_at_once(call)) {
            return STATUS_TIMEOUT;
        }
        /* also of a program that never waits, only tries again and again */
        return session_is_alive(call->seat->session)
                   ? channel_error_timeout(call, result == RING_LOCKED)
                   : session_error_lost(call->seat->session);
    case RING_CLOSED:
        return error(STATUS_CLOSED, "%s \"%s\" has been shut down%s", channel_kind(channel),
                     channel->name, call->verb == CHANNEL_RECV ? ", and nothing is left" : "");
    case RING_NOT_IN:
        return error_not_in(call);
    case RING_BAD:
        return error(STATUS_INTERNAL,
                     "somebody has written nonsense into %s \"%s\": a message is skipped",
                     channel_kind(channel), channel->name);
    default:
        return error_broken(channel);
    }
}

int channel_goes_on(const struct channel_call *call, enum ring_result result, int *ret_status) {
    *ret_status = result == RING_OK      ? STATUS_OK
                  : result == RING_AGAIN ? may_wait(call)
                                         : error_of(call, result);
    return result == RING_AGAIN && *ret_status == STATUS_OK;
}

void channel_tell(const struct channel_call *call, uint32_t buffer) {
    session_lock(call->seat->session);
    seat_note_done(call->seat, buffer);
    session_unlock(call->seat->session);
}

/* -------------------------------------------------------------------------- shutdown, subscribe */

int tcx_channel_shutdown(tcx_channel_t *channel) {
    struct channel_call call = {0};
    int r = channel_begin(&call, channel, CHANNEL_SEND, 0);

    if (r == STATUS_OK) {
        ring_close(&call.seat->ring);
        channel_end(&call);
    }
    return r;
}

/* The first step of a subscription; waits while the lock is held by somebody who is stopped. */
static int begin_to_receive(struct tcx_channel *reader) {
    struct channel_call call;
    enum ring_result result;
    int r = channel_begin(&call, reader, CHANNEL_RECV, -1);

    if (r == STATUS_OK) {
        do {
            result = ring_subscribe(&call.seat->ring, call.wait.deadline_ns, reader->is_latest);
        } while (channel_goes_on(&call, result, &r));
        channel_end(&call);
    }
    return r;
}

/* A seat of its own at the same channel. */
static int join_again(struct tcx_channel *topic, struct seat **ret_seat) {
    struct channel_call call;
    int r = channel_begin(&call, topic, CHANNEL_RECV, 0);

    if (r == STATUS_OK) {
        struct wire_join request = {.channel = call.seat->channel};
        r = seat_join(call.seat->session, &request, "", ret_seat);
        channel_end(&call);
    }
    return r;
}

int tcx_channel_subscribe(tcx_channel_t *topic, int latest, tcx_channel_t **ret_reader) {
    uint32_t flags = atomic_load(&topic->seat)->ring.shape.flags;
    tcx_channel_t *reader = NULL;
    struct seat *seat;

    if (!(flags & RING_TOPIC) || topic->is_reader) {
        return error(STATUS_INVALID, "only a topic is subscribed to, \"%s\" is a %s", topic->name,
                     channel_kind(topic));
    }
    if (latest && !(flags & RING_DROP_OLDEST)) {
        return error(STATUS_INVALID,
                     "topic \"%s\" drops no messages, so there is no latest=: make it with "
                     "overflow=drop_oldest",
                     topic->name);
    }
    int r = join_again(topic, &seat);
    if (r == STATUS_OK) {
        r = create(topic->client, topic->name, seat, &reader);
    }
    if (r != STATUS_OK) {
        return r;
    }
    reader->is_reader = 1;
    reader->is_latest = latest;
    r = begin_to_receive(reader);
    if (r != STATUS_OK) {
        tcx_channel_close(reader);
        return r;
    }
    *ret_reader = reader;
    return STATUS_OK;
}
