#include "layout.h"

#include <stdio.h>
#include <string.h>

#include "error.h"

int tcx_dtype_is_known(tcx_dtype_t dtype) {
    static const struct {
        uint8_t code;
        uint8_t smallest, largest; /* bits; all powers of two between them */
    } known[] = {
        {TCX_INT, 8, 64},       {TCX_UINT, 8, 64}, {TCX_FLOAT, 16, 64},
        {TCX_COMPLEX, 64, 128}, {TCX_BOOL, 8, 8},
    };

    if (dtype.lanes != 1 || (dtype.bits & (dtype.bits - 1)) != 0) {
        return 0;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (dtype.code == known[i].code) {
            return dtype.bits >= known[i].smallest && dtype.bits <= known[i].largest;
        }
    }
    return 0;
}

const char *dtype_text(uint8_t code, uint8_t bits, uint16_t lanes, char buffer[DTYPE_TEXT_SIZE]) {
    static const char *const kinds[] = {"int",    "uint",    "float", "handle",
                                        "bfloat", "complex", "bool"};

    if (code == TCX_BOOL && bits == 8 && lanes == 1) {
        return "bool";
    }
    if (code < sizeof kinds / sizeof *kinds) {
        snprintf(buffer, DTYPE_TEXT_SIZE, lanes == 1 ? "%s%u" : "%s%ux%u", kinds[code], bits,
                 lanes);
    } else {
        snprintf(buffer, DTYPE_TEXT_SIZE, "code %u, %u bits, %u lanes", code, bits, lanes);
    }
    return buffer;
}

size_t layout_itemsize(tcx_dtype_t dtype) {
    return dtype_nbytes((struct desc_dtype){dtype.code, dtype.bits, dtype.lanes});
}

int layout_check_shape(tcx_dtype_t dtype, int32_t ndim, const int64_t *shape,
                       uint64_t *ret_nbytes) {
    char text[DTYPE_TEXT_SIZE];

    if (ndim < 0 || ndim > TCX_NDIM_MAX) {
        return error(STATUS_INVALID, "a tensor has 0 to %d dimensions, not %d", TCX_NDIM_MAX,
                     (int)ndim);
    }
    if (ndim > 0 && !shape) {
        return error(STATUS_INVALID, "a tensor of %d dimensions needs a shape", (int)ndim);
    }
    if (!tcx_dtype_is_known(dtype)) {
        return error(
            STATUS_EXCHANGE,
            "dtype %s is not one that storage knows: bool, int8 to int64, uint8 to uint64, "
            "float16 to float64, complex64, complex128 (convert it first)",
            dtype_text(dtype.code, dtype.bits, dtype.lanes, text));
    }
    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] < 0) {
            return error(STATUS_INVALID, "dimension %d is negative: %lld", (int)i,
                         (long long)shape[i]);
        }
    }
    if (!shape_nbytes(ndim, shape, layout_itemsize(dtype), ret_nbytes)) {
        return error(STATUS_INVALID, "the shape overflows: a tensor has less than 2^63 bytes");
    }
    return STATUS_OK;
}

int layout_check(const tcx_array_t *array, uint64_t *ret_nbytes) {
    uint64_t nbytes;

    if (!array) {
        return error(STATUS_INVALID, "no array given");
    }
    int r = layout_check_shape(array->dtype, array->ndim, array->shape, &nbytes);
    if (r != STATUS_OK) {
        return r;
    }
    if (array->device.type != 0 &&
        (array->device.type > TCX_CUDA || array->device.type < 0 || array->device.id < 0 ||
         (array->device.type == TCX_CPU && array->device.id != 0))) {
        return error(STATUS_INVALID,
                     "device (%d, %d): memory is on the CPU (1, 0) or a CUDA device (2, n)",
                     (int)array->device.type, (int)array->device.id);
    }
    if (nbytes > 0 && !array->data) {
        return error(STATUS_INVALID, "an array of %llu bytes has no data",
                     (unsigned long long)nbytes);
    }
    *ret_nbytes = nbytes;
    return STATUS_OK;
}

int layout_is_contiguous(const tcx_array_t *array) {
    return shape_is_contiguous(array->ndim, array->shape, array->strides);
}

static int compare_numbers(int64_t a, int64_t b) {
    return (a > b) - (a < b);
}

