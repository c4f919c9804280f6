/*
 * channel_send.c - loans, and sending: what lies in a buffer, what is copied into one, and what
 * goes by reference
 */
#include <string.h>

#include "call.h"
#include "channel.h"
#include "channel_buffer.h"
#include "channel_desc.h"
#include "copy.h"
#include "error.h"
#include "hold.h"
#include "layout.h"
#include "mapping.h"
#include "pack.h"
#include "tensor.h"

/* -------------------------------------------------------------------------------------- buffers */

static int loan_buffer(const struct channel_call *call, uint32_t *ret_buffer) {
    enum ring_result result;
    int r;

    do {
        result = ring_loan(&call->seat->ring, &call->wait, ret_buffer);
    } while (channel_goes_on(call, result, &r));
    if (r == STATUS_OK && ring_clear_ref(&call->seat->ring, *ret_buffer)) {
        channel_tell(call, *ret_buffer);
    }
    return r;
}

/* Whether a message that is sent can be the end of others: a topic's last one, or dropped ones. */
static int may_end_others(const struct ring *ring) {
    return ring->shape.flags & (RING_TOPIC | RING_DROP_OLDEST);
}

static int send_buffer(const struct channel_call *call, uint32_t buffer) {
    struct channel_call sending = *call;
    enum ring_result result;
    int r;

    sending.has_buffer = 1;
    do {
        result = ring_send(&sending.seat->ring, &sending.wait, buffer);
    } while (channel_goes_on(&sending, result, &r));
    if (r == STATUS_OK && may_end_others(&call->seat->ring) && ring_is_watched(&call->seat->ring)) {
        channel_tell(call, buffer);
    }
    return r;
}

/* Who does not wait is told so before anything is copied. */
static int check_room(const struct channel_call *call) {
    int r = STATUS_OK;

    if (call->wait.deadline_ns == 0 && !ring_has_room(&call->seat->ring)) {
        channel_goes_on(call, RING_TIMED_OUT, &r);
    }
    return r;
}

/* Gives back a buffer that is not sent. */
static void give_back(const struct channel_call *call, uint32_t buffer) {
    if (ring_release(&call->seat->ring, buffer)) {
        channel_tell(call, buffer);
    }
}

/* Describes what is in a loaned buffer, and sends it; it is given back on failure. */
static int describe_and_send(const struct channel_call *call, uint32_t buffer,
                             const struct channel_desc *desc) {
    channel_desc_write(&call->seat->ring, buffer, desc);
    int r = send_buffer(call, buffer);
    if (r != STATUS_OK) {
        give_back(call, buffer);
    }
    return r;
}

/* --------------------------------------------------------------------------------- by reference */

/* Attaches storages to a loaned buffer, or one to all that the handle sends. Asks the daemon. */
static int refer(const struct channel_call *call, uint32_t buffer, const uint64_t *ids,
                 size_t count, uint64_t *ret_ref) {
    struct wire_refer fixed = {
        .channel = call->seat->channel,
        .slot = call->seat->ring.member,
        .buffer = buffer,
    };
    struct frame frame = REQUEST(REFER, &fixed);
    struct call *reply;

    frame.tail[0] = ids;
    frame.tail_nbytes[0] = count * sizeof *ids;
    int r = call_run(call->seat->session, &frame, 0, &reply);
    if (r == STATUS_OK) {
        *ret_ref = ((const struct wire_refer_reply *)call_fixed(reply))->ref;
        call_free(call->seat->session, reply);
    }
    return r;
}

/* Attaches storages, if there are any and they are not yet, and sends. */
static int refer_and_send(const struct channel_call *call, uint32_t buffer,
                          struct channel_desc *desc, const uint64_t *ids, size_t count) {
    int r = count > 0 && !desc->ref ? refer(call, buffer, ids, count, &desc->ref) : STATUS_OK;

    if (r != STATUS_OK) {
        give_back(call, buffer);
        return r;
    }
    return describe_and_send(call, buffer, desc);
}

#define NO_STANDING UINT64_MAX /* in storage::ref: there were too many */

/* What is sent again gets a reference that stays as long as we hold it: asks for the second message
 * only. 0 in *ret_ref: this message needs one of its own. */
