/*
 * copy.h - elements from anywhere to anywhere: the CPU, a CUDA device, another one
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "device.h"
#include "layout.h"

static inline int array_is_on_device(const tcx_array_t *array) {
    return array->device.type == TCX_CUDA;
}

/* Copies a checked array, packed in C order, to `to`, which is on `device` (NULL: the CPU). Begins
 * when the work in the array's stream is done, and is done on return. Between two CPU addresses it
 * cannot fail. STATUS_EXCHANGE: strided on a device; STATUS_DEVICE, STATUS_OUT_OF_MEMORY. */
int copy_across(const tcx_array_t *source, struct device *device, void *to);

static inline int copy_array(const tcx_array_t *source, struct device *device, void *to) {
    if (device || array_is_on_device(source)) {
        return copy_across(source, device, to);
    }
    layout_pack(source, to);
    return 0;
}

/* Bytes of the CPU to `to` on `device`, as above. */
int copy_bytes(const void *from, size_t nbytes, struct device *device, void *to);

/* Zeroes. Done on return. */
int copy_zeroes(struct device *device, void *to, size_t nbytes);

/* Before what the array describes is shown to others: waits for the work in its stream. */
int copy_wait(const tcx_array_t *array);
