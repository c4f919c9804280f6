/*
 * tree.h - sorted tree whose nodes lie in its members (a treap)
 *
 * A node's priority is a hash of its address, so that it costs two pointers. A member must stay
 * where it is while it is in a tree. Nothing here allocates.
 */
#pragma once

struct tree_node {
    struct tree_node *left, *right;
};

/* Below, equal to or above 0 as `key` sorts before, at or after the node. */
typedef int (*tree_compare_fn)(const void *key, const struct tree_node *node);

struct tree {
    struct tree_node *root;
    tree_compare_fn compare;
};

struct tree_node *tree_find(const struct tree *tree, const void *key);

/* The first node at or after `key`; with `after` strictly after it. NULL: none. */
struct tree_node *tree_seek(const struct tree *tree, const void *key, int after);

struct tree_node *tree_first(const struct tree *tree);

/* `key` is that of `node` and not in the tree (insert), in the tree (remove). */
void tree_insert(struct tree *tree, const void *key, struct tree_node *node);
void tree_remove(struct tree *tree, const void *key, struct tree_node *node);
