#include "heap.h"

/* Puts `node`, with what is below it, where `at` points from, before `next`. */
static void place(struct heap_node *node, struct heap_node **at, struct heap_node *next) {
    *at = node;
    node->at = at;
    node->next = next;
    if (next) {
        next->at = &node->next;
    }
}

/* Makes one tree of two, whose places are free afterwards. Of equals the newer comes first: many,
 * pushed one by one, are a chain then, from which the first is taken at once. */
static struct heap_node *join(struct heap_node *a, struct heap_node *b) {
    if (a->key <= b->key) {
        struct heap_node *larger = b;
        b = a;
        a = larger;
    }
    place(b, &a->child, a->child);
    return a;
}

/* Makes one tree of siblings: of pairs first, then of all. NULL for NULL. */
static struct heap_node *join_all(struct heap_node *first) {
    struct heap_node *pairs = NULL;
    struct heap_node *all = NULL;

    while (first) {
        struct heap_node *a = first;
        struct heap_node *b = a->next;
        first = b ? b->next : NULL;
        if (b) {
            a = join(a, b);
        }
        a->next = pairs;
        pairs = a;
    }
    while (pairs) {
        struct heap_node *next = pairs->next;
        all = all ? join(all, pairs) : pairs;
        pairs = next;
    }
    return all;
}

void heap_meld(struct heap *heap, struct heap *from) {
    struct heap_node *root = from->root;

    if (root) {
        from->root = NULL;
        place(heap->root ? join(heap->root, root) : root, &heap->root, NULL);
    }
}

void heap_push(struct heap *heap, struct heap_node *node) {
    struct heap one = {node};

    node->child = NULL;
    heap_meld(heap, &one);
}

void heap_remove(struct heap_node *node) {
    struct heap_node *below = join_all(node->child);

    if (below) {
        place(below, node->at, node->next);
    } else {
        *node->at = node->next;
        if (node->next) {
            node->next->at = node->at;
        }
    }
    node->at = NULL;
}

struct heap_node *heap_pop(struct heap *heap) {
    struct heap_node *largest = heap->root;

    if (largest) {
        heap_remove(largest);
    }
    return largest;
}
