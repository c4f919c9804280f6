/*
 * dlpack_fixture.h - managed tensors forged by hand, whose deleters count
 */
#pragma once

#include <dlpack/dlpack.h>

#include "own_daemon.h"

static int deleted;

static inline void count_versioned(struct DLManagedTensorVersioned *self) {
    (void)self;
    __atomic_fetch_add(&deleted, 1, __ATOMIC_SEQ_CST);
}

static inline void count_legacy(struct DLManagedTensor *self) {
    (void)self;
    __atomic_fetch_add(&deleted, 1, __ATOMIC_SEQ_CST);
}

/* A float32 (2, 3) on the CPU, of which a test changes what it is about. */
struct forged {
    _Alignas(64) float data[16];
    int64_t shape[TCX_NDIM_MAX];
    int64_t strides[TCX_NDIM_MAX];
    struct DLManagedTensorVersioned versioned;
    struct DLManagedTensor legacy;
};

static inline DLTensor *forge(struct forged *forged) {
    *forged = (struct forged){
        .data = {0, 1, 2, 3, 4, 5, 6, 7},
        .shape = {2, 3},
        .strides = {3, 1},
        .versioned =
            {
                .version = {1, 3},
                .deleter = count_versioned,
                .dl_tensor = {.device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1}},
            },
    };
    forged->versioned.dl_tensor.data = forged->data;
    forged->versioned.dl_tensor.shape = forged->shape;
    forged->versioned.dl_tensor.strides = forged->strides;
    deleted = 0;
    return &forged->versioned.dl_tensor;
}

static inline int import_as(struct forged *forged, tcx_copy_mode_t copy,
                            tcx_tensor_t **ret_tensor) {
    return tcx_from_dlpack(NULL, &forged->versioned, copy, ret_tensor);
}
