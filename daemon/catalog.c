#include "catalog.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"

struct name_waiters {
    struct waitlist list;
    struct catalog *catalog; /* borrowed */
    struct name *name;       /* borrowed: owns us */
};

struct key {
    const char *bytes;
    size_t nbytes;
};

struct end {
    uint64_t end_ms;
    const struct lease *lease;
};

static int compare_bytes(struct key a, struct key b) {
    int order = memcmp(a.bytes, b.bytes, a.nbytes < b.nbytes ? a.nbytes : b.nbytes);

    return order ? order : (a.nbytes > b.nbytes) - (a.nbytes < b.nbytes);
}

static int compare_name(const void *key, const struct tree_node *node) {
    const struct name *name = container_of(node, struct name, by_name);

    return compare_bytes(*(const struct key *)key, (struct key){name->bytes, name->nbytes});
}

/* Leases that end in the same millisecond are told apart by their address. */
static int compare_end(const void *key, const struct tree_node *node) {
    const struct end *end = key;
    const struct lease *lease = container_of(node, struct lease, by_end);

    if (end->end_ms != lease->end_ms) {
        return end->end_ms < lease->end_ms ? -1 : 1;
    }
    return ((uintptr_t)end->lease > (uintptr_t)lease) - ((uintptr_t)end->lease < (uintptr_t)lease);
}

void catalog_init(struct catalog *catalog) {
    catalog->names = (struct tree){.compare = compare_name};
    catalog->expiring = (struct tree){.compare = compare_end};
}

struct name *catalog_find(const struct catalog *catalog, const char *bytes, size_t nbytes) {
    struct tree_node *node = tree_find(&catalog->names, &(struct key){bytes, nbytes});

    return node ? container_of(node, struct name, by_name) : NULL;
}

/* ----------------------------------------------------------------------------------- leases */

static void lease_end(struct catalog *catalog, struct name *name) {
    struct lease *lease = name->lease;

    if (!lease) {
        return;
    }
    if (lease->end_ms != UINT64_MAX) {
        tree_remove(&catalog->expiring, &(struct end){lease->end_ms, lease}, &lease->by_end);
    }
    list_remove(&lease->link);
    free(lease);
    name->lease = NULL;
}

static void lease_begin(struct catalog *catalog, struct name *name, struct lease *lease,
                        const struct put *put) {
    lease->name = name;
    list_init(&lease->link);
    if (put->ttl_ms == 0 || put->ttl_ms >= UINT64_MAX - put->now_ms) {
        lease->end_ms = UINT64_MAX;
    } else {
        lease->end_ms = put->now_ms + put->ttl_ms;
        tree_insert(&catalog->expiring, &(struct end){lease->end_ms, lease}, &lease->by_end);
    }
    if (put->owner) {
        list_append(put->owner, &lease->link);
    }
    name->lease = lease;
}

uint64_t catalog_expire(struct catalog *catalog, uint64_t now_ms) {
    struct tree_node *node;

    while ((node = tree_first(&catalog->expiring))) {
        struct lease *lease = container_of(node, struct lease, by_end);
        if (lease->end_ms > now_ms) {
            return lease->end_ms;
        }
        catalog_delete(catalog, lease->name);
    }
    return UINT64_MAX;
}

void catalog_drop(struct catalog *catalog, struct list *owned) {
    while (!list_is_empty(owned)) {
        catalog_delete(catalog, container_of(owned->next, struct lease, link)->name);
    }
}

/* ------------------------------------------------------------------------------------ nodes */

static struct name *find_or_add(struct catalog *catalog, const char *bytes, size_t nbytes) {
    struct name *name = catalog_find(catalog, bytes, nbytes);

    if (name) {
        return name;
    }
    name = malloc(sizeof *name + nbytes);
    if (!name) {
        return NULL;
    }
    *name = (struct name){.nbytes = (uint16_t)nbytes};
    memcpy(name->bytes, bytes, nbytes);
    tree_insert(&catalog->names, &(struct key){bytes, nbytes}, &name->by_name);
    return name;
}

/* Frees a node that nobody needs any more. */
static void check_unused(struct catalog *catalog, struct name *name) {
    if (name->value || (name->waiters && !list_is_empty(&name->waiters->list.waiters))) {
        return;
    }
    tree_remove(&catalog->names, &(struct key){name->bytes, name->nbytes}, &name->by_name);
    free(name->waiters);
    free(name);
}

