/* The heap: the largest first, whatever was added, melded and taken out before. */
#include <stdlib.h>

#include "fixture.h"
#include "heap.h"

enum { NODES = 200 };

static struct heap_node nodes[NODES];

/* Empties the heap; returns how many there were, and expects them in order. */
static int drain(struct heap *heap) {
    uint64_t last = UINT64_MAX;
    int count = 0;

    for (struct heap_node *node; (node = heap_pop(heap)); count++) {
        EXPECT_TRUE(node->key <= last);
        EXPECT_TRUE(node->at == NULL);
        last = node->key;
    }
    return count;
}

TEST(an_empty_heap_has_no_largest) {
    struct heap heap = {0};
    struct heap other = {0};

    heap_meld(&heap, &other);
    EXPECT_TRUE(heap_pop(&heap) == NULL);
}

TEST(the_largest_comes_first) {
    for (unsigned seed = 0; seed < 50; seed++) {
        struct heap heap = {0};
        srand(seed);
        for (int i = 0; i < NODES; i++) {
            nodes[i].key = (uint64_t)rand() % (seed + 1);
            heap_push(&heap, &nodes[i]);
        }
        EXPECT_EQ(NODES, drain(&heap));
    }
}

TEST(anything_can_be_taken_out) {
    for (unsigned seed = 0; seed < 50; seed++) {
        struct heap heap = {0};
        int left = 0;
        srand(seed);
        for (int i = 0; i < 20 * NODES; i++) {
            struct heap_node *node = &nodes[rand() % NODES];
            if (node->at) {
                heap_remove(node);
                left--;
            } else if (i < 10 * NODES) {
                node->key = (uint64_t)rand();
                heap_push(&heap, node);
                left++;
            } else if (heap_pop(&heap)) {
                left--;
            }
        }
        EXPECT_EQ(left, drain(&heap));
    }
}

TEST(melded_heaps_are_one) {
    struct heap heaps[4] = {0};

    for (int i = 0; i < NODES; i++) {
        nodes[i].key = (uint64_t)(i * 7 % 31);
        heap_push(&heaps[i % 4], &nodes[i]);
    }
    heap_meld(&heaps[0], &heaps[1]);
    heap_meld(&heaps[3], &heaps[2]);
    heap_meld(&heaps[0], &heaps[3]);
    for (int i = 1; i < 4; i++) {
        EXPECT_TRUE(heaps[i].root == NULL);
    }
    for (int i = 0; i < NODES; i += 3) {
        heap_remove(&nodes[i]);
    }
    EXPECT_EQ(NODES - (NODES + 2) / 3, drain(&heaps[0]));
}
