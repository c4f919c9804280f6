#include "hold.h"

#include <assert.h>
#include <errno.h>

void holds_init(struct holds *holds) {
    table_init(&holds->grants);
    holds->bytes = 0;
}

static void let_go(struct holds *holds, struct storages *storages, struct storage *storage) {
    holds->bytes -= storage->nbytes;
    storage->holders--;
    storage_unref(storages, storage);
}

void holds_fini(struct holds *holds, struct storages *storages) {
    size_t cursor = 0;
    uint64_t id;
    void *grants;

    while (table_next(&holds->grants, &cursor, &id, &grants)) {
        let_go(holds, storages, storage_find(storages, id));
    }
    assert(holds->bytes == 0);
    table_fini(&holds->grants);
}

int hold_grant(struct holds *holds, struct storage *storage) {
    uintptr_t grants = (uintptr_t)table_find(&holds->grants, storage->id);
    int r = table_set(&holds->grants, storage->id, (void *)(grants + 1));

    if (r == 0 && grants == 0) {
        storage_ref(storage);
        storage->holders++;
        holds->bytes += storage->nbytes;
    }
    return r;
}

int hold_return(struct holds *holds, struct storages *storages, uint64_t id, uint64_t grants) {
    struct storage *storage = storage_find(storages, id);
    uintptr_t given = storage ? (uintptr_t)table_find(&holds->grants, id) : 0;

    if (grants == 0 || grants > given) {
        return -EPROTO;
    }
    if (grants < given) {
        return table_set(&holds->grants, id, (void *)(given - grants));
    }
    table_remove(&holds->grants, id);
    let_go(holds, storages, storage);
    return 0;
}

int holds_have(const struct holds *holds, const struct storage *storage) {
    return table_find(&holds->grants, storage->id) != NULL;
}
