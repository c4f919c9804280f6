/*
 * hold.h - which storages a client uses, and how often each was granted to it
 *
 * Every reply that gives a client a storage adds one grant; a release returns grants. With the last
 * one the hold goes, and with it one reference to the storage; unless the client has forked
 * meanwhile: then the hold is parked until the children are done. Each client has one `struct
 * holds`. Knows neither clients nor messages.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "forkpage.h"
#include "heap.h"
#include "list.h"
#include "storage.h"
#include "table.h"
#include "ticket.h"

struct standing;

struct hold {
    struct storage *storage; /* one reference of ours */
    uint64_t grants;         /* 0: parked */
    union { /* there are many holds, so what is never needed together shares its place */
        struct heap_node parked; /* with the client's fork pages; the key is `born` */
        struct {
            uint64_t born;              /* FORK notes of the client before us */
            struct list tickets;        /* that the client has sent */
            struct standing *standings; /* that its messages may name, the newest; or NULL */
        };
    };
};

_Static_assert(offsetof(struct hold, parked.key) == offsetof(struct hold, born), "the same");

struct holds {
    struct storages *storages; /* borrowed, as the next two: outlive us */
    struct tickets *tickets;
    struct forkpages *forks;
    struct table by_storage; /* of struct hold; owned */
    uint64_t bytes;          /* of the storages held, parked ones included: on the CPU, */
    uint64_t device_bytes;   /* and on devices */
    uint64_t granted;        /* of the holds, those that are not parked */
    size_t cursor;           /* where holds_return_some() is */
};

/* `storages`, `tickets` and `forks` are filled in by the caller. fini asserts that nothing is held.
 */
void holds_init(struct holds *holds);
void holds_fini(struct holds *holds);

/* One more grant. 0 or -ENOMEM. */
int hold_grant(struct holds *holds, struct storage *storage);

/* Takes `grants` back. 0, or -EPROTO: there are not as many; then nothing is changed. */
int hold_return(struct holds *holds, uint64_t storage, uint64_t grants);

/* Takes grants back, all of some holds: the client's process is gone. Returns whether it is to be
 * called again; nothing may be granted until then. */
bool holds_return_some(struct holds *holds);

/* Ends the hold that `node`, its `parked`, belongs to: no fork page needs it any more. */
void hold_freed(struct holds *holds, struct heap_node *node);

/* The hold of a client that has grants on `storage`, borrowed, or NULL. */
struct hold *holds_find(const struct holds *holds, const struct storage *storage);

static inline uint64_t holds_count(const struct holds *holds) {
    return holds->by_storage.count;
}
