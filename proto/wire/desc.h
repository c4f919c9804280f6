/*
 * desc.h - the description of a tensor: dtype, shape, strides, byte offset, flags
 *
 * One compact form for the wire, for the daemon's catalog and for the index of a bundle. What it
 * says comes from a peer, so desc_decode() and desc_check() are called on every one before it is
 * used.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define DESC_NDIM_MAX 64 /* as NumPy; WIRE_DESC_MAX follows from it */

/* dtype as in DLPack: `bits` of one lane; e.g. float32 is {2, 32, 1}, bool {6, 8, 1}. */
struct desc_dtype {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
};

enum desc_flag {
    DESC_READONLY = 1, /* nobody may write any more */
    DESC_BUNDLE = 2,   /* not a tensor: uint8[n] at byte_offset is the index of a bundle */
};

struct desc {
    struct desc_dtype dtype;
    uint16_t device_type; /* as in DLPack; 1 is the CPU, 2 CUDA */
    uint16_t device;      /* index of DEVICES (messages.h); 0: the CPU */
    uint32_t flags;       /* enum desc_flag */
    int32_t ndim;         /* 0 to DESC_NDIM_MAX */
    uint64_t byte_offset; /* of the first element in the storage */
    int64_t shape[DESC_NDIM_MAX];
    int64_t strides[DESC_NDIM_MAX]; /* in elements */
};

/* Writes the encoded form and returns its size, 24 + 16 * ndim bytes. */
size_t desc_encode(const struct desc *desc, void *ret_bytes);

/* Reads one description from exactly `nbytes` bytes. NULL, or a text that says what is wrong. */
const char *desc_decode(const void *bytes, size_t nbytes, struct desc *ret_desc);

/* Whether every element lies inside a storage of `storage_nbytes`: dtype of whole bytes, no
 * negative dimension, no overflow. NULL, or a text that says what is wrong. */
const char *desc_check(const struct desc *desc, uint64_t storage_nbytes);

/* Bytes of one element: bits * lanes / 8; 0 when it is not a whole number of bytes. */
size_t dtype_nbytes(struct desc_dtype dtype);

/* elements * itemsize into *ret_nbytes, checked; false for a negative dimension or beyond
 * INT64_MAX. A shape with a 0 is 0 bytes, whatever its other dimensions are. */
int shape_nbytes(int32_t ndim, const int64_t *shape, size_t itemsize, uint64_t *ret_nbytes);

/* Fills `ret_strides` (elements) for C order. Strides of empty shapes are those of max(dimension,
 * 1). */
void shape_strides(int32_t ndim, const int64_t *shape, int64_t *ret_strides);

/* Whether the layout is C-contiguous. NULL strides are; strides of dimensions of size 1, and all
 * strides of an empty shape, mean nothing and are ignored. */
int shape_is_contiguous(int32_t ndim, const int64_t *shape, const int64_t *strides);
