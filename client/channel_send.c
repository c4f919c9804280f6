/*
 * channel_send.c - sending: what is copied into a buffer, and what goes by reference
 */
#include "call.h"
#include "channel_desc.h"
#include "channel_loan.h"
#include "copy.h"
#include "error.h"
#include "hold.h"
#include "layout.h"
#include "pack.h"
#include "step.h"
#include "tensor.h"

/* Describes what is in a loaned buffer, and sends it; it is given back on failure. */
static int describe_and_send(const struct channel_call *call, uint32_t buffer,
                             const struct channel_desc *desc) {
    channel_desc_write(&call->seat->ring, buffer, desc);
    REACHED(MESSAGE_DESCRIBED);
    int r = channel_send_buffer(call, buffer);
    if (r != STATUS_OK) {
        channel_give_back(call, buffer);
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
        REACHED(REFER_ANSWERED);
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
        channel_give_back(call, buffer);
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
        REACHED(STANDING_KNOWN);
        session_unlock(seat->session);
    }
    *ret_ref = ref == NO_STANDING ? 0 : ref;
    return r == STATUS_LIMIT ? STATUS_OK : r;
}

/* Sends what `desc` describes in a storage. */
static int send_storage(const struct channel_call *call, const struct storage *storage,
                        struct channel_desc *desc) {
    uint32_t buffer;
    int r = channel_loan_buffer(call, &buffer);

    desc->is_elsewhere = 1;
    desc->storage = storage->id;
    return r == STATUS_OK ? refer_and_send(call, buffer, desc, &storage->id, 1) : r;
}

/* -------------------------------------------------------------------------------------- tensors */

static int send_copy(const struct channel_call *call, const tcx_array_t *source, uint64_t nbytes) {
    struct channel_desc desc;
    uint32_t buffer;
    int r = channel_loan_buffer(call, &buffer);

    if (r != STATUS_OK) {
        return r;
    }
    seat_populate(call->seat, buffer, nbytes);
    r = copy_array(source, channel_buffers_device(call), seat_buffer(call->seat, buffer));
    if (r != STATUS_OK) {
        channel_give_back(call, buffer);
        return r;
    }
    REACHED(BUFFER_FILLED);
    channel_describe_in_buffer(call, source, &desc);
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
    r = r == STATUS_OK ? channel_find_room(call, nbytes, device, &fits) : r;
    if (r != STATUS_OK) {
        return r;
    }
    return fits ? send_copy(call, source, nbytes) : send_large(call, source, device, nbytes);
}

/* -------------------------------------------------------------------------------------- bundles */

static int send_pack_in_buffer(const struct channel_call *call, const struct pack *pack,
                               struct channel_desc *desc) {
    uint32_t buffer;
    int r = channel_loan_buffer(call, &buffer);

    if (r != STATUS_OK) {
        return r;
    }
    seat_populate(call->seat, buffer, pack_nbytes(pack));
    r = pack_write(pack, seat_buffer(call->seat, buffer));
    if (r != STATUS_OK) {
        channel_give_back(call, buffer);
        return r;
    }
    REACHED(BUFFER_FILLED);
    return refer_and_send(call, buffer, desc, pack->ids, pack->id_count);
}

static int send_pack(const struct channel_call *call, const struct pack *pack, int is_single) {
    struct channel_desc desc;
    struct storage *storage;
    int fits;
    int r = channel_find_room(call, pack_nbytes(pack), NULL, &fits); /* its index is on the CPU */

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

/* Who does not wait is told so before anything is copied. */
static int check_room(const struct channel_call *call) {
    int r = STATUS_OK;

    if (call->wait.deadline_ns == 0 && !ring_has_room(&call->seat->ring)) {
        channel_goes_on(call, RING_TIMED_OUT, &r);
    }
    return r;
}

int tcx_channel_send(tcx_channel_t *channel, const tcx_array_t *source, double timeout) {
    struct channel_call call;
    uint64_t nbytes;
    int r = layout_check(source, &nbytes);

    if (r == STATUS_OK) {
        r = channel_begin_sending(&call, channel, CHANNEL_SEND, timeout);
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
    int r = channel_begin_sending(&call, channel, CHANNEL_SEND, timeout);

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