static void waiters_emptied(struct waitlist *list) {
    struct name_waiters *waiters = (struct name_waiters *)list;

    check_unused(waiters->catalog, waiters->name);
}

struct waitlist *catalog_waitlist(struct catalog *catalog, const char *bytes, size_t nbytes) {
    struct name *name = find_or_add(catalog, bytes, nbytes);

    if (!name) {
        return NULL;
    }
    if (!name->waiters) {
        struct name_waiters *waiters = malloc(sizeof *waiters);
        if (!waiters) {
            check_unused(catalog, name);
            return NULL;
        }
        waitlist_init(&waiters->list, waiters_emptied);
        waiters->catalog = catalog;
        waiters->name = name;
        name->waiters = waiters;
    }
    return &name->waiters->list;
}

/* ----------------------------------------------------------------------------------- values */

static void value_free(struct catalog *catalog, struct value *value) {
    storage_unref(catalog->storages, value->storage);
    free(value);
}

static struct value *value_create(const struct put *put) {
    struct value *value = malloc(sizeof *value + put->desc_nbytes);

    if (value) {
        *value = (struct value){.storage = put->storage,
                                .put_ms = put->now_ms,
                                .publisher = put->publisher,
                                .desc_nbytes = (uint16_t)put->desc_nbytes};
        memcpy(value->desc, put->desc, put->desc_nbytes);
    }
    return value;
}

static void set_value(struct catalog *catalog, struct name *name, struct value *value) {
    struct value *old = name->value;

    value->version = ++catalog->version;
    storage_ref(value->storage);
    name->value = value;
    if (old) {
        lease_end(catalog, name);
        value_free(catalog, old);
    } else {
        catalog->count++;
    }
}

int catalog_put(struct catalog *catalog, const struct put *put, uint64_t *ret_version) {
    struct name *name = catalog_find(catalog, put->name, put->name_nbytes);
    struct lease *lease = NULL;

    if (catalog->count >= catalog->max && !(name && name->value)) {
        return STATUS_LIMIT;
    }
    struct value *value = value_create(put);
    if (put->ttl_ms || put->owner) {
        lease = malloc(sizeof *lease);
    }
    name = find_or_add(catalog, put->name, put->name_nbytes);
    if (!value || !name || (!lease && (put->ttl_ms || put->owner))) {
        free(value);
        free(lease);
        if (name) {
            check_unused(catalog, name);
        }
        return STATUS_INTERNAL;
    }
    set_value(catalog, name, value);
    if (lease) {
        lease_begin(catalog, name, lease, put);
    }
    if (name->waiters) {
        waitlist_wake(&name->waiters->list, catalog->ready);
    }
    *ret_version = value->version;
    return STATUS_OK;
}

void catalog_delete(struct catalog *catalog, struct name *name) {
    struct value *value = name->value;

    assert(value);
    lease_end(catalog, name);
    name->value = NULL;
    catalog->count--;
    check_unused(catalog, name);
    value_free(catalog, value);
}

struct name *catalog_next(const struct catalog *catalog, const char *prefix, size_t prefix_nbytes,
                          const char *after, size_t after_nbytes) {
    struct key key = {prefix, prefix_nbytes};
    int strictly = 0;

    if (after_nbytes && compare_bytes((struct key){after, after_nbytes}, key) >= 0) {
        key = (struct key){after, after_nbytes};
        strictly = 1;
    }
    for (;;) {
        struct tree_node *node = tree_seek(&catalog->names, &key, strictly);
        struct name *name = node ? container_of(node, struct name, by_name) : NULL;
        if (!name || name->nbytes < prefix_nbytes ||
            memcmp(name->bytes, prefix, prefix_nbytes) != 0) {
            return NULL;
        }
        if (name->value) {
            return name;
        }
        key = (struct key){name->bytes, name->nbytes};
        strictly = 1;
    }
}

void catalog_fini(struct catalog *catalog) {
    while (catalog->names.root) {
        catalog_delete(catalog, container_of(catalog->names.root, struct name, by_name));
    }
    assert(catalog->count == 0 && !catalog->expiring.root);
}
