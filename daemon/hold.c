#include "hold.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "standing.h"
#include "step.h"

/* So that others need not wait long while a client with many ends. */
enum { HOLDS_AT_ONCE = 1024 };

void holds_init(struct holds *holds) {
    table_init(&holds->by_storage);
    holds->bytes = holds->device_bytes = 0;
    holds->granted = 0;
    holds->cursor = 0;
}

void holds_fini(struct holds *holds) {
    assert(holds->by_storage.count == 0 && holds->bytes == 0 && holds->device_bytes == 0);
    table_fini(&holds->by_storage);
}

/* ---------------------------------------------------------------------------------------- begin */

static uint64_t *bytes_on(struct holds *holds, const struct storage *storage) {
    return storage->device ? &holds->device_bytes : &holds->bytes;
}

static struct hold *hold_begin(struct holds *holds, struct storage *storage) {
    struct hold *hold = malloc(sizeof *hold);

    if (!hold || table_set(&holds->by_storage, storage->id, hold) < 0) {
        free(hold);
        return NULL;
    }
    *hold = (struct hold){.storage = storage, .born = holds->forks->noted};
    list_init(&hold->tickets);
    storage_ref(holds->storages, storage);
    storage->holders++;
    holds->storages->holds++;
    *bytes_on(holds, storage) += storage->nbytes;
    return hold;
}

int hold_grant(struct holds *holds, struct storage *storage) {
    struct hold *hold = table_find(&holds->by_storage, storage->id);

    if (!hold) {
        hold = hold_begin(holds, storage);
        if (!hold) {
            return -ENOMEM;
        }
    } else if (hold->grants == 0) {
        heap_remove(&hold->parked); /* what it waited for it will wait for again */
        list_init(&hold->tickets);
        hold->standings = NULL;
    }
    holds->granted += hold->grants == 0;
    hold->grants++;
    REACHED(HOLD_GRANTED);
    return 0;
}

struct hold *holds_find(const struct holds *holds, const struct storage *storage) {
    struct hold *hold = table_find(&holds->by_storage, storage->id);

    return hold && hold->grants ? hold : NULL;
}

/* ------------------------------------------------------------------------------------------ end */

void hold_freed(struct holds *holds, struct heap_node *node) {
    struct hold *hold = container_of(node, struct hold, parked);
    struct storage *storage = hold->storage;

    assert(hold->grants == 0);
    table_remove(&holds->by_storage, storage->id);
    *bytes_on(holds, storage) -= storage->nbytes;
    storage->holders--;
    holds->storages->holds--;
    storage_unref(holds->storages, storage);
    free(hold);
    REACHED(HOLD_FREED);
}

/* The client is done with it. Returns whether a child may not be: none can use a device of its
 * parent's. */
static int hold_park(struct holds *holds, struct hold *hold) {
    hold->grants = 0;
    holds->granted--;
    REACHED(HOLD_LEFT);
    tickets_lease(holds->tickets, &hold->tickets);
    standings_let_go(hold);
    return !hold->storage->device && forkpages_park(holds->forks, FORK_HOLD, &hold->parked);
}

int hold_return(struct holds *holds, uint64_t id, uint64_t grants) {
    const struct storage *storage = storage_find(holds->storages, id);
    struct hold *hold = storage ? holds_find(holds, storage) : NULL;

    if (!hold || grants == 0 || grants > hold->grants) {
        return -EPROTO;
    }
    if (grants < hold->grants) {
        hold->grants -= grants;
    } else if (!hold_park(holds, hold)) {
        hold_freed(holds, &hold->parked);
    }
    return 0;
}

bool holds_return_some(struct holds *holds) {
    uint64_t id;
    void *value;

    for (int left = HOLDS_AT_ONCE; left > 0 && holds->granted > 0; left--) {
        if (!table_next(&holds->by_storage, &holds->cursor, &id, &value)) {
            holds->cursor = 0; /* some may be where it has been */
            continue;
        }
        struct hold *hold = value;
        hold->storage->is_spoilt |= hold->grants > 0 && hold->storage->device;
        if (hold->grants && !hold_park(holds, hold)) {
            hold_freed(holds, &hold->parked);
            holds->cursor--; /* what came after it may be there now */
        }
    }
    return holds->granted > 0;
}
