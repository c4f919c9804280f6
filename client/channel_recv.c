/*
 * channel_recv.c - receiving: the next message, and what is in it
 */
#include <stdlib.h>
#include <string.h>

#include "bundle.h"
#include "call.h"
#include "channel.h"
#include "channel_buffer.h"
#include "channel_desc.h"
#include "error.h"
#include "step.h"
#include "tensor.h"

#define SPIN_NS_MAX 50000000 /* the caller's signals wait so long */

/* What is attached to a message. */
struct attached {
    struct storage **storages; /* owned array of counted */
    size_t count;
};

struct received {
    struct channel_buffer *buffer; /* counted */
    struct channel_desc desc;
    struct attached attached;
    tcx_tensor_t *tensor; /* one of these two becomes the caller's */
    tcx_bundle_t *bundle;
};

/* All but the description, which is large and comes first. */
static void received_init(struct received *message) {
    message->buffer = NULL;
    message->attached = (struct attached){0};
    message->tensor = NULL;
    message->bundle = NULL;
}

/* ------------------------------------------------------------------------------------- attached */

static void let_go(struct attached *attached) {
    for (size_t i = 0; i < attached->count; i++) {
        storage_unref(attached->storages[i]);
    }
    free(attached->storages);
    *attached = (struct attached){0};
}

/* Turns the grants of a reply into storages. Takes them, also on failure. */
static int take_grants(struct session *session, const struct call *reply,
                       struct attached *attached) {
    struct wire_grant grant;
    size_t nbytes;
    const char *grants = call_tail(reply, &nbytes);
    size_t count = nbytes / sizeof grant;
    int r = STATUS_OK;

    attached->storages = calloc(count + 1, sizeof(struct storage *));
    if (!attached->storages) {
        r = error_plain(STATUS_OUT_OF_MEMORY);
    }
    for (size_t i = 0; i < count; i++) {
        memcpy(&grant, grants + i * sizeof grant, sizeof grant);
        if (r == STATUS_OK) {
            r = storage_take(session, &grant, &attached->storages[i]);
            attached->count += r == STATUS_OK;
        } else {
            storage_decline(session, &grant);
        }
    }
    if (r == STATUS_OK && count == 0) {
        r = error(STATUS_INTERNAL, "tensorcxd granted nothing");
    }
    return r;
}

/* Asks for what the message refers to; on failure there is nothing to let go. */
static int fetch(const struct channel_call *call, const struct received *message,
                 struct attached *attached) {
    struct seat *seat = call->seat;
    struct wire_fetch fixed = {
        .channel = seat->channel,
        .ref = message->desc.ref,
        .slot = seat->ring.member,
        .buffer = message->buffer->number,
    };
    struct frame frame = REQUEST(FETCH, &fixed);
    struct call *reply;

    if (channel_is_at_once(call)) {
        return STATUS_TIMEOUT; /* the message is put off */
    }
    int r = call_run(seat->session, &frame, 0, &reply);
    if (r != STATUS_OK) {
        return r;
    }
    REACHED(FETCH_ANSWERED);
    r = take_grants(seat->session, reply, attached);
    call_free(seat->session, reply);
    if (r != STATUS_OK) {
        let_go(attached);
    }
    return r;
}

/* Who keeps a buffer for what its message refers to must not be in the way of others: at most half
 * of those that are left when all messages have theirs. */
static int may_pin(const struct ring *ring) {
    return ring_busy(ring) <= (ring->shape.buffers - ring->shape.capacity) / 2;
}

