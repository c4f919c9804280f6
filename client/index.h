/*
 * index.h - the index of a bundle: which tensors it has, under which paths, and where
 *
 * It lies in the bundle's packed storage, behind the arrays, and other processes read it: its
 * layout is part of WIRE_LAYOUT. Whoever could write the storage could write the index, so the
 * reader copies it first and then believes nothing.
 *
 *     head; ids of other storages (uint64); items
 *     item: item head; description (as in desc.h, none for an empty mapping);
 *           keys, each a uint16 length, the bytes and a 0; zeroes up to a multiple of 8
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "desc.h"

#define INDEX_DEPTH_MAX 64
#define INDEX_KEY_MAX   65535

/* -------------------------------------------------------------------------------------- writing */

struct index_writer {
    char *bytes; /* owned */
    size_t nbytes;
    size_t capacity;
    int is_out_of_memory;
};

/* Begins an index of `items` items that refers to `count` other storages. */
void index_begin(struct index_writer *writer, uint32_t items, const uint64_t *storages,
                 uint32_t count);

/* One item. `storage` 0: the bundle's own; n: storages[n - 1]. `desc` NULL: an empty mapping. Keys
 * have been checked. */
void index_add(struct index_writer *writer, const char *const *path, size_t depth, uint32_t storage,
               const struct desc *desc);

void index_free(struct index_writer *writer);

/* -------------------------------------------------------------------------------------- reading */

struct index_reader {
    const char *at; /* borrowed: the caller's copy of the index */
    const char *end;
    uint32_t items;           /* how many there are */
    uint32_t storage_count;   /* other storages */
    const uint64_t *storages; /* their ids, in the copy */
};

struct index_item {
    const char *path[INDEX_DEPTH_MAX]; /* in the copy, each ends with a 0 */
    size_t depth;
    uint32_t storage; /* at most storage_count */
    int has_tensor;
    struct desc desc;
};

/* Both: NULL, or a text that says what is wrong. `bytes` is aligned to 8. */
const char *index_open(struct index_reader *reader, const void *bytes, size_t nbytes);
const char *index_next(struct index_reader *reader, struct index_item *ret_item);
