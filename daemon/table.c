#include "table.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum { BITS_MIN = 4, MOVE_SLOTS = 8, KEEP_BITS = 10 };

static const uint64_t moved = UINT64_MAX; /* key of a slot in `old` whose entry is gone */

static size_t home(uint64_t key, unsigned bits) {
    return (size_t)(key * 0x9e3779b97f4a7c15u >> (64 - bits));
}

/* The slot of `key`, or the free one where its probe ends. */
static struct table_slot *probe(struct table_slot *slots, unsigned bits, uint64_t key) {
    size_t mask = ((size_t)1 << bits) - 1;
    size_t i = home(key, bits);

    while (slots[i].key != 0 && slots[i].key != key) {
        i = (i + 1) & mask;
    }
    return &slots[i];
}

static struct table_slot *find(const struct table *table, uint64_t key) {
    assert(key != 0 && key != moved);
    if (table->slots) {
        struct table_slot *slot = probe(table->slots, table->bits, key);
        if (slot->key) {
            return slot;
        }
    }
    if (table->old) {
        struct table_slot *slot = probe(table->old, table->old_bits, key);
        if (slot->key) {
            return slot;
        }
    }
    return NULL;
}

static void move_some(struct table *table, size_t count) {
    size_t size = (size_t)1 << table->old_bits;

    while (table->old && count-- > 0) {
        struct table_slot *from = &table->old[table->old_next++];
        if (from->key != 0 && from->key != moved) {
            *probe(table->slots, table->bits, from->key) = *from;
            from->key = moved;
        }
        if (table->old_next == size) {
            free(table->old);
            table->old = NULL;
        }
    }
}

static int grow(struct table *table) {
    unsigned bits = table->slots ? table->bits + 1 : BITS_MIN;
    struct table_slot *slots = calloc((size_t)1 << bits, sizeof *slots);

    if (!slots) {
        return -ENOMEM;
    }
    move_some(table, SIZE_MAX);
    table->old = table->slots;
    table->old_bits = table->bits;
    table->old_next = 0;
    table->slots = slots;
    table->bits = bits;
    return 0;
}

void table_init(struct table *table) {
    *table = (struct table){0};
}

void table_fini(struct table *table) {
    free(table->slots);
    free(table->old);
    table_init(table);
}

void *table_find(const struct table *table, uint64_t key) {
    struct table_slot *slot = find(table, key);

    return slot ? slot->value : NULL;
}

int table_set(struct table *table, uint64_t key, void *value) {
    struct table_slot *slot = find(table, key);

    assert(value);
    if (slot) {
        slot->value = value;
        return 0;
    }
    /* At most seven eighths are used: ids that follow each other hardly collide. */
    if (!table->slots || (table->count + 1) * 8 > ((size_t)7 << table->bits)) {
        int r = grow(table);
        if (r < 0) {
            return r;
        }
    }
    move_some(table, MOVE_SLOTS);
    *probe(table->slots, table->bits, key) = (struct table_slot){key, value};
    table->count++;
    return 0;
}

/* Frees a slot and closes the gap, so that no probe ends too early. */
static void close_gap(struct table *table, size_t gap) {
    size_t mask = ((size_t)1 << table->bits) - 1;

    for (size_t i = (gap + 1) & mask; table->slots[i].key; i = (i + 1) & mask) {
        size_t wants = home(table->slots[i].key, table->bits);
        if (((i - wants) & mask) >= ((i - gap) & mask)) {
            table->slots[gap] = table->slots[i];
            gap = i;
        }
    }
    table->slots[gap].key = 0;
}

void *table_remove(struct table *table, uint64_t key) {
    struct table_slot *slot = find(table, key);

    if (!slot) {
        return NULL;
    }
    void *value = slot->value;
    if (slot >= table->slots && slot < table->slots + ((size_t)1 << table->bits)) {
        close_gap(table, (size_t)(slot - table->slots));
    } else {
        slot->key = moved;
    }
    table->count--;
    if (table->count == 0 && table->bits > KEEP_BITS) {
        table_fini(table);
    } else {
        move_some(table, MOVE_SLOTS);
    }
    return value;
}

int table_next(const struct table *table, size_t *cursor, uint64_t *ret_key, void **ret_value) {
    size_t size = table->slots ? (size_t)1 << table->bits : 0;
    size_t old_size = table->old ? (size_t)1 << table->old_bits : 0;

    while (*cursor < size + old_size) {
        size_t i = (*cursor)++;
        const struct table_slot *slot = i < size ? &table->slots[i] : &table->old[i - size];
        if (slot->key != 0 && slot->key != moved) {
            *ret_key = slot->key;
            *ret_value = slot->value;
            return 1;
        }
    }
    return 0;
}