int layout_compare(const tcx_array_t *a, const tcx_array_t *b) {
    int64_t a_strides[TCX_NDIM_MAX];
    int64_t b_strides[TCX_NDIM_MAX];
    int order = compare_numbers((intptr_t)a->data, (intptr_t)b->data);

    order = order ? order : memcmp(&a->dtype, &b->dtype, sizeof a->dtype);
    order = order ? order : compare_numbers(a->ndim, b->ndim);
    for (int32_t i = 0; !order && i < a->ndim; i++) {
        order = compare_numbers(a->shape[i], b->shape[i]);
    }
    if (order || (!a->strides && !b->strides)) {
        return order;
    }
    shape_strides(a->ndim, a->shape, a_strides);
    shape_strides(b->ndim, b->shape, b_strides);
    for (int32_t i = 0; !order && i < a->ndim; i++) {
        order = compare_numbers(a->strides ? a->strides[i] : a_strides[i],
                                b->strides ? b->strides[i] : b_strides[i]);
    }
    return order;
}

void layout_describe(const tcx_array_t *array, uint16_t device, uint64_t byte_offset,
                     uint32_t flags, struct desc *ret_desc) {
    /* Not as one: that would set all dimensions to 0, which takes longer than a short message. */
    ret_desc->dtype = (struct desc_dtype){array->dtype.code, array->dtype.bits, array->dtype.lanes};
    ret_desc->device_type = device ? TCX_CUDA : TCX_CPU;
    ret_desc->device = device;
    ret_desc->flags = flags;
    ret_desc->ndim = array->ndim;
    ret_desc->byte_offset = byte_offset;
    for (int32_t i = 0; i < array->ndim; i++) {
        ret_desc->shape[i] = array->shape[i];
    }
    shape_strides(array->ndim, array->shape, ret_desc->strides);
}

/* -------------------------------------------------------------------------------------- packing */

/* The loops a copy needs: dimensions of size 1 left out, neighbours that lie together joined. The
 * innermost is the last. Addresses are computed as unsigned numbers: strides may be anything. */
struct loops {
    size_t itemsize;
    int ndim;
    uint64_t count[TCX_NDIM_MAX];
    uint64_t step[TCX_NDIM_MAX]; /* bytes, modulo 2^64 */
};

static void loops_init(const tcx_array_t *array, struct loops *loops) {
    int64_t strides[TCX_NDIM_MAX];
    int n = 0;

    loops->itemsize = layout_itemsize(array->dtype);
    if (!array->strides) {
        shape_strides(array->ndim, array->shape, strides);
    }
    for (int32_t i = 0; i < array->ndim; i++) {
        uint64_t count = (uint64_t)array->shape[i];
        uint64_t step =
            (uint64_t)(array->strides ? array->strides[i] : strides[i]) * loops->itemsize;
        if (count == 1) {
            continue;
        }
        if (n > 0 && loops->step[n - 1] == step * count) {
            loops->count[n - 1] *= count;
            loops->step[n - 1] = step;
        } else {
            loops->count[n] = count;
            loops->step[n] = step;
            n++;
        }
    }
    loops->ndim = n;
}

#define COPY_ITEMS(type)                                                     \
    do {                                                                     \
        for (uint64_t i = 0; i < count; i++) {                               \
            memcpy(to + i * sizeof(type), (const void *)from, sizeof(type)); \
            from += step;                                                    \
        }                                                                    \
    } while (0)

struct item16 {
    uint64_t halves[2];
};

/* One innermost row. A memcpy of known size is a plain load and store. */
static void copy_row(char *to, uintptr_t from, uint64_t count, uint64_t step, size_t itemsize) {
    if (step == itemsize) {
        memcpy(to, (const void *)from, count * itemsize);
        return;
    }
    switch (itemsize) {
    case 1:
        COPY_ITEMS(uint8_t);
        break;
    case 2:
        COPY_ITEMS(uint16_t);
        break;
    case 4:
        COPY_ITEMS(uint32_t);
        break;
    case 8:
        COPY_ITEMS(uint64_t);
        break;
    default:
        COPY_ITEMS(struct item16);
        break;
    }
}

void layout_pack(const tcx_array_t *array, void *to) {
    struct loops loops;
    uint64_t at[TCX_NDIM_MAX] = {0};
    uintptr_t from = (uintptr_t)array->data;
    char *out = to;

    for (int32_t i = 0; i < array->ndim; i++) {
        if (array->shape[i] == 0) {
            return;
        }
    }
    loops_init(array, &loops);
    if (loops.ndim == 0) {
        memcpy(out, (const void *)from, loops.itemsize);
        return;
    }

    int inner = loops.ndim - 1;
    size_t row = loops.count[inner] * loops.itemsize;
    for (;;) {
        copy_row(out, from, loops.count[inner], loops.step[inner], loops.itemsize);
        out += row;
        int i = inner - 1;
        for (; i >= 0; i--) {
            from += loops.step[i];
            if (++at[i] < loops.count[i]) {
                break;
            }
            from -= loops.step[i] * loops.count[i];
            at[i] = 0;
        }
        if (i < 0) {
            return;
        }
    }
}
