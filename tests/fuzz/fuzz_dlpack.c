/*
 * fuzz_dlpack.c - managed tensors with hostile fields
 *
 * Only pointers are honest: nobody could check them. Whatever comes of an import, its deleter is
 * called exactly once, and what was accepted can be looked at, viewed and exported again.
 */
#include <dlpack/dlpack.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "driver.h"
#include "fuzz.h"
#include "tensorcx.h"

enum { DATA_NBYTES = 256 };

struct forged {
    union {
        struct DLManagedTensorVersioned versioned;
        struct DLManagedTensor legacy;
    } managed;
    int is_versioned;
    int64_t *shape, *strides; /* owned: as many as there are dimensions, at most 64 */
    char *data;               /* owned, unless it is on a device */
    int is_on_device;
    atomic_int deleted;
};

static void delete_versioned(struct DLManagedTensorVersioned *self) {
    ((struct forged *)self->manager_ctx)->deleted++;
}

static void delete_legacy(struct DLManagedTensor *self) {
    ((struct forged *)self->manager_ctx)->deleted++;
}

/* Memory on the device 0, or NULL without a driver; never followed here. */
static char *device_data(void) {
    static CUdeviceptr data;
    const char *why;
    const struct cuda_driver *driver = data ? NULL : cuda_driver(&why);
    CUcontext context;

    if (driver && driver->context_retain(&context, 0) == CUDA_SUCCESS) {
        driver->context_push(context);
        assert(driver->alloc(&data, DATA_NBYTES) == CUDA_SUCCESS);
        driver->context_pop(&context);
    }
    return (char *)(uintptr_t)data;
}

/* Mostly small. */
static int64_t any_number(struct input *input) {
    uint8_t kind = (uint8_t)input_number(input, 1);

    return kind < 200 ? kind % 9 : kind < 250 ? 100 - kind : (int64_t)input_number(input, 8);
}

static int64_t *any_numbers(struct input *input, size_t count) {
    int64_t *numbers = malloc(count * sizeof *numbers + 1);

    for (size_t i = 0; i < count; i++) {
        numbers[i] = any_number(input);
    }
    return numbers;
}

static DLTensor forge_tensor(struct forged *forged, struct input *input) {
    static const DLDataType good[] = {{kDLFloat, 32, 1}, {kDLInt, 32, 1}, {kDLBool, 8, 1}};
    int32_t ndim = (int32_t)any_number(input);
    size_t count = ndim < 0 ? 0 : ndim > 64 ? 64 : (size_t)ndim;
    uint8_t kind = (uint8_t)input_number(input, 1);
    DLTensor tensor = {.device = {kDLCPU, 0}, .ndim = ndim, .dtype = good[kind % 3]};

    if (kind & 0x80) {
        input_take(input, &tensor.dtype, sizeof tensor.dtype);
        tensor.device.device_type = (DLDeviceType)any_number(input);
        tensor.device.device_id = (int32_t)any_number(input);
    }
    forged->shape = any_numbers(input, count);
    forged->strides = any_numbers(input, count);
    forged->is_on_device = (kind & 0x08) && device_data();
    if (forged->is_on_device) {
        forged->data = device_data();
        tensor.device.device_type = kDLCUDA;
    } else {
        forged->data = aligned_alloc(64, DATA_NBYTES);
        memset(forged->data, 1, DATA_NBYTES);
    }
    tensor.shape = forged->shape;
    tensor.strides = kind & 0x40 ? forged->strides : NULL;
    tensor.data = kind & 0x20 ? NULL : forged->data;
    tensor.byte_offset = kind & 0x10 ? (uint64_t)any_number(input) : 0;
    return tensor;
}

