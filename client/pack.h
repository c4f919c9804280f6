/*
 * pack.h - a bundle to be put or sent: its private arrays, packed one after the other, and the
 * index
 *
 * What is to be on a CUDA device is packed there, into a storage of its own, and then referred to
 * like what was shared before.
 */
#pragma once

#include "desc.h"
#include "index.h"
#include "publish.h"
#include "storage.h"
#include "tensorcx.h"

struct pack {
    struct entry *entries; /* owned; in the caller's order */
    struct entry **sorted; /* owned array, borrowed entries: scratch */
    size_t count;
    uint64_t *ids; /* owned: of the storages referred to, ascending, no two the same */
    uint32_t id_count;
    uint64_t data_nbytes; /* of the private arrays on the CPU */
    struct part *parts;   /* owned: those on devices */
    size_t part_count;
    struct index_writer index;
};

/* Checks all items and holds what they refer to; of `publication` whether copies are made, and
 * where to. What it copies to devices is complete. May ask the daemon. To be given to pack_fini()
 * also on failure. */
int pack_init(struct pack *pack, struct session *session, const struct publication *publication,
              const tcx_item_t *items, size_t count);
void pack_fini(struct pack *pack);

/* Of the packed bytes: arrays, then the index. */
uint64_t pack_nbytes(const struct pack *pack);

/* As copy_array(). */
int pack_write(const struct pack *pack, char *to);

/* The description of the index in them. */
void pack_describe(const struct pack *pack, uint32_t flags, struct desc *ret_desc);

/* A new storage with the packed bytes, which keeps alive what they refer to. Asks the daemon. */
int pack_store(const struct pack *pack, struct session *session, struct storage **ret_storage);
