#include "publish.h"

#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "client.h"
#include "copy.h"
#include "device_list.h"
#include "error.h"
#include "hold.h"
#include "layout.h"
#include "name.h"
#include "step.h"
#include "tensor.h"

#define PUT_FLAGS \
    (TCX_PUT_READONLY | TCX_PUT_EPHEMERAL | TCX_PUT_EXCLUSIVE | TCX_PUT_COPY | TCX_PUT_NO_COPY)

/* Rounded up: a ttl above 0 is never "no limit", and one beyond all clocks always is. */
static uint64_t ttl_ms(double seconds) {
    uint64_t ms = seconds < 1e15 ? (uint64_t)(seconds * 1e3) : 0;

    return ms + (seconds < 1e15 && (double)ms < seconds * 1e3);
}

int publication_init(const char *name, const tcx_put_options_t *options,
                     struct publication *ret_publication) {
    unsigned flags = options ? options->flags : 0;
    double ttl = options ? options->ttl : 0;
    size_t length = name ? strlen(name) : 0;
    tcx_device_t to = options ? options->device : (tcx_device_t){0};
    struct device *device;
    const char *wrong = name ? name_check(name, length) : NULL;

    if (wrong) {
        return error(STATUS_INVALID, "%s", wrong);
    }
    if (flags & ~(unsigned)PUT_FLAGS) {
        return error(STATUS_INVALID, "unknown put flags 0x%x", flags & ~(unsigned)PUT_FLAGS);
    }
    if ((flags & TCX_PUT_COPY) && (flags & TCX_PUT_NO_COPY)) {
        return error(STATUS_INVALID, "a put cannot both copy and refuse to copy");
    }
    if (!(ttl >= 0)) { /* NaN is not, either */
        return error(STATUS_INVALID, "a ttl is a positive number of seconds, or 0 for no limit");
    }
    int r = device_find(to, &device);
    if (r != STATUS_OK) {
        return r;
    }
    *ret_publication = (struct publication){
        .name = name,
        .name_nbytes = length,
        .ttl_ms = ttl_ms(ttl),
        .flags = (flags & TCX_PUT_EPHEMERAL ? PUT_EPHEMERAL : 0u) |
                 (flags & TCX_PUT_EXCLUSIVE ? PUT_EXCLUSIVE : 0u),
        .desc_flags = flags & TCX_PUT_READONLY ? DESC_READONLY : 0u,
        .copies = (flags & TCX_PUT_COPY) != 0,
        .refuses_to_copy = (flags & TCX_PUT_NO_COPY) != 0,
        .moves = to.type != 0,
        .device = device,
    };
    return STATUS_OK;
}

int publication_device(const struct publication *publication, const tcx_array_t *source,
                       struct device **ret_device) {
    if (publication->moves) {
        *ret_device = publication->device;
        return STATUS_OK;
    }
    return device_find(source->device, ret_device);
}

int publication_hold(const struct publication *publication, struct session *session,
                     const tcx_array_t *source, uint64_t nbytes, const struct device *device,
                     struct storage **ret_storage) {
    struct storage *storage = NULL;
    int r = STATUS_OK;

    if (!publication->copies && layout_is_contiguous(source)) {
        r = hold_array(session, source, nbytes, &storage);
    }
    if (r == STATUS_OK && storage && storage->device != device) {
        storage_unref(storage);
        storage = NULL;
    }
    if (r == STATUS_OK && storage) {
        r = copy_wait(source);
    } else if (r == STATUS_OK && publication->refuses_to_copy && nbytes > 0) {
        r = error(
            STATUS_EXCHANGE,
            "this memory is private, strided or elsewhere, and putting it would copy it: allow "
            "the copy, or fill memory that was born shared (cx.empty, tcx_empty)");
    }
    if (r != STATUS_OK) {
        storage_unref(storage);
        return r;
    }
    *ret_storage = storage;
    return STATUS_OK;
}

int publish_storage(struct session *session, const struct publication *publication,
                    const struct storage *storage, const struct desc *desc, uint64_t *ret_version) {
    char encoded[WIRE_DESC_MAX];
    struct wire_publish fixed = {
        .storage = storage->id,
        .ttl_ms = publication->ttl_ms,
        .flags = publication->flags,
        .desc_nbytes = (uint16_t)desc_encode(desc, encoded),
        .name_nbytes = (uint16_t)publication->name_nbytes,
    };
    struct frame frame = REQUEST(PUBLISH, &fixed);
    struct call *call;

    frame.tail[0] = encoded;
    frame.tail_nbytes[0] = fixed.desc_nbytes;
    frame.tail[1] = publication->name;
    frame.tail_nbytes[1] = fixed.name_nbytes;
    int r = call_run(session, &frame, 0, &call);
    if (r == STATUS_OK) {
        *ret_version = ((const struct wire_publish_reply *)call_fixed(call))->version;
        call_free(session, call);
        REACHED(PUBLISH_ANSWERED);
    }
    return r;
}