/* The storage that a message's bytes are in. Asks only for one that is new here. */
static int fetch_elsewhere(const struct channel_call *call, const struct received *message,
                           struct attached *attached) {
    struct seat *seat = call->seat;
    struct channel_buffer *buffer = may_pin(&seat->ring) ? message->buffer : NULL;
    struct storage *storage = storage_pin(seat->session, message->desc.storage, buffer);

    if (!storage) {
        return fetch(call, message, attached);
    }
    REACHED(MESSAGE_PINNED);
    attached->storages = malloc(sizeof(struct storage *));
    if (!attached->storages) {
        storage_unref(storage);
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    attached->storages[0] = storage;
    attached->count = 1;
    return STATUS_OK;
}

/* -------------------------------------------------------------------------------------- opening */

/* A tensor, or for a bundle just the bytes, in the buffer, which it counts. */
static int open_buffer(struct seat *seat, struct channel_buffer *buffer, const struct desc *desc,
                       tcx_tensor_t **ret_tensor) {
    int r = seat_size(seat, 0, NULL);

    if (r == STATUS_OK) {
        channel_buffer_keep_bytes(buffer);
        struct place place = buffer->storage ? place_of(buffer->storage) : (struct place){0};
        place.session = seat->session;
        place.address = seat_buffer(seat, buffer->number);
        place.nbytes = seat_buffer_nbytes(seat);
        r = tensor_at(&place, desc, 0, NULL, ret_tensor);
    }
    if (r == STATUS_OK) {
        (*ret_tensor)->foreign = channel_buffer_ref(buffer);
        (*ret_tensor)->release = channel_buffer_unref;
    }
    return r;
}

static int open_bundle_in_buffer(struct seat *seat, struct received *message) {
    int r = seat_size(seat, 0, NULL);
    tcx_tensor_t *bytes;

    if (r != STATUS_OK) {
        return r;
    }
    struct desc all = {.dtype = {TCX_UINT, 8, 1}, .device_type = TCX_CPU, .ndim = 1};
    all.shape[0] = (int64_t)seat_buffer_nbytes(seat);
    all.strides[0] = 1;
    r = open_buffer(seat, message->buffer, &all, &bytes);
    return r == STATUS_OK
               ? bundle_open_in(seat->session, bytes, &message->desc.memory, &message->bundle)
               : r;
}

static int open_elsewhere(struct seat *seat, struct received *message) {
    static const struct name_tag no_name;
    struct storage *storage = storage_ref(message->attached.storages[0]);
    const struct desc *desc = &message->desc.memory;

    return desc->flags & DESC_BUNDLE
               ? bundle_open(seat->session, storage, desc, 0, &no_name, &message->bundle)
               : tensor_from_desc(storage, desc, 0, NULL, &message->tensor);
}

/* A bundle of one that stands for its tensor. */
static int unwrap(struct received *message) {
    struct tcx_bundle *bundle = message->bundle;

    if (!bundle || bundle->count != 1 || !bundle->items[0].tensor) {
        return error(STATUS_INTERNAL, "a message that cannot be right: not a tensor in a bundle");
    }
    message->tensor = tcx_tensor_ref(bundle->items[0].tensor);
    message->bundle = NULL;
    tcx_bundle_unref(bundle);
    return STATUS_OK;
}

/* Makes what the caller gets. */
static int open_message(const struct channel_call *call, struct received *message) {
    struct seat *seat = call->seat;
    const char *wrong = channel_desc_read(&seat->ring, message->buffer->number, &message->desc);

    if (wrong) {
        return error(STATUS_INTERNAL, "a message that cannot be right: %s", wrong);
    }
    if (channel_is_at_once(call) && !message->desc.is_elsewhere && !seat_storage(seat)) {
        return STATUS_TIMEOUT; /* it is put off, as by fetch() */
    }
    int r = STATUS_OK;
    if (message->desc.is_elsewhere) {
        r = fetch_elsewhere(call, message, &message->attached);
    } else if (message->desc.ref) {
        r = fetch(call, message, &message->attached);
    }
    if (r != STATUS_OK) {
        return r;
    }
    if (message->desc.is_elsewhere) {
        r = open_elsewhere(seat, message);
    } else if (message->desc.memory.flags & DESC_BUNDLE) {
        r = open_bundle_in_buffer(seat, message);
    } else {
        r = open_buffer(seat, message->buffer, &message->desc.memory, &message->tensor);
    }
    REACHED(MESSAGE_OPENED);
    let_go(&message->attached);
    return r == STATUS_OK && message->desc.is_single ? unwrap(message) : r;
}

/* Whether the next attempt may succeed. */
static int may_be_repeated(int status) {
    return status != STATUS_INTERNAL && status != STATUS_EXCHANGE && status != STATUS_STALE &&
           status != STATUS_INVALID;
}

/* ------------------------------------------------------------------------------------ receiving */

/* Waits for the next message. */
static int receive(const struct channel_call *call, uint32_t *ret_number) {
    struct seat *seat = call->seat;
    struct ring_wait wait = call->wait;
    struct ring_message message = {0};
    enum ring_result result;
    int r;

    do {
        result = ring_recv(&seat->ring, &wait, call->channel->is_latest, &message);
        wait.spin_ns = 0;
    } while (channel_goes_on(call, result, &r));
    if (message.missed > 0) {
        atomic_fetch_add(&seat->missed, message.missed);
        if (ring_is_watched(&seat->ring)) {
            channel_tell(call, message.buffer);
        }
    }
    *ret_number = message.buffer;
    return r;
}

/* The message that is next: one that could not be opened before, or a new one. */
static int next_buffer(const struct channel_call *call, struct channel_buffer **ret_buffer) {
    struct channel_buffer *buffer = seat_take_pending(call->seat);
    uint32_t number;
    int r = STATUS_OK;

    if (!buffer) {
        buffer = channel_buffer_create(call->seat);
        r = buffer ? receive(call, &number) : STATUS_OUT_OF_MEMORY;
        if (r == STATUS_OK) {
            channel_buffer_set(buffer, BUFFER_RECEIVED, number);
            REACHED(MESSAGE_RECEIVED);
        }
    }
    if (r != STATUS_OK) {
        channel_buffer_unref(buffer);
        return r;
    }
    *ret_buffer = buffer;
    return STATUS_OK;
}

static int check_recv(const struct tcx_channel *channel, double spin_us) {
    if ((atomic_load(&channel->seat)->ring.shape.flags & RING_TOPIC) && !channel->is_reader) {
        return error(STATUS_INVALID, "topic \"%s\": subscribe to receive", channel->name);
    }
    if (!(spin_us >= 0)) {
        return error(STATUS_INVALID, "spin_us is a number of microseconds");
    }
    return STATUS_OK;
}

int tcx_channel_recv(tcx_channel_t *channel, double timeout, double spin_us,
                     tcx_tensor_t **ret_tensor, tcx_bundle_t **ret_bundle) {
    struct received message;
    struct channel_call call;
    int r = check_recv(channel, spin_us);

    if (r == STATUS_OK) {
        r = channel_begin(&call, channel, CHANNEL_RECV, timeout);
    }
    if (r != STATUS_OK) {
        return r;
    }
    received_init(&message);
    call.wait.spin_ns =
        spin_us * 1e3 < SPIN_NS_MAX ? (uint32_t)(spin_us * 1e3) : (uint32_t)SPIN_NS_MAX;
    r = next_buffer(&call, &message.buffer);
    if (r == STATUS_OK) {
        r = open_message(&call, &message);
        if (r != STATUS_OK && may_be_repeated(r)) {
            seat_put_off(call.seat, message.buffer);
        } else {
            channel_buffer_unref(message.buffer);
        }
    }
    channel_end(&call);
    if (r == STATUS_OK && message.tensor) {
        *ret_tensor = message.tensor;
    } else if (r == STATUS_OK) {
        *ret_bundle = message.bundle;
    } else {
        tcx_tensor_unref(message.tensor); /* opened, and then not what it was to be */
        tcx_bundle_unref(message.bundle);
    }
    return r;
}
