#include "catalog.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"
#include "step.h"

/* So that others need not wait long while many end together. */
enum { NAMES_AT_ONCE = 1024 };

/* A name that somebody waits for, be it there or not; it lasts until it is put. */
struct awaited {
    struct waitlist waiters;  /* first: its callback finds us by it */
    struct tree_node by_name; /* catalog::awaited */
    struct catalog *catalog;  /* borrowed: owns us */
    size_t nbytes;
    char bytes[];
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

static int compare_awaited(const void *key, const struct tree_node *node) {
    const struct awaited *awaited = container_of(node, struct awaited, by_name);

    return compare_bytes(*(const struct key *)key, (struct key){awaited->bytes, awaited->nbytes});
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
    catalog->awaited = (struct tree){.compare = compare_awaited};
    catalog->expiring = (struct tree){.compare = compare_end};
}

static struct name *find(const struct catalog *catalog, const char *bytes, size_t nbytes) {
    struct tree_node *node = tree_find(&catalog->names, &(struct key){bytes, nbytes});

    return node ? container_of(node, struct name, by_name) : NULL;
}

struct name *catalog_find(struct catalog *catalog, const char *bytes, size_t nbytes,
                          uint64_t now_ms) {
    struct name *name = find(catalog, bytes, nbytes);

    if (name && name->lease && name->lease->end_ms <= now_ms) {
        catalog_delete(catalog, name);
        REACHED(NAME_EXPIRED);
        return NULL;
    }
    return name;
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
    REACHED(LEASE_BEGUN);
}

static struct lease *first_to_end(const struct catalog *catalog) {
    struct tree_node *node = tree_first(&catalog->expiring);

    return node ? container_of(node, struct lease, by_end) : NULL;
}

uint64_t catalog_due(const struct catalog *catalog) {
    const struct lease *lease = first_to_end(catalog);

    return lease ? lease->end_ms : UINT64_MAX;
}

bool catalog_expire(struct catalog *catalog, uint64_t now_ms) {
    for (int left = NAMES_AT_ONCE; left > 0 && catalog_due(catalog) <= now_ms; left--) {
        catalog_delete(catalog, first_to_end(catalog)->name);
        REACHED(NAME_EXPIRED);
    }
    return catalog_due(catalog) <= now_ms;
}

bool catalog_expire_all(struct catalog *catalog, uint64_t now_ms) {
    uint64_t before = catalog->count;

    while (catalog_expire(catalog, now_ms)) {
    }
    return catalog->count < before;
}

bool catalog_drop(struct catalog *catalog, struct list *owned) {
    for (int left = NAMES_AT_ONCE; left > 0 && !list_is_empty(owned); left--) {
        catalog_delete(catalog, container_of(owned->next, struct lease, link)->name);
    }
    return !list_is_empty(owned);
}

/* --------------------------------------------------------------------------------- waiting */

static struct awaited *find_awaited(const struct catalog *catalog, struct key key) {
    struct tree_node *node = tree_find(&catalog->awaited, &key);

    return node ? container_of(node, struct awaited, by_name) : NULL;
}

static void awaited_free(struct awaited *awaited) {
    tree_remove(&awaited->catalog->awaited, &(struct key){awaited->bytes, awaited->nbytes},
                &awaited->by_name);
    free(awaited);
}

static void waiters_emptied(struct waitlist *waiters) {
    awaited_free((struct awaited *)waiters);
}

struct waitlist *catalog_waitlist(struct catalog *catalog, const char *bytes, size_t nbytes) {
    struct key key = {bytes, nbytes};
    struct awaited *awaited = find_awaited(catalog, key);