static int refer_standing(const struct channel_call *call, struct storage *storage,
                          uint64_t *ret_ref) {
    struct seat *seat = call->seat;

    session_lock(seat->session);
    int is_again = storage->seat == seat->serial;
    uint64_t ref = is_again ? storage->ref : 0;
    session_unlock(seat->session);
    int r = STATUS_OK;
    if (is_again && ref == 0) {
        r = refer(call, WIRE_NO_BUFFER, &storage->id, 1, &ref);
        ref = r == STATUS_OK ? ref : NO_STANDING;
    }
    if (r == STATUS_OK || r == STATUS_LIMIT) {
        session_lock(seat->session);
        storage->seat = seat->serial;
        storage->ref = ref;
        session_unlock(seat->session);
    }
    *ret_ref = ref == NO_STANDING ? 0 : ref;
    return r == STATUS_LIMIT ? STATUS_OK : r;
}

/* Sends what `desc` describes in a storage. */
static int send_storage(const struct channel_call *call, const struct storage *storage,
                        struct channel_desc *desc) {
    uint32_t buffer;
    int r = loan_buffer(call, &buffer);

    desc->is_elsewhere = 1;
    desc->storage = storage->id;
    return r == STATUS_OK ? refer_and_send(call, buffer, desc, &storage->id, 1) : r;
}

/* -------------------------------------------------------------------------------------- tensors */

static struct device *buffers_device(const struct channel_call *call) {
    const struct storage *storage = seat_storage(call->seat);

    return storage ? storage->device : NULL;
}

/* Whether so many bytes on `device` fit a buffer; a channel without size gets one that they fit.
 * Where there is no memory for all buffers there may be for this message alone, which then goes by
 * reference. */
static int find_room(const struct channel_call *call, uint64_t nbytes, const struct device *device,
                     int *ret_fits) {
    const struct tcx_channel *channel = call->channel;
    int may_size = !channel->has_device || channel->device == device;
    int r = nbytes > 0 && may_size ? seat_size(call->seat, nbytes, device) : STATUS_OK;

    if (r == STATUS_OUT_OF_MEMORY && call->verb == CHANNEL_SEND) {
        r = STATUS_OK;
    }
    *ret_fits = r == STATUS_OK && nbytes <= seat_buffer_nbytes(call->seat) &&
                buffers_device(call) == device;
    return r;
}

/* The description of what lies in a buffer, as it is on its device. */
static void describe_in_buffer(const struct channel_call *call, const tcx_array_t *array,
                               struct channel_desc *desc) {
    const struct storage *storage = seat_storage(call->seat);

    channel_desc_init(desc);
    layout_describe(array, storage ? storage->device_index : 0, 0, 0, &desc->memory);
}

static int send_copy(const struct channel_call *call, const tcx_array_t *source, uint64_t nbytes) {
    struct channel_desc desc;
    uint32_t buffer;
    int r = loan_buffer(call, &buffer);

    if (r != STATUS_OK) {
        return r;
    }
    seat_populate(call->seat, buffer, nbytes);
    r = copy_array(source, buffers_device(call), seat_buffer(call->seat, buffer));
    if (r != STATUS_OK) {
        give_back(call, buffer);
        return r;
    }
    describe_in_buffer(call, source, &desc);
    return describe_and_send(call, buffer, &desc);
}

/* More than a buffer takes, or elsewhere: copied into a storage of its own. */
static int send_large(const struct channel_call *call, const tcx_array_t *source,
                      struct device *device, uint64_t nbytes) {
    struct channel_desc desc;
    struct storage *storage;
    int r = storage_fill(call->seat->session, device, source, nbytes, &storage);

    if (r != STATUS_OK) {
        return r;
    }
    channel_desc_init(&desc);
    layout_describe(source, storage->device_index, 0, 0, &desc.memory);
    r = send_storage(call, storage, &desc);
    storage_unref(storage);
    return r;
}

static int send_shared(const struct channel_call *call, const tcx_array_t *source,
                       struct storage *storage) {
    struct channel_desc desc;
    int r = copy_wait(source);

    if (r != STATUS_OK) {
        return r;
    }
    channel_desc_init(&desc);
    layout_describe(source, storage->device_index,
                    (uint64_t)((char *)source->data - storage->address),
                    source->readonly ? DESC_READONLY : 0u, &desc.memory);
    r = refer_standing(call, storage, &desc.ref);
    return r == STATUS_OK ? send_storage(call, storage, &desc) : r;
}

