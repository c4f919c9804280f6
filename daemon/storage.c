#include "storage.h"

#include <assert.h>
#include <stdlib.h>

#include "status.h"
#include "step.h"

void storages_init(struct storages *storages) {
    table_init(&storages->by_id);
}

void storages_fini(struct storages *storages) {
    assert(storages->by_id.count == 0 && storages->attachments == 0 && storages->holds == 0);
    for (int device = 0; device <= WIRE_DEVICES_MAX; device++) {
        const struct stored *stored = &storages->on[device];
        assert(stored->count == 0 && stored->bytes == 0 && stored->sent_bytes == 0);
        (void)stored;
    }
    table_fini(&storages->by_id);
}

static void storage_free(struct storage *storage) {
    free(storage->attached);
    if (!storage->range.segment) {
        free(storage);
    } else if (storage->is_spoilt) {
        segments_abandon(&storage->range);
    } else {
        segments_give(&storage->range);
    }
}

int storage_create(struct storages *storages, struct segments *segments, struct account *account,
                   uint64_t nbytes, struct storage **ret_storage, struct waitlist **ret_wait,
                   struct shortage *ret_shortage) {
    if (storages->by_id.count >= storages->max) {
        return STATUS_LIMIT;
    }
    struct storage *storage = calloc(1, sizeof *storage);
    if (!storage) {
        return STATUS_INTERNAL;
    }
    if (nbytes > 0) {
        int r =
            segments_take(segments, account->user, nbytes, &storage->range, ret_wait, ret_shortage);
        if (r != STATUS_OK) {
            free(storage);
            return r;
        }
    }
    storage->id = storages->next_id + 1;
    storage->nbytes = nbytes;
    storage->device = segments->device;
    storage->account = account;
    storage->references = 1;
    if (table_set(&storages->by_id, storage->id, storage) < 0) {
        storage_free(storage);
        return STATUS_INTERNAL;
    }
    account_charge(account, ACCOUNT_STORAGES, 1);
    account_charge(account, ACCOUNT_BYTES, nbytes);
    storages->next_id++;
    storages->on[storage->device].count++;
    storages->on[storage->device].bytes += nbytes;
    REACHED(STORAGE_CREATED);
    *ret_storage = storage;
    return STATUS_OK;
}

uint64_t storages_bytes(const struct storages *storages) {
    uint64_t nbytes = 0;

    for (int device = 0; device <= WIRE_DEVICES_MAX; device++) {
        nbytes += storages->on[device].bytes;
    }
    return nbytes;
}

struct storage *storage_find(const struct storages *storages, uint64_t id) {
    return id && id <= storages->next_id ? table_find(&storages->by_id, id) : NULL;
}

/* What of it only tickets keep. */
static uint64_t sent_bytes(const struct storage *storage) {
    return storage->tickets && storage->tickets == storage->references ? storage->nbytes : 0;
}

static void add(struct storages *storages, struct storage *storage, int references, int tickets) {
    struct stored *stored = &storages->on[storage->device];

    stored->sent_bytes -= sent_bytes(storage);
    storage->references += (uint32_t)references;
    storage->tickets += (uint32_t)tickets;
    stored->sent_bytes += sent_bytes(storage);
}

void storage_ref(struct storages *storages, struct storage *storage) {
    assert(storage->references > 0);
    add(storages, storage, 1, 0);
}

void storage_ref_sent(struct storages *storages, struct storage *storage) {
    assert(storage->references > 0);
    add(storages, storage, 1, 1);
}

/* Takes one reference away; with the last one the storage goes to `dead`. */
static void drop(struct storages *storages, struct storage *storage, struct storage **dead) {
    assert(storage->references > 0);
    add(storages, storage, -1, 0);
    if (storage->references > 0) {
        return;
    }
    assert(storage->holders == 0 && storage->tickets == 0);
    table_remove(&storages->by_id, storage->id);
    storages->on[storage->device].count--;
    storages->on[storage->device].bytes -= storage->nbytes;
    storage->next = *dead;
    *dead = storage;
}

static uint32_t attached_count(const struct storage *storage) {
    return storage->attached ? storage->attached->count : 0;
}

/* What was attached to the dead may die with it. Not by recursion: chains can be long. */
void storage_unref(struct storages *storages, struct storage *storage) {
    struct storage *dead = NULL;

    drop(storages, storage, &dead);
    while (dead) {
        storage = dead;
        dead = storage->next;
        for (uint32_t i = 0; i < attached_count(storage); i++) {
            drop(storages, storage->attached->storages[i], &dead);
        }
        storages->attachments -= attached_count(storage);
        account_return(storage->account, ACCOUNT_ATTACHMENTS, attached_count(storage));
        account_return(storage->account, ACCOUNT_BYTES, storage->nbytes);
        account_return(storage->account, ACCOUNT_STORAGES, 1);
        storage_free(storage);
        REACHED(STORAGE_FREED);
    }
}

void storage_unref_sent(struct storages *storages, struct storage *storage) {
    add(storages, storage, 0, -1);
    storage_unref(storages, storage);
}

int storage_write(struct storage *storage, const void *bytes, uint64_t nbytes) {
    assert(nbytes <= storage->nbytes && storage->device == 0);
    if (nbytes == 0) {
        return 0;
    }
    struct backing *backing = &storage->range.segment->backing;
    return backing->store->write(backing, range_offset(&storage->range), bytes, nbytes);
}

uint64_t storage_reach(const struct storage *storage) {
    return storage->nbytes + (storage->attached ? storage->attached->nbytes : 0);
}

/* How many have room where there are `count`. */
static size_t room_for(uint32_t count) {
    size_t room = count > 0;

    while (room < count) {
        room *= 2;
    }
    return room;
}

int storage_reserve(struct storages *storages, struct storage *storage, uint32_t more) {
    struct attached *attached = storage->attached;
    uint32_t count = attached_count(storage);
    size_t room = room_for(count + more);

    if (storages->attachments > storages->max || more > storages->max - storages->attachments) {
        return STATUS_LIMIT;
    }
    if (room > room_for(count)) {
        attached = realloc(attached, sizeof *attached + room * sizeof(struct storage *));
        if (!attached) {
            return STATUS_INTERNAL;
        }
        if (!storage->attached) {
            *attached = (struct attached){0};
        }
        storage->attached = attached;
    }
    return STATUS_OK;
}

void storage_attach(struct storages *storages, struct storage *storage, struct storage *other) {
    struct attached *attached = storage->attached;

    assert(other->id < storage->id);
    attached->storages[attached->count++] = other;
    attached->nbytes += other->nbytes;
    storages->attachments++;
    account_charge(storage->account, ACCOUNT_ATTACHMENTS, 1);
    storage_ref(storages, other);
    REACHED(STORAGE_ATTACHED);
}
