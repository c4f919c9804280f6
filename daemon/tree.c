#include "tree.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

static uint64_t priority(const struct tree_node *node) {
    uint64_t x = (uintptr_t)node;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

struct tree_node *tree_find(const struct tree *tree, const void *key) {
    struct tree_node *node = tree->root;

    while (node) {
        int order = tree->compare(key, node);
        if (order == 0) {
            break;
        }
        node = order < 0 ? node->left : node->right;
    }
    return node;
}

struct tree_node *tree_seek(const struct tree *tree, const void *key, int after) {
    struct tree_node *node = tree->root;
    struct tree_node *best = NULL;

    while (node) {
        int order = tree->compare(key, node);
        if (order < 0 || (order == 0 && !after)) {
            best = node;
            node = node->left;
        } else {
            node = node->right;
        }
    }
    return best;
}

struct tree_node *tree_first(const struct tree *tree) {
    struct tree_node *node = tree->root;

    while (node && node->left) {
        node = node->left;
    }
    return node;
}

/* Cuts the tree below `node` into what sorts before and after `key`. */
static void split(const struct tree *tree, const void *key, struct tree_node *node,
                  struct tree_node **before, struct tree_node **after) {
    while (node) {
        if (tree->compare(key, node) < 0) {
            *after = node;
            after = &node->left;
            node = node->left;
        } else {
            *before = node;
            before = &node->right;
            node = node->right;
        }
    }
    *before = *after = NULL;
}

void tree_insert(struct tree *tree, const void *key, struct tree_node *node) {
    struct tree_node **at = &tree->root;

    while (*at && priority(*at) >= priority(node)) {
        at = tree->compare(key, *at) < 0 ? &(*at)->left : &(*at)->right;
    }
    split(tree, key, *at, &node->left, &node->right);
    *at = node;
}

void tree_remove(struct tree *tree, const void *key, struct tree_node *node) {
    struct tree_node **at = &tree->root;
    struct tree_node *before = node->left;
    struct tree_node *after = node->right;

    while (*at != node) {
        assert(*at);
        at = tree->compare(key, *at) < 0 ? &(*at)->left : &(*at)->right;
    }
    while (before && after) {
        if (priority(before) >= priority(after)) {
            *at = before;
            at = &before->right;
            before = before->right;
        } else {
            *at = after;
            at = &after->left;
            after = after->left;
        }
    }
    *at = before ? before : after;
}