static int send_array(const struct channel_call *call, const tcx_array_t *source, uint64_t nbytes) {
    struct storage *storage = NULL;
    struct device *device;
    int fits = 0;
    int r = device_find(source->device, &device);

    if (r == STATUS_OK && layout_is_contiguous(source)) {
        r = hold_array(call->seat->session, source, nbytes, &storage);
    }
    if (storage) {
        r = send_shared(call, source, storage);
        storage_unref(storage);
        return r;
    }
    r = r == STATUS_OK ? find_room(call, nbytes, device, &fits) : r;
    if (r != STATUS_OK) {
        return r;
    }
    return fits ? send_copy(call, source, nbytes) : send_large(call, source, device, nbytes);
}

/* -------------------------------------------------------------------------------------- bundles */

static int send_pack_in_buffer(const struct channel_call *call, const struct pack *pack,
                               struct channel_desc *desc) {
    uint32_t buffer;
    int r = loan_buffer(call, &buffer);

    if (r != STATUS_OK) {
        return r;
    }
    seat_populate(call->seat, buffer, pack_nbytes(pack));
    r = pack_write(pack, seat_buffer(call->seat, buffer));
    if (r != STATUS_OK) {
        give_back(call, buffer);
        return r;
    }
    return refer_and_send(call, buffer, desc, pack->ids, pack->id_count);
}

static int send_pack(const struct channel_call *call, const struct pack *pack, int is_single) {
    struct channel_desc desc;
    struct storage *storage;
    int fits;
    int r = find_room(call, pack_nbytes(pack), NULL, &fits); /* its index is on the CPU */

    channel_desc_init(&desc);
    desc.is_single = is_single;
    pack_describe(pack, 0, &desc.memory);
    if (r == STATUS_OK && fits && pack->id_count <= WIRE_HOLDS_MAX) {
        return send_pack_in_buffer(call, pack, &desc);
    }
    r = r == STATUS_OK ? pack_store(pack, call->seat->session, &storage) : r;
    if (r == STATUS_OK) {
        r = send_storage(call, storage, &desc);
        storage_unref(storage);
    }
    return r;
}

static int send_items(const struct channel_call *call, const tcx_item_t *items, size_t count,
                      int is_single) {
    static const struct publication plain;
    struct pack pack;
    int r = pack_init(&pack, call->seat->session, &plain, items, count);

    if (r == STATUS_OK) {
        r = send_pack(call, &pack, is_single);
    }
    pack_fini(&pack);
    return r;
}

/* --------------------------------------------------------------------------------------- public */

static int error_reader(const struct tcx_channel *channel) {
    return error(STATUS_INVALID, "a %s only receives: send by a handle of the topic itself",
                 channel_kind(channel));
}

static int begin(struct channel_call *call, struct tcx_channel *channel, enum channel_verb verb,
                 double timeout) {
    return channel->is_reader ? error_reader(channel) : channel_begin(call, channel, verb, timeout);
}

int tcx_channel_send(tcx_channel_t *channel, const tcx_array_t *source, double timeout) {
    struct channel_call call;
    uint64_t nbytes;
    int r = layout_check(source, &nbytes);

    if (r == STATUS_OK) {
        r = begin(&call, channel, CHANNEL_SEND, timeout);
    }
    if (r != STATUS_OK) {
        return r;
    }
    r = check_room(&call);
    if (r == STATUS_OK && source->ndim > CHANNEL_NDIM_MAX) {
        const tcx_item_t item = {.path = (const char *const[]){""}, .depth = 1, .array = source};
        r = send_items(&call, &item, 1, 1);
    } else if (r == STATUS_OK) {
        r = send_array(&call, source, nbytes);
    }
    channel_end(&call);
    return r;
}

int tcx_channel_send_bundle(tcx_channel_t *channel, const tcx_item_t *items, size_t count,
                            double timeout) {
    struct channel_call call;
    int r = begin(&call, channel, CHANNEL_SEND, timeout);

    if (r != STATUS_OK) {
        return r;
    }
    r = check_room(&call);
    if (r == STATUS_OK) {
        r = send_items(&call, items, count, 0);
    }
    channel_end(&call);
    return r;
}

