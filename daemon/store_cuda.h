/*
 * store_cuda.h - what the kinds of CUDA memory have in common
 */
#pragma once

#include "bytes.h"
#include "device.h"
#include "driver.h"
#include "list.h"

/* Segments are multiples of it: what shares such a block with another program is seen by it. */
#define STORE_CUDA_UNIT (2 * MIB)

/* The granularity of allocations that can be exported. */
CUresult store_cuda_granularity(const struct device *device, uint64_t *ret_nbytes);

/* The driver, which is loaded, or there would be no segments of a device. */
const struct cuda_driver *store_cuda_driver(void);

/* What an operation returns when `call` ended with `result`. */
int store_cuda_failed(struct backing *backing, const char *call, CUresult result);

/* A segment is made by its only commit. */
int store_cuda_create(struct backing *backing, uint64_t nbytes);

static inline struct device *store_cuda_device(const struct backing *backing) {
    return container_of(backing->store, struct device, store);
}
