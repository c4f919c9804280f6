/*
 * layout.h - arrays that this process can reach: are they well-formed, and pack them
 *
 * Knows dtypes, shapes and strides; knows nothing of clients, storages or DLPack.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "desc.h"
#include "tensorcx.h"

/* Whether the array can be read: dimensions, dtype known to storage, size, data. STATUS_OK and the
 * packed size in *ret_nbytes, STATUS_INVALID or STATUS_EXCHANGE. */
int layout_check(const tcx_array_t *array, uint64_t *ret_nbytes);

/* Dtype, dimensions and size alone, for memory that does not exist yet. */
int layout_check_shape(tcx_dtype_t dtype, int32_t ndim, const int64_t *shape, uint64_t *ret_nbytes);

size_t layout_itemsize(tcx_dtype_t dtype);
int layout_is_contiguous(const tcx_array_t *array);

/* An order of checked arrays in which those with the same memory and layout are equal: negative, 0
 * or positive. */
int layout_compare(const tcx_array_t *a, const tcx_array_t *b);

/* Copies a checked array, packed in C order, to `to`; both on the CPU. */
void layout_pack(const tcx_array_t *array, void *to);

/* The description of a C-contiguous tensor of the array's dtype and shape; `device` is the daemon's
 * number of it. */
void layout_describe(const tcx_array_t *array, uint16_t device, uint64_t byte_offset,
                     uint32_t flags, struct desc *ret_desc);

/* A dtype as people write it ("float32", "bfloat16"); static or in `buffer`. */
#define DTYPE_TEXT_SIZE 32
const char *dtype_text(uint8_t code, uint8_t bits, uint16_t lanes, char buffer[DTYPE_TEXT_SIZE]);