/* Waits for a buffer, and makes a tensor in it. */
static int loan_tensor(const struct channel_call *call, tcx_array_t *array, uint64_t nbytes,
                       tcx_tensor_t **ret_tensor) {
    struct channel_buffer *buffer = channel_buffer_create(call->seat);
    uint32_t number;

    if (!buffer) {
        return STATUS_OUT_OF_MEMORY;
    }
    int r = loan_buffer(call, &number);
    if (r == STATUS_OK) {
        channel_buffer_set(buffer, BUFFER_LOANED, number);
        channel_buffer_keep_bytes(buffer);
        seat_populate(call->seat, number, nbytes);
        array->data = seat_buffer(call->seat, number);
        array->device = device_name(buffers_device(call));
        *ret_tensor = tensor_create(array, nbytes, NULL);
        r = *ret_tensor ? STATUS_OK : STATUS_OUT_OF_MEMORY;
    }
    if (r != STATUS_OK) {
        channel_buffer_unref(buffer);
        return r;
    }
    (*ret_tensor)->foreign = buffer;
    (*ret_tensor)->release = channel_buffer_unref;
    return STATUS_OK;
}

/* A loan: because the daemon is asked, or pages are made. */
static int may_take_long(const struct storage *storage, uint64_t nbytes) {
    return nbytes > 0 && (nbytes >= MAPPING_POPULATE_MIN || !storage);
}

int tcx_channel_loan(tcx_channel_t *channel, tcx_dtype_t dtype, int32_t ndim, const int64_t *shape,
                     double timeout, tcx_tensor_t **ret_tensor) {
    tcx_array_t array = {.dtype = dtype, .ndim = ndim, .shape = shape};
    struct channel_call call;
    uint64_t nbytes;
    int fits;
    int r = layout_check_shape(dtype, ndim, shape, &nbytes);

    if (r == STATUS_OK && ndim > CHANNEL_NDIM_MAX) {
        r = error(STATUS_INVALID, "a loan has at most %d dimensions: send the tensor itself",
                  CHANNEL_NDIM_MAX);
    }
    if (r == STATUS_OK) {
        r = begin(&call, channel, CHANNEL_LOAN, timeout);
    }
    if (r != STATUS_OK) {
        return r;
    }
    const struct storage *storage = seat_storage(call.seat);
    r = channel_is_at_once(&call) && may_take_long(storage, nbytes)
            ? STATUS_TIMEOUT
            : find_room(&call, nbytes, storage ? storage->device : channel->device, &fits);
    if (r == STATUS_OK && !fits) {
        r = error(
            STATUS_INVALID,
            "a loan of %llu bytes is larger than a buffer of %s \"%s\" (%llu bytes): send the "
            "tensor itself, or make the channel with a larger nbytes=",
            (unsigned long long)nbytes, channel_kind(channel), channel->name,
            (unsigned long long)seat_buffer_nbytes(call.seat));
    }
    if (r == STATUS_OK) {
        r = loan_tensor(&call, &array, nbytes, ret_tensor);
    }
    channel_end(&call);
    return r;
}

static int send_loaned(const struct channel_call *call, const struct tcx_tensor *tensor) {
    struct channel_buffer *buffer = tensor->foreign;
    struct channel_desc desc;
    int state = BUFFER_LOANED;

    if (channel_is_at_once(call) && buffers_device(call)) {
        return STATUS_TIMEOUT; /* its work may take long */
    }
    int r = copy_wait(&tensor->array);
    if (r != STATUS_OK) {
        return r;
    }
    if (!atomic_compare_exchange_strong(&buffer->state, &state, BUFFER_LEAVING)) {
        return error(STATUS_INVALID, state == BUFFER_RECEIVED
                                         ? "this tensor was received, it is not a loan"
                                         : "this loan has been sent already");
    }
    describe_in_buffer(call, &tensor->array, &desc);
    channel_desc_write(&call->seat->ring, buffer->number, &desc);
    r = send_buffer(call, buffer->number);
    atomic_store(&buffer->state, r == STATUS_OK ? BUFFER_SENT : BUFFER_LOANED);
    return r;
}

int tcx_channel_send_loan(tcx_channel_t *channel, tcx_tensor_t *loaned, double timeout) {
    struct channel_call call;
    int r = begin(&call, channel, CHANNEL_SEND, timeout);

    if (r != STATUS_OK) {
        return r;
    }
    if (loaned->release != channel_buffer_unref ||
        ((const struct channel_buffer *)loaned->foreign)->seat != call.seat) {
        r = error(STATUS_INVALID, "this is not a loan of this handle of %s \"%s\"",
                  channel_kind(channel), channel->name);
    } else {
        r = send_loaned(&call, loaned);
    }
    channel_end(&call);
    return r;
}