int publish_bytes(struct session *session, const struct publication *publication,
                  const struct desc *desc, const void *bytes, size_t nbytes,
                  struct wire_grant *ret_grant, uint64_t *ret_version) {
    char encoded[WIRE_DESC_MAX];
    struct wire_put fixed = {
        .ttl_ms = publication->ttl_ms,
        .flags = publication->flags,
        .desc_nbytes = (uint16_t)desc_encode(desc, encoded),
        .name_nbytes = (uint16_t)publication->name_nbytes,
        .data_nbytes = (uint32_t)nbytes,
    };
    struct frame frame = REQUEST(PUT, &fixed);
    struct call *call;

    frame.tail[0] = encoded;
    frame.tail_nbytes[0] = fixed.desc_nbytes;
    frame.tail[1] = publication->name;
    frame.tail_nbytes[1] = fixed.name_nbytes;
    frame.tail[2] = bytes;
    frame.tail_nbytes[2] = nbytes;
    int r = call_run(session, &frame, 0, &call);
    if (r == STATUS_OK) {
        const struct wire_put_reply *reply = call_fixed(call);
        *ret_grant = reply->grant;
        *ret_version = reply->version;
        call_free(session, call);
        REACHED(PUT_ANSWERED);
    }
    return r;
}

/* ----------------------------------------------------------------------------------- one tensor */

/* Makes the caller's tensor, if it wants one, from a storage that has been put. Takes it. */
static int hand_out(struct storage *storage, const struct desc *desc,
                    const struct publication *publication, uint64_t version,
                    tcx_tensor_t **ret_tensor) {
    struct name_tag tag = {publication->name, version};

    if (!ret_tensor) {
        storage_unref(storage);
        return STATUS_OK;
    }
    return tensor_from_desc(storage, desc, 0, &tag, ret_tensor);
}

/* Puts `storage` under the name, if there is one. Takes it. */
static int put_storage(struct session *session, const struct publication *publication,
                       struct storage *storage, const struct desc *desc,
                       tcx_tensor_t **ret_tensor) {
    uint64_t version = 0;
    int r = publication->name ? publish_storage(session, publication, storage, desc, &version)
                              : STATUS_OK;

    if (r != STATUS_OK) {
        storage_unref(storage);
        return r;
    }
    return hand_out(storage, desc, publication, version, ret_tensor);
}

/* Memory that is shared already: no copy. */
static int put_shared(struct session *session, const struct publication *publication,
                      const tcx_array_t *source, struct storage *storage,
                      tcx_tensor_t **ret_tensor) {
    uint32_t flags = publication->desc_flags | (source->readonly ? DESC_READONLY : 0u);
    struct desc desc;

    layout_describe(source, storage->device_index,
                    (uint64_t)((char *)source->data - storage->address), flags, &desc);
    return put_storage(session, publication, storage, &desc, ret_tensor);
}

/* Small private memory, to be on the CPU: the bytes travel in the message. */
static int put_small(struct session *session, const struct publication *publication,
                     const tcx_array_t *source, size_t nbytes, tcx_tensor_t **ret_tensor) {
    struct wire_grant grant;
    struct storage *storage;
    struct desc desc;
    uint64_t version;
    void *packed = NULL;

    int r = STATUS_OK;

    if (!layout_is_contiguous(source) || array_is_on_device(source)) {
        packed = malloc(nbytes + 1);
        r = packed ? copy_array(source, NULL, packed) : error_plain(STATUS_OUT_OF_MEMORY);
    }
    if (r != STATUS_OK) {
        free(packed);
        return r;
    }
    layout_describe(source, 0, 0, publication->desc_flags, &desc);
    r = publish_bytes(session, publication, &desc, packed ? packed : source->data, nbytes, &grant,
                      &version);
    free(packed);
    if (r != STATUS_OK) {
        return r;
    }
    if (!ret_tensor) {
        storage_decline(session, &grant);
        return STATUS_OK;
    }
    r = storage_take(session, &grant, &storage);
    return r == STATUS_OK ? hand_out(storage, &desc, publication, version, ret_tensor) : r;
}

/* Large private memory: copied into a fresh storage first. */
static int put_large(struct session *session, const struct publication *publication,
                     const tcx_array_t *source, uint64_t nbytes, struct device *device,
                     tcx_tensor_t **ret_tensor) {
    struct storage *storage;
    struct desc desc;
    int r = storage_fill(session, device, source, nbytes, &storage);

    if (r != STATUS_OK) {
        return r;
    }
    layout_describe(source, storage->device_index, 0, publication->desc_flags, &desc);
    return put_storage(session, publication, storage, &desc, ret_tensor);
}

/* Puts a checked array in the way that its memory asks for. */
static int put_array(struct session *session, const struct publication *publication,
                     const tcx_array_t *source, uint64_t nbytes, tcx_tensor_t **ret_tensor) {
    struct storage *storage = NULL;
    struct device *device;
    int r = publication_device(publication, source, &device);

    if (r == STATUS_OK) {
        r = publication_hold(publication, session, source, nbytes, device, &storage);
    }
    if (r != STATUS_OK) {
        return r;
    }
    if (storage) {
        return put_shared(session, publication, source, storage, ret_tensor);
    }
    return publication->name && nbytes <= WIRE_PUT_MAX && !device
               ? put_small(session, publication, source, nbytes, ret_tensor)
               : put_large(session, publication, source, nbytes, device, ret_tensor);
}

int tcx_put(tcx_client_t *client, const char *name, const tcx_array_t *source,
            const tcx_put_options_t *options, tcx_tensor_t **ret_tensor) {
    struct publication publication;
    struct session *session;
    uint64_t nbytes;
    int r = publication_init(name, options, &publication);

    if (r == STATUS_OK) {
        r = layout_check(source, &nbytes);
    }
    if (r == STATUS_OK) {
        r = client_session(client, &session);
    }
    if (r != STATUS_OK) {
        return r;
    }
    r = put_array(session, &publication, source, nbytes, ret_tensor);
    session_unref(session);
    return r;
}
