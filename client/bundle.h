/*
 * bundle.h - struct tcx_bundle: an ordered tree of tensors that came from one storage's index
 */
#pragma once

#include <stdatomic.h>

#include "desc.h"
#include "storage.h"
#include "tensor.h"

struct bundle_item {
    const char *const *path; /* in tcx_bundle::keys */
    size_t depth;
    struct tcx_tensor *tensor; /* counted; NULL: an empty mapping */
};

struct tcx_bundle {
    atomic_int refs;
    int is_readonly;
    struct storage *storage; /* counted: the packed one, with the index; NULL: `base` has it */
    struct tcx_tensor *base; /* counted: the bytes of a message's buffer; NULL: `storage` */
    uint64_t version;
    uint64_t nbytes;       /* sum over the tensors */
    char *name;            /* owned; NULL: none */
    uint64_t index_offset; /* in the packed bytes */
    size_t index_nbytes;
    char *index;               /* owned: a private copy, in which the keys lie */
    const char **keys;         /* owned: the paths of all items, one after the other */
    struct bundle_item *items; /* owned */
    size_t count;
};

/* Opens the bundle whose index `desc` describes in `storage`. Takes the storage, also on failure.
 * Asks the daemon for storages that the index refers to and that we do not hold. */
int bundle_open(struct session *session, struct storage *storage, const struct desc *desc,
                int readonly, const struct name_tag *tag, struct tcx_bundle **ret_bundle);

/* The same in the bytes that `base` has. Takes `base`, also on failure. */
int bundle_open_in(struct session *session, struct tcx_tensor *base, const struct desc *desc,
                   struct tcx_bundle **ret_bundle);