static void forge(struct forged *forged, struct input *input) {
    uint8_t kind = (uint8_t)input_number(input, 1);

    *forged = (struct forged){.is_versioned = kind & 1};
    if (forged->is_versioned) {
        forged->managed.versioned = (struct DLManagedTensorVersioned){
            .version = {kind & 2 ? (uint32_t)any_number(input) : DLPACK_MAJOR_VERSION, kind},
            .manager_ctx = forged,
            .deleter = delete_versioned,
            .flags = kind & 4 ? input_number(input, 8) : 0,
            .dl_tensor = forge_tensor(forged, input),
        };
    } else {
        forged->managed.legacy = (struct DLManagedTensor){
            .dl_tensor = forge_tensor(forged, input),
            .manager_ctx = forged,
            .deleter = delete_legacy,
        };
    }
}

static int import(struct forged *forged, tcx_copy_mode_t copy, tcx_tensor_t **ret_tensor) {
    return forged->is_versioned
               ? tcx_from_dlpack(NULL, &forged->managed.versioned, copy, ret_tensor)
               : tcx_from_dlpack_legacy(NULL, &forged->managed.legacy, copy, ret_tensor);
}

/* Reads the elements if they are all there. */
static void read_elements(const tcx_array_t *array, const char *data, uint64_t nbytes) {
    const char *first = array->data;
    char copy[DATA_NBYTES];

    if (nbytes > 0 && nbytes <= DATA_NBYTES && first >= data &&
        first <= data + (DATA_NBYTES - nbytes)) {
        assert(tcx_array_pack(array, copy, nbytes) == TCX_OK);
    }
}

static void view(tcx_tensor_t *tensor, struct input *input) {
    int32_t ndim = (int32_t)any_number(input);
    int64_t *shape = any_numbers(input, ndim < 0 ? 0 : ndim > 64 ? 64 : (size_t)ndim);
    tcx_dtype_t dtype = tcx_tensor_array(tensor)->dtype;
    tcx_tensor_t *part;

    if (tcx_tensor_view(tensor, dtype, ndim, shape, (uint64_t)any_number(input), 0, &part) ==
        TCX_OK) {
        const char *begin = tcx_tensor_array(tensor)->data;
        tcx_info_t whole;
        tcx_info_t info;
        tcx_tensor_info(tensor, &whole);
        tcx_tensor_info(part, &info);
        assert(info.nbytes <= whole.nbytes);
        assert(info.nbytes == 0 || (const char *)tcx_tensor_array(part)->data >= begin);
        tcx_tensor_unref(part);
    }
    free(shape);
}

static void export_and_import(tcx_tensor_t *tensor) {
    struct DLManagedTensorVersioned *managed;
    tcx_tensor_t *again;

    if (tcx_to_dlpack(tensor, 1, &managed) == TCX_OK) {
        const DLTensor *out = &managed->dl_tensor;
        assert(out->byte_offset == 0 && (out->strides || out->ndim == 0));
        if (tcx_from_dlpack(NULL, managed, TCX_COPY_NEVER, &again) == TCX_OK) {
            tcx_tensor_unref(again);
        }
    }
    struct DLManagedTensor *legacy;
    if (tcx_to_dlpack_legacy(tensor, &legacy) == TCX_OK) {
        legacy->deleter(legacy);
    }
}

static void use(tcx_tensor_t *tensor, const struct forged *forged, struct input *input) {
    const tcx_array_t *array = tcx_tensor_array(tensor);
    tcx_info_t info;

    assert(forged->deleted == 0);
    assert(array->ndim >= 0 && array->ndim <= TCX_NDIM_MAX && array->strides);
    tcx_tensor_info(tensor, &info);
    read_elements(array, forged->data, info.nbytes);
    view(tensor, input);
    export_and_import(tensor);
    tcx_tensor_unref(tensor);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    struct input input = {data, nbytes};
    tcx_copy_mode_t copy = (tcx_copy_mode_t)(input_number(&input, 1) % 3);
    struct forged forged;
    tcx_tensor_t *tensor;

    forge(&forged, &input);
    if (import(&forged, copy, &tensor) == TCX_OK) {
        use(tensor, &forged, &input);
    }
    while (forged.is_on_device && !forged.deleted) { /* by a thread; libFuzzer's timeout */
        usleep(20);
    }
    assert(forged.deleted == 1);
    free(forged.shape);
    free(forged.strides);
    free(forged.is_on_device ? NULL : forged.data);
    return 0;
}
