#include "tensor.h"

#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "copy.h"
#include "device_list.h"
#include "error.h"
#include "hold.h"
#include "layout.h"
#include "reclaim.h"
#include "session.h"

struct tcx_tensor *tensor_create(const tcx_array_t *array, uint64_t nbytes,
                                 const struct name_tag *tag) {
    size_t ndim = (size_t)array->ndim;
    char *name = tag && tag->name ? strdup(tag->name) : NULL;
    struct tcx_tensor *tensor = malloc(sizeof *tensor + 2 * ndim * sizeof(int64_t));

    if (!tensor || (tag && tag->name && !name)) {
        free(name);
        free(tensor);
        error_plain(STATUS_OUT_OF_MEMORY);
        return NULL;
    }
    *tensor = (struct tcx_tensor){.refs = 1,
                                  .nbytes = nbytes,
                                  .version = tag ? tag->version : 0,
                                  .name = name,
                                  .array = *array};
    tensor->array.readonly = 0;
    if (array->device.type == 0) {
        tensor->array.device.type = TCX_CPU;
    }
    tensor->array.stream = 0;
    tensor->array.shape = tensor->dims;
    tensor->array.strides = tensor->dims + ndim;
    for (size_t i = 0; i < ndim; i++) {
        tensor->dims[i] = array->shape[i];
    }
    shape_strides(array->ndim, array->shape, tensor->dims + ndim);
    return tensor;
}

tcx_tensor_t *tcx_tensor_ref(tcx_tensor_t *tensor) {
    if (tensor) {
        atomic_fetch_add_explicit(&tensor->refs, 1, memory_order_relaxed);
    }
    return tensor;
}

