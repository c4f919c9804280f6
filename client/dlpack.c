/*
 * dlpack.c - the exchange contract: tensors in and out by DLPack
 *
 * An imported managed tensor is owned by our tensor and released with it, on whatever thread that
 * is; one that is an export of ours is released at once, and what it refers to is kept instead. An
 * exported one holds a reference to our tensor. Nothing here knows Python.
 */
#include <dlpack/dlpack.h>
#include <stdlib.h>

#include "client.h"
#include "device.h"
#include "error.h"
#include "hold.h"
#include "layout.h"
#include "tensor.h"

#define TAKES_IT "cx.asarray or tcx_copy() takes it"

/* What both kinds of managed tensors have in common. */
struct import {
    const DLTensor *tensor; /* borrowed: in `managed` */
    int is_readonly;
    struct tcx_tensor *exported; /* borrowed: that of ours which `managed` refers to; NULL: none */
    void *managed;               /* owned until it has moved to a tensor */
    void (*release)(void *managed);
};

static void release_versioned(void *managed) {
    struct DLManagedTensorVersioned *self = managed;

    if (self->deleter) {
        self->deleter(self);
    }
}

static void release_legacy(void *managed) {
    struct DLManagedTensor *self = managed;

    if (self->deleter) {
        self->deleter(self);
    }
}

/* The deleters of our exports. */
static void delete_versioned(struct DLManagedTensorVersioned *self) {
    tcx_tensor_unref(self->manager_ctx);
    free(self);
}

static void delete_legacy(struct DLManagedTensor *self) {
    tcx_tensor_unref(self->manager_ctx);
    free(self);
}

/* --------------------------------------------------------------------------------- the contract */

static int is_exchanged(DLDataType dtype) {
    return dtype.lanes == 1 &&
           ((dtype.bits == 32 && (dtype.code == kDLFloat || dtype.code == kDLInt)) ||
            (dtype.bits == 8 && dtype.code == kDLBool));
}

static int check_kind(const DLTensor *tensor) {
    char text[DTYPE_TEXT_SIZE];
    DLDataType dtype = tensor->dtype;

    if (tensor->device.device_type != kDLCUDA &&
        (tensor->device.device_type != kDLCPU || tensor->device.device_id != 0)) {
        return error(
            STATUS_EXCHANGE,
            "only memory of the CPU and of CUDA devices is exchanged, and this tensor is on "
            "device (%d, %d): copy it to the CPU first",
            (int)tensor->device.device_type, (int)tensor->device.device_id);
    }
    if (!is_exchanged(dtype)) {
        return error(STATUS_EXCHANGE,
                     "dtype %s is not exchanged: float32, int32 and bool are (" TAKES_IT
                     " if storage knows the dtype)",
                     dtype_text(dtype.code, dtype.bits, dtype.lanes, text));
    }
    return STATUS_OK;
}

static int check_layout(const DLTensor *tensor, const tcx_array_t *array, uint64_t nbytes) {
    uintptr_t end;

    if (nbytes > 0 && !tensor->data) {
        return error(STATUS_EXCHANGE, "the tensor has elements and no data");
    }
    if (__builtin_add_overflow((uintptr_t)tensor->data, tensor->byte_offset, &end) ||
        __builtin_add_overflow(end, nbytes, &end)) {
        return error(STATUS_EXCHANGE, "the byte offset leads beyond the end of memory");
    }
    if (!layout_is_contiguous(array)) {
        return error(STATUS_EXCHANGE, "strided layouts are not exchanged, only C-contiguous ones "
                                      "(" TAKES_IT ")");
    }
    if (nbytes > 0 && (uintptr_t)array->data % layout_itemsize(array->dtype) != 0) {
        return error(STATUS_EXCHANGE,
                     "the data is not aligned to its elements of %zu bytes (" TAKES_IT ")",
                     layout_itemsize(array->dtype));
    }
    return STATUS_OK;
}

