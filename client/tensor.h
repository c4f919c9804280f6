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
    struct tcx_tensor *next; /* reclaim.c */
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

/* Memory that a peer's description is about: a storage, or a part of one. */
struct place {
    struct session *session; /* borrowed */
    char *address;           /* NULL: there are no bytes */
    uint64_t nbytes;
    struct device *device; /* NULL: the CPU, or there are no bytes */
    uint16_t device_index; /* the daemon's number of it */
};

static inline struct place place_of(const struct storage *storage) {
    return (struct place){storage->session, storage->address, storage->nbytes, storage->device,
                          storage->device_index};
}

/* A writable C-contiguous tensor of the array's dtype, shape, data and device, whose size has been
 * checked. Owns nothing yet: the caller sets `storage`, `base` or `foreign`. NULL: out of memory,
 * error set.
 */
struct tcx_tensor *tensor_create(const tcx_array_t *array, uint64_t nbytes,
                                 const struct name_tag *tag);

/* After the last reference; on a device when nothing runs there any more that may use it. */
void tensor_destroy(struct tcx_tensor *tensor);

/* A tensor in a place as a description of a peer says, after checking that it lies inside. Owns
 * nothing yet, as above. */
int tensor_at(const struct place *place, const struct desc *desc, int readonly,
              const struct name_tag *tag, struct tcx_tensor **ret_tensor);

/* The same in `storage`. Takes the storage, also on failure. */
int tensor_from_desc(struct storage *storage, const struct desc *desc, int readonly,
                     const struct name_tag *tag, struct tcx_tensor **ret_tensor);

/* Fresh storage of the array's size on `device`, and a tensor that describes all of it; `data`,
 * strides and device of `array` are not looked at. The size has been checked. Asks the daemon. */
int tensor_allocate(struct session *session, const struct device *device, const tcx_array_t *array,
                    uint64_t nbytes, const struct name_tag *tag, struct tcx_tensor **ret_tensor);
