/*
 * table.h - hash table from 64-bit keys (ids; neither 0 nor UINT64_MAX) to pointers
 *
 * Grows in steps: each change moves a few slots, so that no single one is slow. Owns its slots, not
 * what the values point to.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct table_slot {
    uint64_t key; /* 0: free */
    void *value;
};

struct table {
    struct table_slot *slots; /* owned; 2^bits of them, NULL in an empty table */
    struct table_slot *old;   /* owned; what is still to be moved, NULL otherwise */
    unsigned bits, old_bits;
    size_t old_next; /* slots of `old` before this one are moved */
    size_t count;
};

/* All zeroes is an empty table as well. */
void table_init(struct table *table);
void table_fini(struct table *table);

/* The value of `key`, or NULL. */
void *table_find(const struct table *table, uint64_t key);

/* Adds or replaces; `value` is not NULL. 0 or -ENOMEM (replacing never fails). */
int table_set(struct table *table, uint64_t key, void *value);

/* Removes `key` and returns its value, or NULL. */
void *table_remove(struct table *table, uint64_t key);

/* Steps through all entries in no order: start with *cursor 0; false at the end. The table must not
 * change meanwhile. */
int table_next(const struct table *table, size_t *cursor, uint64_t *ret_key, void **ret_value);
