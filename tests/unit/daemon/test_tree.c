/* The sorted tree, against an array of what should be in it. */
#include <stdlib.h>

#include "fixture.h"
#include "list.h" /* container_of */
#include "tree.h"

enum { COUNT = 2000 };

struct item {
    int key;
    struct tree_node node;
};

static int compare(const void *key, const struct tree_node *node) {
    int wanted = *(const int *)key;
    int here = container_of(node, struct item, node)->key;

    return (wanted > here) - (wanted < here);
}

static int key_of(const struct tree_node *node) {
    return node ? container_of(node, struct item, node)->key : -1;
}

/* Items with the even keys 0 to 2 * COUNT - 2, put in in a scrambled order. */
static void fill(struct tree *tree, struct item *items) {
    for (int i = 0; i < COUNT; i++) {
        struct item *item = &items[(i * 997) % COUNT];
        item->key = (int)(item - items) * 2;
        tree_insert(tree, &item->key, &item->node);
    }
}

TEST(an_empty_tree_has_nothing) {
    struct tree tree = {.compare = compare};
    int key = 1;

    EXPECT_TRUE(!tree_find(&tree, &key) && !tree_first(&tree) && !tree_seek(&tree, &key, 0));
}

TEST(what_was_put_in_is_found_and_nothing_else) {
    static struct item items[COUNT];
    struct tree tree = {.compare = compare};

    fill(&tree, items);
    for (int key = -1; key <= 2 * COUNT; key++) {
        int there = key >= 0 && key < 2 * COUNT && key % 2 == 0;
        EXPECT_EQ(there ? key : -1, key_of(tree_find(&tree, &key)));
    }
}

TEST(seeking_goes_in_order) {
    static struct item items[COUNT];
    struct tree tree = {.compare = compare};

    fill(&tree, items);
    EXPECT_EQ(0, key_of(tree_first(&tree)));
    for (int key = 0; key < 2 * COUNT - 2; key++) {
        int at_or_after = key + key % 2;
        int after = key % 2 ? key + 1 : key + 2;
        EXPECT_EQ(at_or_after, key_of(tree_seek(&tree, &key, 0)));
        EXPECT_EQ(after, key_of(tree_seek(&tree, &key, 1)));
    }
    int last = 2 * COUNT - 2;
    EXPECT_EQ(-1, key_of(tree_seek(&tree, &last, 1)));
}

TEST(removing_leaves_the_others_in_order) {
    static struct item items[COUNT];
    struct tree tree = {.compare = compare};

    fill(&tree, items);
    for (int i = 0; i < COUNT; i++) {
        if (i % 3) {
            tree_remove(&tree, &items[i].key, &items[i].node);
        }
    }
    const struct tree_node *node = tree_first(&tree);
    for (int i = 0; i < COUNT; i += 3) {
        EXPECT_EQ(2 * i, key_of(node));
        node = tree_seek(&tree, &items[i].key, 1);
    }
    EXPECT_TRUE(node == NULL);
}

static int depth_of(const struct tree_node *node) {
    if (!node) {
        return 0;
    }
    int left = depth_of(node->left);
    int right = depth_of(node->right);
    return 1 + (left > right ? left : right);
}

TEST(sorted_input_does_not_make_it_a_list) {
    enum { MANY = 50000 };
    struct item *items = calloc(MANY, sizeof *items);
    struct tree tree = {.compare = compare};

    for (int i = 0; i < MANY; i++) {
        items[i].key = i;
        tree_insert(&tree, &items[i].key, &items[i].node);
    }
    EXPECT_TRUE(depth_of(tree.root) < 100);
    free(items);
}
