#include "copy.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "step.h"

#define PIECE_NBYTES ((size_t)16 << 20) /* of the CPU's memory, between two devices */

static CUdeviceptr device_address(const void *address) {
    return (CUdeviceptr)(uintptr_t)address;
}

enum direction { IN, OUT, ON, ZERO };

/* One operation on a device, in a stream (0: a thread's own), and the wait for its end. */
static int run(struct device *device, enum direction direction, void *to, const void *from,
               size_t nbytes, intptr_t stream) {
    CUstream in = stream ? (CUstream)stream : CU_STREAM_PER_THREAD;
    CUresult result = CUDA_SUCCESS;
    int r = STATUS_OK;
    const struct cuda_driver *driver = device_enter(device, &r);

    if (!driver) {
        return r;
    }
    switch (direction) {
    case IN:
        result = driver->copy_in(device_address(to), from, nbytes, in);
        break;
    case OUT:
        result = driver->copy_out(to, device_address(from), nbytes, in);
        break;
    case ON:
        result = driver->copy(device_address(to), device_address(from), nbytes, in);
        break;
    case ZERO:
        result = driver->fill(device_address(to), 0, nbytes, in);
        break;
    }
    REACHED(CUDA_COPY_LAUNCHED);
    /* Also after a failure: nothing may still be under way to memory that is let go. */
    CUresult ended = driver->stream_synchronize(in);
    REACHED(CUDA_COPY_DONE);
    device_leave(driver);
    result = result == CUDA_SUCCESS ? ended : result;
    return result == CUDA_SUCCESS ? STATUS_OK
                                  : device_error(device, result, "bytes cannot be copied");
}

/* From one device to another. Not from peer to peer: the daemon's memory is accessible to its own
 * device only. */
static int copy_between(struct device *to_device, char *to, struct device *from_device,
                        const char *from, size_t nbytes, intptr_t stream) {
    size_t piece = nbytes < PIECE_NBYTES ? nbytes : PIECE_NBYTES;
    char *bytes = malloc(piece);
    int r = bytes ? STATUS_OK : error_plain(STATUS_OUT_OF_MEMORY);

    for (size_t at = 0; at < nbytes && r == STATUS_OK; at += piece) {
        size_t n = nbytes - at < piece ? nbytes - at : piece;
        r = run(from_device, OUT, bytes, from + at, n, stream);
        r = r == STATUS_OK ? run(to_device, IN, to + at, bytes, n, 0) : r;
    }
    free(bytes);
    return r;
}

static uint64_t nbytes_of(const tcx_array_t *array) {
    uint64_t nbytes = 0;

    shape_nbytes(array->ndim, array->shape, layout_itemsize(array->dtype), &nbytes);
    return nbytes;
}

static int copy_from_device(const tcx_array_t *source, struct device *device, void *to) {
    char text[DEVICE_TEXT_SIZE];
    size_t nbytes = nbytes_of(source);
    struct device *from;
    int r = device_find(source->device, &from);

    if (r != STATUS_OK || nbytes == 0) {
        return r;
    }
    if (!layout_is_contiguous(source)) {
        return error(
            STATUS_EXCHANGE,
            "an array on %s is copied if it is C-contiguous, and this one is strided: make it "
            "contiguous first",
            device_text(source->device, text));
    }
    if (source->stream <= 0 && (r = device_wait(from, source->stream)) != STATUS_OK) {
        return r;
    }
    return device && device != from
               ? copy_between(device, to, from, source->data, nbytes, source->stream)
               : run(from, device ? ON : OUT, to, source->data, nbytes, source->stream);
}

static int copy_to_device(const tcx_array_t *source, struct device *device, void *to) {
    size_t nbytes = nbytes_of(source);

    if (nbytes == 0 || layout_is_contiguous(source)) {
        return copy_bytes(source->data, nbytes, device, to);
    }
    void *packed = malloc(nbytes);
    if (!packed) {
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    layout_pack(source, packed);
    int r = copy_bytes(packed, nbytes, device, to);
    free(packed);
    return r;
}

int copy_across(const tcx_array_t *source, struct device *device, void *to) {
    return array_is_on_device(source) ? copy_from_device(source, device, to)
                                      : copy_to_device(source, device, to);
}

int copy_bytes(const void *from, size_t nbytes, struct device *device, void *to) {
    if (nbytes == 0) {
        return STATUS_OK;
    }
    if (device) {
        return run(device, IN, to, from, nbytes, 0);
    }
    memcpy(to, from, nbytes);
    return STATUS_OK;
}

int copy_zeroes(struct device *device, void *to, size_t nbytes) {
    if (nbytes == 0) {
        return STATUS_OK;
    }
    if (device) {
        return run(device, ZERO, to, NULL, nbytes, 0);
    }
    memset(to, 0, nbytes);
    return STATUS_OK;
}

int copy_wait(const tcx_array_t *array) {
    return array_is_on_device(array) ? tcx_synchronize(array->device, array->stream) : STATUS_OK;
}

/* --------------------------------------------------------------------------------------- public */

int tcx_array_pack(const tcx_array_t *source, void *to, size_t nbytes) {
    uint64_t size = 0;
    int r = layout_check(source, &size);

    if (r != STATUS_OK) {
        return r;
    }
    if (size != nbytes) {
        return error(STATUS_INVALID, "the array has %llu bytes, the room %zu",
                     (unsigned long long)size, nbytes);
    }
    return copy_array(source, NULL, to);
}

static int check_same(const tcx_array_t *to, const tcx_array_t *source) {
    int same =
        memcmp(&to->dtype, &source->dtype, sizeof to->dtype) == 0 && to->ndim == source->ndim;

    for (int32_t i = 0; same && i < to->ndim; i++) {
        same = to->shape[i] == source->shape[i];
    }
    if (!same) {
        return error(STATUS_INVALID, "an array is copied to one of the same dtype and shape");
    }
    if (!layout_is_contiguous(to) || to->readonly) {
        return error(STATUS_INVALID, "an array is copied to one that is C-contiguous and writable");
    }
    return STATUS_OK;
}

/* Neither memcpy() nor the driver copies to where it still reads: through memory of our own. */
static int copy_overlapping(const tcx_array_t *to, const tcx_array_t *source, size_t nbytes,
                            struct device *device) {
    void *packed = malloc(nbytes);
    int r = packed ? copy_array(source, NULL, packed) : error_plain(STATUS_OUT_OF_MEMORY);

    r = r == STATUS_OK ? copy_bytes(packed, nbytes, device, to->data) : r;
    free(packed);
    return r;
}

static int overlap(const tcx_array_t *to, const tcx_array_t *source, size_t nbytes) {
    uintptr_t a = (uintptr_t)to->data;
    uintptr_t b = (uintptr_t)source->data;

    return (a < b ? b - a : a - b) < nbytes;
}

int tcx_array_copy(const tcx_array_t *to, const tcx_array_t *source) {
    struct device *device = NULL;
    uint64_t nbytes;
    int r = layout_check(source, &nbytes);

    r = r == STATUS_OK ? layout_check(to, &nbytes) : r;
    r = r == STATUS_OK ? check_same(to, source) : r;
    r = r == STATUS_OK ? device_find(to->device, &device) : r;
    r = r == STATUS_OK ? device_wait(device, to->stream) : r;
    if (r == STATUS_OK) {
        r = overlap(to, source, nbytes) ? copy_overlapping(to, source, nbytes, device)
                                        : copy_array(source, device, to->data);
    }
    return r;
}
