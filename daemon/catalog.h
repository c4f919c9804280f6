/*
 * catalog.h - names: name -> version, description, storage
 *
 * Sorted by their bytes. Versions come from one counter and are never repeated. A name goes when it
 * is deleted or replaced, when its ttl runs out, or, if ephemeral, with its owner. Requests wait
 * here for names that are not there yet, or not new enough. Owned by the server; knows storages,
 * not clients or messages. A description is bytes that the handler has checked.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "list.h"
#include "storage.h"
#include "tree.h"
#include "waiter.h"

/* What ends a name by itself: only names with a ttl or an owner have one. */
struct lease {
    struct name *name;       /* borrowed: owns us */
    uint64_t end_ms;         /* UINT64_MAX: no ttl */
    struct tree_node by_end; /* catalog::expiring, with a ttl */
    struct list link;        /* of the owner's list; linked to itself: no owner */
};

/* A name and what it stands for; putting it again makes a new one. */
struct name {
    struct tree_node by_name; /* catalog::names */
    struct storage *storage;  /* one reference of ours */
    struct account *account;  /* of whoever put it; it is charged */
    struct lease *lease;      /* owned; NULL: none */
    uint64_t version;
    uint64_t put_ms;
    uint32_t publisher; /* process id */
    uint16_t nbytes;
    uint16_t desc_nbytes;
    char bytes[]; /* the name, then the description */
};

static inline const char *name_desc(const struct name *name) {
    return name->bytes + name->nbytes;
}

struct catalog {
    struct storages *storages; /* borrowed: outlives us */
    struct list *ready;        /* borrowed: where waiters go */
    struct tree names;         /* of struct name; owned */
    struct tree awaited;       /* of struct awaited: names that somebody waits for */
    struct tree expiring;      /* of struct lease, the first to end first */
    uint64_t count, max;       /* of names */
    uint64_t version;          /* the last one given */
};

/* `storages`, `ready` and `max` are filled in by the caller. fini deletes all names; nobody waits
 * any more. */
void catalog_init(struct catalog *catalog);
void catalog_fini(struct catalog *catalog);

/* Borrowed; NULL: there is none. One that has expired is deleted. */
struct name *catalog_find(struct catalog *catalog, const char *bytes, size_t nbytes,
                          uint64_t now_ms);

struct put {
    const char *name;
    size_t name_nbytes;
    const void *desc;
    size_t desc_nbytes;
    struct storage *storage; /* borrowed; the catalog takes a reference of its own */
    struct account *account; /* is charged */
    uint64_t now_ms, ttl_ms; /* ttl 0: none */
    struct list *owner;      /* ephemeral: catalog_drop() of this list ends the name. NULL: not */
    uint32_t publisher;
};

/* Puts or replaces, and wakes who waits. STATUS_LIMIT (`max`) or STATUS_INTERNAL, with nothing
 * changed. */
int catalog_put(struct catalog *catalog, const struct put *put, uint64_t *ret_version);

/* Ends a name. */
void catalog_delete(struct catalog *catalog, struct name *name);

/* Deletes names on an owner's list, some of them. Returns whether there are more. */
bool catalog_drop(struct catalog *catalog, struct list *owned);

/* Where to wait for a version of this name. Use it at once, or call waitlist_check(). NULL: no
 * memory. */
struct waitlist *catalog_waitlist(struct catalog *catalog, const char *bytes, size_t nbytes);

/* The first name that begins with `prefix` and sorts after `after` (empty: all), or NULL. */
struct name *catalog_next(const struct catalog *catalog, const char *prefix, size_t prefix_nbytes,
                          const char *after, size_t after_nbytes);

/* When the next name expires; UINT64_MAX: none does. */
uint64_t catalog_due(const struct catalog *catalog);

/* Deletes what has expired, some of it. Returns whether there is more. */
bool catalog_expire(struct catalog *catalog, uint64_t now_ms);

/* Deletes all that has expired. Returns whether there was anything. */
bool catalog_expire_all(struct catalog *catalog, uint64_t now_ms);