void tcx_tensor_unref(tcx_tensor_t *tensor) {
    if (!tensor || atomic_fetch_sub_explicit(&tensor->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (!array_is_on_device(&tensor->array) || tensor->nbytes == 0 || !reclaim_tensor(tensor)) {
        tensor_destroy(tensor);
    }
}

void tensor_destroy(struct tcx_tensor *tensor) {
    storage_unref(tensor->storage);
    tcx_tensor_unref(tensor->base);
    if (tensor->foreign) {
        tensor->release(tensor->foreign);
    }
    free(tensor->name);
    free(tensor);
}

const tcx_array_t *tcx_tensor_array(const tcx_tensor_t *tensor) {
    return &tensor->array;
}

void tcx_tensor_info(const tcx_tensor_t *tensor, tcx_info_t *ret_info) {
    const struct storage *storage = tensor->storage;

    *ret_info = (tcx_info_t){
        .nbytes = tensor->nbytes,
        .storage_id = storage ? storage->id : 0,
        .storage_nbytes = storage ? storage->nbytes : tensor->nbytes,
        .version = tensor->version,
        .name = tensor->name,
        .readonly = tensor->array.readonly,
        .is_shared = storage && session_is_alive(storage->session),
        .device = tensor->array.device,
    };
}

/* ---------------------------------------------------------------------------------- in storages */

/* Whether a peer's description makes sense in that place, and is of a kind that we can read. */
static int check_desc(const struct desc *desc, const struct place *place) {
    tcx_dtype_t dtype = {desc->dtype.code, desc->dtype.bits, desc->dtype.lanes};
    const char *wrong = desc_check(desc, place->nbytes);
    char text[DTYPE_TEXT_SIZE];

    if (!wrong && place->nbytes > 0 && desc->device != place->device_index) {
        wrong = "it names another device than its memory is on";
    }
    if (!wrong && desc->device_type != (desc->device ? TCX_CUDA : TCX_CPU)) {
        wrong = "it names no device that there is";
    }
    if (wrong) {
        return error(STATUS_INTERNAL, "a description that cannot be right: %s", wrong);
    }
    int contiguous = shape_is_contiguous(desc->ndim, desc->shape, desc->strides);
    if (!tcx_dtype_is_known(dtype) || !contiguous ||
        desc->byte_offset % layout_itemsize(dtype) != 0) {
        return error(STATUS_EXCHANGE,
                     "a tensor that this version cannot read: dtype %s%s (upgrade this library)",
                     dtype_text(dtype.code, dtype.bits, dtype.lanes, text),
                     contiguous ? "" : ", strided");
    }
    return STATUS_OK;
}

int tensor_at(const struct place *place, const struct desc *desc, int readonly,
              const struct name_tag *tag, struct tcx_tensor **ret_tensor) {
    struct device *device = place->device;
    uint64_t used = 0;
    int r = check_desc(desc, place);

    if (r == STATUS_OK && place->nbytes == 0) { /* on a device all the same */
        r = device_of_index(place->session, desc->device, &device);
    }
    if (r != STATUS_OK) {
        return r;
    }
    tcx_array_t array = {
        .data = place->address ? place->address + desc->byte_offset : NULL,
        .dtype = {desc->dtype.code, desc->dtype.bits, desc->dtype.lanes},
        .ndim = desc->ndim,
        .shape = desc->shape,
        .device = device_name(device),
    };
    shape_nbytes(desc->ndim, desc->shape, layout_itemsize(array.dtype), &used);
    struct tcx_tensor *tensor = tensor_create(&array, used, tag);
    if (!tensor) {
        return STATUS_OUT_OF_MEMORY;
    }
    tensor->array.readonly = readonly || (desc->flags & DESC_READONLY);
    *ret_tensor = tensor;
    return STATUS_OK;
}

int tensor_from_desc(struct storage *storage, const struct desc *desc, int readonly,
                     const struct name_tag *tag, struct tcx_tensor **ret_tensor) {
    struct place place = place_of(storage);
    int r = tensor_at(&place, desc, readonly, tag, ret_tensor);

    if (r == STATUS_OK) {
        (*ret_tensor)->storage = storage;
    } else {
        storage_unref(storage);
    }
    return r;
}

int tensor_allocate(struct session *session, const struct device *device, const tcx_array_t *array,
                    uint64_t nbytes, const struct name_tag *tag, struct tcx_tensor **ret_tensor) {
    struct storage *storage;
    int r = storage_allocate(session, device, nbytes, &storage);

    if (r != STATUS_OK) {
        return r;
    }
    tcx_array_t described = *array;
    described.data = storage->address;
    described.device = device_name(device);
    struct tcx_tensor *tensor = tensor_create(&described, nbytes, tag);
    if (!tensor) {
        storage_unref(storage);
        return STATUS_OUT_OF_MEMORY;
    }
    tensor->storage = storage;
    *ret_tensor = tensor;
    return STATUS_OK;
}

/* The public ways to make shared memory differ in what they fill it with. */
enum content { ANYTHING, ZEROS, COPY };

static int fill(const struct tcx_tensor *tensor, struct device *device, const tcx_array_t *source,
                enum content content) {
    if (content == ANYTHING) {
        return STATUS_OK;
    }
    storage_populate(tensor->storage);
    return content == ZEROS ? copy_zeroes(device, tensor->array.data, tensor->nbytes)
                            : copy_array(source, device, tensor->array.data);
}

static int make(tcx_client_t *client, struct device *device, const tcx_array_t *array,
                uint64_t nbytes, enum content content, tcx_tensor_t **ret_tensor) {
    struct session *session;
    tcx_tensor_t *tensor;
    int r = client_session(client, &session);

    if (r != STATUS_OK) {
        return r;
    }
    r = tensor_allocate(session, device, array, nbytes, NULL, &tensor);
    session_unref(session);
    if (r != STATUS_OK) {
        return r;
    }
    r = fill(tensor, device, array, content);
    if (r != STATUS_OK) {
        tcx_tensor_unref(tensor);
        return r;
    }
    *ret_tensor = tensor;
    return STATUS_OK;
}

static int make_new(tcx_client_t *client, tcx_device_t name, tcx_dtype_t dtype, int32_t ndim,
                    const int64_t *shape, enum content content, tcx_tensor_t **ret_tensor) {
    tcx_array_t array = {.dtype = dtype, .ndim = ndim, .shape = shape};
    struct device *device = NULL;
    uint64_t nbytes = 0;
    int r = layout_check_shape(dtype, ndim, shape, &nbytes);

    r = r == STATUS_OK ? device_find(name, &device) : r;
    return r == STATUS_OK ? make(client, device, &array, nbytes, content, ret_tensor) : r;
}

int tcx_empty(tcx_client_t *client, tcx_device_t device, tcx_dtype_t dtype, int32_t ndim,
              const int64_t *shape, tcx_tensor_t **ret_tensor) {
    return make_new(client, device, dtype, ndim, shape, ANYTHING, ret_tensor);
}

int tcx_zeros(tcx_client_t *client, tcx_device_t device, tcx_dtype_t dtype, int32_t ndim,
              const int64_t *shape, tcx_tensor_t **ret_tensor) {
    return make_new(client, device, dtype, ndim, shape, ZEROS, ret_tensor);
}

int tcx_copy(tcx_client_t *client, const tcx_array_t *source, tcx_device_t name,
             tcx_tensor_t **ret_tensor) {
    struct device *device = NULL;
    uint64_t nbytes = 0;
    int r = layout_check(source, &nbytes);

    if (r == STATUS_OK) {
        r = device_find(name.type ? name : source->device, &device);
    }
    return r == STATUS_OK ? make(client, device, source, nbytes, COPY, ret_tensor) : r;
}

/* ---------------------------------------------------------------------------------------- views */

int tcx_tensor_view(tcx_tensor_t *tensor, tcx_dtype_t dtype, int32_t ndim, const int64_t *shape,
                    uint64_t byte_offset, int readonly, tcx_tensor_t **ret_tensor) {
    tcx_array_t array = {
        .dtype = dtype, .ndim = ndim, .shape = shape, .device = tensor->array.device};
    uint64_t nbytes;
    int r = layout_check_shape(dtype, ndim, shape, &nbytes);

    if (r != STATUS_OK) {
        return r;
    }
    if (byte_offset > tensor->nbytes || nbytes > tensor->nbytes - byte_offset) {
        return error(STATUS_INVALID,
                     "a view of %llu bytes at %llu is beyond the tensor's %llu bytes",
                     (unsigned long long)nbytes, (unsigned long long)byte_offset,
                     (unsigned long long)tensor->nbytes);
    }
    char *data = tensor->array.data ? (char *)tensor->array.data + byte_offset : NULL;
    if ((uintptr_t)data % layout_itemsize(dtype) != 0) {
        return error(STATUS_INVALID, "byte offset %llu is not aligned to elements of %zu bytes",
                     (unsigned long long)byte_offset, layout_itemsize(dtype));
    }
    array.data = data;
    struct tcx_tensor *view = tensor_create(&array, nbytes, NULL);
    if (!view) {
        return STATUS_OUT_OF_MEMORY;
    }
    view->array.readonly = readonly || tensor->array.readonly;
    view->storage = tensor->storage ? storage_ref(tensor->storage) : NULL;
    view->base = tensor->foreign ? tcx_tensor_ref(tensor) : tcx_tensor_ref(tensor->base);
    *ret_tensor = view;
    return STATUS_OK;
}

int tcx_is_shared(tcx_client_t *client, const void *data, size_t nbytes) {
    struct session *session = client_last(client);
    struct storage *storage = session ? hold_find(session, data, nbytes) : NULL;
    int is_shared = storage && session_is_alive(storage->session);

    storage_unref(storage);
    session_unref(session);
    return is_shared;
}