/* Its context is used from now on, and what it has is reclaimed. */
static int prepare(struct device *device) {
    int r = STATUS_OK;
    const struct cuda_driver *driver = device ? device_enter(device, &r) : NULL;

    if (driver) {
        device_leave(driver);
    }
    return r;
}

/* Checks everything a tensor must be, and describes it. */
static int check(const DLTensor *tensor, tcx_array_t *ret_array, uint64_t *ret_nbytes) {
    uint64_t nbytes = 0;
    int r = check_kind(tensor);

    if (r != STATUS_OK) {
        return r;
    }
    tcx_array_t array = {
        .data = (void *)((uintptr_t)tensor->data + tensor->byte_offset),
        .dtype = {tensor->dtype.code, tensor->dtype.bits, tensor->dtype.lanes},
        .ndim = tensor->ndim,
        .shape = tensor->shape,
        .strides = tensor->strides,
        .device = {(int32_t)tensor->device.device_type, tensor->device.device_id},
    };
    struct device *device;
    if (device_find(array.device, &device) != STATUS_OK || prepare(device) != STATUS_OK) {
        return error(STATUS_EXCHANGE, "%s", tcx_error());
    }
    if (layout_check_shape(array.dtype, array.ndim, array.shape, &nbytes) != STATUS_OK) {
        return error(STATUS_EXCHANGE, "%s", tcx_error());
    }
    r = check_layout(tensor, &array, nbytes);
    if (r == STATUS_OK) {
        *ret_array = array;
        *ret_nbytes = nbytes;
    }
    return r;
}

/* --------------------------------------------------------------------------------------- import */

/* The storage of this client's daemon that the memory is, so that it is known again; NULL: none. */
static int find_own(tcx_client_t *client, const tcx_array_t *array, uint64_t nbytes,
                    struct storage **ret_storage) {
    struct session *session = client_last(client);
    struct storage *storage = session ? hold_find(session, array->data, nbytes) : NULL;
    int r = storage ? hold_check_device(storage, array) : STATUS_OK;

    session_unref(session);
    if (r != STATUS_OK) {
        storage_unref(storage);
        return error(STATUS_EXCHANGE, "%s", tcx_error());
    }
    *ret_storage = storage;
    return STATUS_OK;
}

/* A tensor on the foreign memory, which it owns from now on; and takes `storage`, what that is of
 * ours. */
static int share(const struct import *import, const tcx_array_t *array, uint64_t nbytes,
                 struct storage *storage, tcx_tensor_t **ret_tensor) {
    struct tcx_tensor *tensor = tensor_create(array, nbytes, NULL);

    if (!tensor) {
        storage_unref(storage);
        return STATUS_OUT_OF_MEMORY;
    }
    tensor->storage = storage;
    if (import->exported) {
        /* Not a chain: that would be as deep as a program likes, and so its release. */
        struct tcx_tensor *base = import->exported->base;
        tensor->base = tcx_tensor_ref(base ? base : import->exported);
        import->release(import->managed);
    } else {
        tensor->foreign = import->managed;
        tensor->release = import->release;
    }
    *ret_tensor = tensor;
    return STATUS_OK;
}

/* Takes import->managed. */
static int import_tensor(tcx_client_t *client, const struct import *import, tcx_copy_mode_t copy,
                         tcx_tensor_t **ret_tensor) {
    struct storage *own = NULL;
    tcx_array_t array;
    uint64_t nbytes = 0;
    int r = check(import->tensor, &array, &nbytes);

    if (r == STATUS_OK && import->is_readonly && copy != TCX_COPY_ALWAYS) {
        r = error(STATUS_EXCHANGE,
                  "the tensor is read-only and sharing it would allow writes: pass copy=True");
    }
    r = r == STATUS_OK ? find_own(client, &array, nbytes, &own) : r;
    if (r == STATUS_OK && copy != TCX_COPY_ALWAYS) {
        r = share(import, &array, nbytes, own, ret_tensor);
        if (r == STATUS_OK) {
            return r;
        }
    } else if (r == STATUS_OK) {
        r = tcx_copy(client, &array, (tcx_device_t){0}, ret_tensor);
        storage_unref(own);
    }
    import->release(import->managed);
    return r;
}

