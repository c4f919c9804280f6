/*
 * hold.h - which storages a client uses, and how often each was granted to it
 *
 * Every reply that gives a client a storage adds one grant; a release returns grants. With the last
 * one the hold goes, and with it one reference to the storage. Each client has one `struct holds`.
 */
#pragma once

#include <stdint.h>

#include "storage.h"
#include "table.h"

struct holds {
    struct table grants; /* storage id -> number of grants, as a pointer; one reference each */
    uint64_t bytes;      /* of the storages held */
};

void holds_init(struct holds *holds);

/* Returns all grants. */
void holds_fini(struct holds *holds, struct storages *storages);

/* One more grant. 0 or -ENOMEM. */
int hold_grant(struct holds *holds, struct storage *storage);

/* Takes `grants` back. 0, or -EPROTO: there are not as many; then nothing is changed. */
int hold_return(struct holds *holds, struct storages *storages, uint64_t storage, uint64_t grants);

int holds_have(const struct holds *holds, const struct storage *storage);

static inline uint64_t holds_count(const struct holds *holds) {
    return holds->grants.count;
}
