/*
 * tensor.h - struct tcx_tensor: an immutable description and what keeps its memory alive
 *
 * Its memory is a storage of the daemon's, or foreign memory that came by DLPack, or both: a view
 * of a storage that came back through a framework keeps the framework's object, too.
 */
#pragma once

#include <stdatomic.h>

#include "desc.h"
#include "storage.h"
#include "tensorcx.h"

struct tcx_tensor {
    atomic_int refs;
    struct storage *storage; /* counted; NULL: private memory only */
    struct tcx_tensor *base; /* counted; it has no base itself and keeps the memory of this one */
    void *foreign;           /* owned; NULL: none */
    void (*release)(void *foreign);
    uint64_t nbytes;
    uint64_t version;
    char *name; /* owned; NULL: none */
    tcx_array_t array;
    int64_t dims[]; /* shape, then strides */
};

struct name_tag {     /* how a tensor was put or got */
    const char *name; /* borrowed; NULL: none */
    uint64_t version;
};

/* A writable C-contiguous tensor of the array's dtype, shape and data, whose size has been checked.
 * Owns nothing yet: the caller sets `storage`, `base` or `foreign`. NULL: out of memory, error set.
 */
struct tcx_tensor *tensor_create(const tcx_array_t *array, uint64_t nbytes,
                                 const struct name_tag *tag);

/* A tensor in the `nbytes` at `address` as a description of a peer says, after checking that it
 * lies inside. Owns nothing yet, as above. */
int tensor_at(char *address, uint64_t nbytes, const struct desc *desc, int readonly,
              const struct name_tag *tag, struct tcx_tensor **ret_tensor);

/* The same in `storage`. Takes the storage, also on failure. */
int tensor_from_desc(struct storage *storage, const struct desc *desc, int readonly,
                     const struct name_tag *tag, struct tcx_tensor **ret_tensor);

/* Fresh storage of the array's size, and a tensor that describes all of it; `data` and strides of
 * `array` are not looked at. The size has been checked. Asks the daemon. */
int tensor_allocate(struct session *session, const tcx_array_t *array, uint64_t nbytes,
                    const struct name_tag *tag, struct tcx_tensor **ret_tensor);
