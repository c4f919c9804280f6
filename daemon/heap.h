/*
 * heap.h - the largest first: a pairing heap whose nodes lie in its members
 *
 * Adding and melding cost the same whatever the size, taking out costs a logarithm over time. A
 * member must stay where it is while it is in a heap. Nothing here allocates.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct heap_node {
    uint64_t key;
    struct heap_node *child; /* the first one: no key below is larger */
    struct heap_node *next;  /* sibling */
    struct heap_node **at;   /* what points to us; NULL: in no heap */
};

struct heap {
    struct heap_node *root; /* the largest; NULL: empty, as is all zeroes */
};

/* `node`, with its key, is in no heap. */
void heap_push(struct heap *heap, struct heap_node *node);

/* Takes `node` out of the heap it is in. */
void heap_remove(struct heap_node *node);

/* Takes the largest out, or returns NULL. */
struct heap_node *heap_pop(struct heap *heap);

/* Moves all of `from` to `heap`. */
void heap_meld(struct heap *heap, struct heap *from);
