/*
 * channel_loan.c - buffers of a channel to write to, and loans: tensors in such buffers
 */
#include "channel_loan.h"

#include "channel_buffer.h"
#include "channel_desc.h"
#include "copy.h"
#include "device.h"
#include "error.h"
#include "layout.h"
#include "mapping.h"
#include "step.h"
#include "storage.h"
#include "tensor.h"

static int error_reader(const struct tcx_channel *channel) {
    return error(STATUS_INVALID, "a %s only receives: send by a handle of the topic itself",
                 channel_kind(channel));
}

int channel_begin_sending(struct channel_call *call, struct tcx_channel *channel,
                          enum channel_verb verb, double timeout) {
    return channel->is_reader ? error_reader(channel) : channel_begin(call, channel, verb, timeout);
}

/* -------------------------------------------------------------------------------------- buffers */

int channel_loan_buffer(const struct channel_call *call, uint32_t *ret_buffer) {
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

int channel_send_buffer(const struct channel_call *call, uint32_t buffer) {
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

void channel_give_back(const struct channel_call *call, uint32_t buffer) {
    if (ring_release(&call->seat->ring, buffer)) {
        channel_tell(call, buffer);
    }
}

struct device *channel_buffers_device(const struct channel_call *call) {
    const struct storage *storage = seat_storage(call->seat);

    return storage ? storage->device : NULL;
}

int channel_find_room(const struct channel_call *call, uint64_t nbytes, const struct device *device,
                      int *ret_fits) {
    const struct tcx_channel *channel = call->channel;
    int may_size = !channel->has_device || channel->device == device;
    int r = nbytes > 0 && may_size ? seat_size(call->seat, nbytes, device) : STATUS_OK;

    if (r == STATUS_OUT_OF_MEMORY && call->verb == CHANNEL_SEND) {
        r = STATUS_OK;
    }
    *ret_fits = r == STATUS_OK && nbytes <= seat_buffer_nbytes(call->seat) &&
                channel_buffers_device(call) == device;
    return r;
}

void channel_describe_in_buffer(const struct channel_call *call, const tcx_array_t *array,
                                struct channel_desc *ret_desc) {
    const struct storage *storage = seat_storage(call->seat);

    channel_desc_init(ret_desc);
    layout_describe(array, storage ? storage->device_index : 0, 0, 0, &ret_desc->memory);
}

/* ---------------------------------------------------------------------------------------- loans */

/* Waits for a buffer, and makes a tensor in it. */
static int loan_tensor(const struct channel_call *call, tcx_array_t *array, uint64_t nbytes,
                       tcx_tensor_t **ret_tensor) {
    struct channel_buffer *buffer = channel_buffer_create(call->seat);
    uint32_t number;

    if (!buffer) {
        return STATUS_OUT_OF_MEMORY;
    }
    int r = channel_loan_buffer(call, &number);
    if (r == STATUS_OK) {
        channel_buffer_set(buffer, BUFFER_LOANED, number);
        channel_buffer_keep_bytes(buffer);
        seat_populate(call->seat, number, nbytes);
        array->data = seat_buffer(call->seat, number);
        array->device = device_name(channel_buffers_device(call));
        *ret_tensor = tensor_create(array, nbytes, NULL);
        r = *ret_tensor ? STATUS_OK : STATUS_OUT_OF_MEMORY;
    }
    if (r != STATUS_OK) {
        channel_buffer_unref(buffer);
        return r;
    }
    (*ret_tensor)->foreign = buffer;
    (*ret_tensor)->release = channel_buffer_unref;
    REACHED(LOAN_MADE);
    return STATUS_OK;
}

static int error_large(const struct channel_call *call, uint64_t nbytes) {
    return error(STATUS_INVALID,
                 "a loan of %llu bytes is larger than a buffer of %s \"%s\" (%llu bytes): send the "
                 "tensor itself, or make the channel with a larger nbytes=",
                 (unsigned long long)nbytes, channel_kind(call->channel), call->channel->name,
                 (unsigned long long)seat_buffer_nbytes(call->seat));
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
        r = channel_begin_sending(&call, channel, CHANNEL_LOAN, timeout);
    }
    if (r != STATUS_OK) {
        return r;
    }
    const struct storage *storage = seat_storage(call.seat);
    r = channel_is_at_once(&call) && may_take_long(storage, nbytes)
            ? STATUS_TIMEOUT
            : channel_find_room(&call, nbytes, storage ? storage->device : channel->device, &fits);
    if (r == STATUS_OK && !fits) {
        r = error_large(&call, nbytes);
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

    if (channel_is_at_once(call) && channel_buffers_device(call)) {
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
    channel_describe_in_buffer(call, &tensor->array, &desc);
    channel_desc_write(&call->seat->ring, buffer->number, &desc);
    REACHED(MESSAGE_DESCRIBED);
    r = channel_send_buffer(call, buffer->number);
    atomic_store(&buffer->state, r == STATUS_OK ? BUFFER_SENT : BUFFER_LOANED);
    REACHED(LOAN_SENT);
    return r;
}

int tcx_channel_send_loan(tcx_channel_t *channel, tcx_tensor_t *loaned, double timeout) {
    struct channel_call call;
    int r = channel_begin_sending(&call, channel, CHANNEL_SEND, timeout);

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