int tcx_from_dlpack(tcx_client_t *client, struct DLManagedTensorVersioned *managed,
                    tcx_copy_mode_t copy, tcx_tensor_t **ret_tensor) {
    if (!managed) {
        return error(STATUS_INVALID, "no managed tensor given");
    }
    if (managed->version.major != DLPACK_MAJOR_VERSION) {
        uint32_t major = managed->version.major;
        uint32_t minor = managed->version.minor;
        release_versioned(managed); /* nothing but the deleter is where we know it */
        return error(STATUS_EXCHANGE, "the producer speaks DLPack %u.%u, this library %d.x", major,
                     minor, DLPACK_MAJOR_VERSION);
    }
    /* Other flags change nothing here: IS_COPIED is about lifetime, PADDED about dtypes smaller
     * than a byte. */
    struct import import = {
        .tensor = &managed->dl_tensor,
        .is_readonly = (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0,
        .exported = managed->deleter == delete_versioned ? managed->manager_ctx : NULL,
        .managed = managed,
        .release = release_versioned,
    };
    return import_tensor(client, &import, copy, ret_tensor);
}

int tcx_from_dlpack_legacy(tcx_client_t *client, struct DLManagedTensor *managed,
                           tcx_copy_mode_t copy, tcx_tensor_t **ret_tensor) {
    if (!managed) {
        return error(STATUS_INVALID, "no managed tensor given");
    }
    struct import import = {
        .tensor = &managed->dl_tensor,
        .exported = managed->deleter == delete_legacy ? managed->manager_ctx : NULL,
        .managed = managed,
        .release = release_legacy,
    };
    return import_tensor(client, &import, copy, ret_tensor);
}

/* --------------------------------------------------------------------------------------- export */

/* Shape and strides are the tensor's own, which the reference keeps; the offset is in `data`,
 * because some consumers ignore byte_offset. */
static DLTensor describe(const struct tcx_tensor *tensor) {
    const tcx_array_t *array = &tensor->array;

    return (DLTensor){
        .data = tensor->nbytes > 0 ? array->data : NULL,
        .device = {(DLDeviceType)array->device.type, array->device.id},
        .ndim = array->ndim,
        .dtype = {array->dtype.code, array->dtype.bits, array->dtype.lanes},
        .shape = (int64_t *)array->shape,
        .strides = (int64_t *)array->strides,
        .byte_offset = 0,
    };
}

int tcx_to_dlpack(tcx_tensor_t *tensor, int copied, struct DLManagedTensorVersioned **ret_managed) {
    struct DLManagedTensorVersioned *managed = malloc(sizeof *managed);

    if (!managed) {
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    *managed = (struct DLManagedTensorVersioned){
        .version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION},
        .manager_ctx = tcx_tensor_ref(tensor),
        .deleter = delete_versioned,
        .flags = (tensor->array.readonly ? DLPACK_FLAG_BITMASK_READ_ONLY : 0) |
                 (copied ? DLPACK_FLAG_BITMASK_IS_COPIED : 0),
        .dl_tensor = describe(tensor),
    };
    *ret_managed = managed;
    return STATUS_OK;
}

int tcx_to_dlpack_legacy(tcx_tensor_t *tensor, struct DLManagedTensor **ret_managed) {
    if (tensor->array.readonly) {
        return error(STATUS_EXCHANGE, "the tensor is read-only, and a consumer of legacy DLPack "
                                      "(before 1.0) cannot be told so: copy it");
    }
    struct DLManagedTensor *managed = malloc(sizeof *managed);
    if (!managed) {
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    *managed = (struct DLManagedTensor){
        .dl_tensor = describe(tensor),
        .manager_ctx = tcx_tensor_ref(tensor),
        .deleter = delete_legacy,
    };
    *ret_managed = managed;
    return STATUS_OK;
}