    if (awaited) {
        return &awaited->waiters;
    }
    awaited = malloc(sizeof *awaited + nbytes);
    if (!awaited) {
        return NULL;
    }
    waitlist_init(&awaited->waiters, waiters_emptied);
    awaited->catalog = catalog;
    awaited->nbytes = nbytes;
    memcpy(awaited->bytes, bytes, nbytes);
    tree_insert(&catalog->awaited, &key, &awaited->by_name);
    REACHED(NAME_AWAITED);
    return &awaited->waiters;
}

static void wake(struct catalog *catalog, const struct name *name) {
    struct awaited *awaited = find_awaited(catalog, (struct key){name->bytes, name->nbytes});

    if (awaited) {
        waitlist_wake(&awaited->waiters, catalog->ready);
        awaited_free(awaited);
        REACHED(WAITERS_WOKEN);
    }
}

/* ----------------------------------------------------------------------------------- names */

static struct name *name_create(const struct put *put) {
    struct name *name = malloc(sizeof *name + put->name_nbytes + put->desc_nbytes);

    if (name) {
        *name = (struct name){.storage = put->storage,
                              .account = put->account,
                              .put_ms = put->now_ms,
                              .publisher = put->publisher,
                              .nbytes = (uint16_t)put->name_nbytes,
                              .desc_nbytes = (uint16_t)put->desc_nbytes};
        memcpy(name->bytes, put->name, put->name_nbytes);
        memcpy(name->bytes + put->name_nbytes, put->desc, put->desc_nbytes);
    }
    return name;
}

static void add(struct catalog *catalog, struct name *name) {
    storage_ref(catalog->storages, name->storage);
    account_charge(name->account, ACCOUNT_NAMES, 1);
    tree_insert(&catalog->names, &(struct key){name->bytes, name->nbytes}, &name->by_name);
    name->version = ++catalog->version;
    catalog->count++;
    REACHED(NAME_ADDED);
}

int catalog_put(struct catalog *catalog, const struct put *put, uint64_t *ret_version) {
    struct name *old = find(catalog, put->name, put->name_nbytes);
    bool needs_lease = put->ttl_ms || put->owner;

    if (catalog->count >= catalog->max && !old) {
        return STATUS_LIMIT;
    }
    struct name *name = name_create(put);
    struct lease *lease = needs_lease ? malloc(sizeof *lease) : NULL;
    if (!name || (needs_lease && !lease)) {
        free(name);
        free(lease);
        return STATUS_INTERNAL;
    }
    if (old) {
        catalog_delete(catalog, old);
        REACHED(NAME_REPLACED);
    }
    add(catalog, name);
    if (lease) {
        lease_begin(catalog, name, lease, put);
    }
    wake(catalog, name);
    *ret_version = name->version;
    return STATUS_OK;
}

void catalog_delete(struct catalog *catalog, struct name *name) {
    lease_end(catalog, name);
    tree_remove(&catalog->names, &(struct key){name->bytes, name->nbytes}, &name->by_name);
    catalog->count--;
    storage_unref(catalog->storages, name->storage);
    account_return(name->account, ACCOUNT_NAMES, 1);
    free(name);
    REACHED(NAME_DELETED);
}

struct name *catalog_next(const struct catalog *catalog, const char *prefix, size_t prefix_nbytes,
                          const char *after, size_t after_nbytes) {
    struct key key = {prefix, prefix_nbytes};
    int strictly = 0;

    if (after_nbytes && compare_bytes((struct key){after, after_nbytes}, key) >= 0) {
        key = (struct key){after, after_nbytes};
        strictly = 1;
    }
    struct tree_node *node = tree_seek(&catalog->names, &key, strictly);
    struct name *name = node ? container_of(node, struct name, by_name) : NULL;
    bool begins_so =
        name && name->nbytes >= prefix_nbytes && memcmp(name->bytes, prefix, prefix_nbytes) == 0;
    return begins_so ? name : NULL;
}

void catalog_fini(struct catalog *catalog) {
    while (catalog->names.root) {
        catalog_delete(catalog, container_of(catalog->names.root, struct name, by_name));
    }
    assert(catalog->count == 0 && !catalog->expiring.root && !catalog->awaited.root);
}
