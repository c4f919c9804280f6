#include "desc.h"

#include <string.h>

#include "messages.h"

struct encoded {
    struct desc_dtype dtype;
    uint16_t device_type;
    uint16_t device;
    uint32_t flags;
    int32_t ndim;
    uint64_t byte_offset;
}; /* then shape[ndim], strides[ndim] */

_Static_assert(sizeof(struct encoded) == 24, "no padding");
_Static_assert(WIRE_DESC_MAX == sizeof(struct encoded) + DESC_NDIM_MAX * 2 * sizeof(int64_t),
               "one limit");

size_t desc_encode(const struct desc *desc, void *ret_bytes) {
    struct encoded head = {desc->dtype, desc->device_type, desc->device,
                           desc->flags, desc->ndim,        desc->byte_offset};
    size_t dims = (size_t)desc->ndim * sizeof(int64_t);
    char *to = ret_bytes;

    memcpy(to, &head, sizeof head);
    memcpy(to + sizeof head, desc->shape, dims);
    memcpy(to + sizeof head + dims, desc->strides, dims);
    return sizeof head + 2 * dims;
}

const char *desc_decode(const void *bytes, size_t nbytes, struct desc *ret_desc) {
    struct encoded head;
    const char *from = bytes;

    if (nbytes < sizeof head) {
        return "the description is cut short";
    }
    memcpy(&head, from, sizeof head);
    if (head.ndim < 0 || head.ndim > DESC_NDIM_MAX) {
        return "a tensor has 0 to 64 dimensions";
    }
    size_t dims = (size_t)head.ndim * sizeof(int64_t);
    if (nbytes != sizeof head + 2 * dims) {
        return "the description's size does not fit its number of dimensions";
    }
    ret_desc->dtype = head.dtype;
    ret_desc->device_type = head.device_type;
    ret_desc->device = head.device;
    ret_desc->flags = head.flags;
    ret_desc->ndim = head.ndim;
    ret_desc->byte_offset = head.byte_offset;
    memcpy(ret_desc->shape, from + sizeof head, dims);
    memcpy(ret_desc->strides, from + sizeof head + dims, dims);
    return NULL;
}

size_t dtype_nbytes(struct desc_dtype dtype) {
    uint32_t bits = (uint32_t)dtype.bits * dtype.lanes;

    return bits % 8 == 0 ? bits / 8 : 0;
}

int shape_nbytes(int32_t ndim, const int64_t *shape, size_t itemsize, uint64_t *ret_nbytes) {
    int64_t nbytes = (int64_t)itemsize;
    int overflow = 0;
    int empty = 0;

    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] < 0) {
            return 0;
        }
        empty |= shape[i] == 0;
        overflow |= shape[i] > 0 && __builtin_mul_overflow(nbytes, shape[i], &nbytes);
    }
    if (overflow && !empty) {
        return 0;
    }
    *ret_nbytes = empty ? 0 : (uint64_t)nbytes;
    return 1;
}

void shape_strides(int32_t ndim, const int64_t *shape, int64_t *ret_strides) {
    int64_t stride = 1;

    for (int32_t i = ndim - 1; i >= 0; i--) {
        ret_strides[i] = stride;
        /* An empty shape may have huge dimensions; its strides mean nothing, so let them stop
         * growing. */
        if (shape[i] > 1 && __builtin_mul_overflow(stride, shape[i], &stride)) {
            stride = 1;
        }
    }
}

int shape_is_contiguous(int32_t ndim, const int64_t *shape, const int64_t *strides) {
    int64_t expected = 1;

    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] == 0) {
            return 1;
        }
    }
    if (!strides) {
        return 1;
    }
    for (int32_t i = ndim - 1; i >= 0; i--) {
        if (shape[i] == 1) {
            continue;
        }
        if (strides[i] != expected || __builtin_mul_overflow(expected, shape[i], &expected)) {
            return 0;
        }
    }
    return 1;
}

/* Lowest and highest element index reached, relative to the first one; false on overflow. */
static int extent(const struct desc *desc, int64_t *ret_low, int64_t *ret_high) {
    int64_t low = 0;
    int64_t high = 0;

    for (int32_t i = 0; i < desc->ndim; i++) {
        int64_t reach;
        if (__builtin_mul_overflow(desc->shape[i] - 1, desc->strides[i], &reach)) {
            return 0;
        }
        int64_t *end = reach < 0 ? &low : &high;
        if (__builtin_add_overflow(*end, reach, end)) {
            return 0;
        }
    }
    *ret_low = low;
    *ret_high = high;
    return 1;
}

const char *desc_check(const struct desc *desc, uint64_t storage_nbytes) {
    size_t itemsize = dtype_nbytes(desc->dtype);
    uint64_t nbytes;
    int64_t low;
    int64_t high;
    int64_t first;
    int64_t end;

    if (itemsize == 0) {
        return "an element must be a whole number of bytes";
    }
    if (!shape_nbytes(desc->ndim, desc->shape, itemsize, &nbytes)) {
        return "a dimension is negative, or the shape is larger than 2^63 bytes";
    }
    if (nbytes == 0) {
        return desc->byte_offset <= storage_nbytes ? NULL : "the byte offset is beyond the storage";
    }
    if (desc->byte_offset > INT64_MAX || storage_nbytes > INT64_MAX || !extent(desc, &low, &high) ||
        __builtin_mul_overflow(low, (int64_t)itemsize, &low) ||
        __builtin_add_overflow(high, 1, &high) ||
        __builtin_mul_overflow(high, (int64_t)itemsize, &high) ||
        __builtin_add_overflow((int64_t)desc->byte_offset, low, &first) ||
        __builtin_add_overflow((int64_t)desc->byte_offset, high, &end)) {
        return "the shape and strides overflow";
    }
    if (first < 0 || (uint64_t)end > storage_nbytes) {
        return "the tensor reaches beyond its storage";
    }
    return NULL;
}
