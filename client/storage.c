#include "storage.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "channel_buffer.h"
#include "clock.h"
#include "copy.h"
#include "device_list.h"
#include "error.h"
#include "mapping.h"
#include "reclaim.h"
#include "segment.h"
#include "session.h"
#include "step.h"

#define ONE    2u /* reference in storage::state */
#define QUEUED 1u /* on session::released, or about to be */

#define BATCH 256 /* releases in one note */

static int compare_id(const void *a, const void *b) {
    const struct storage *left = a;
    const struct storage *right = b;

    return (left->id > right->id) - (left->id < right->id);
}

/* Ranges that overlap are the same: storages never do, and a lookup finds the one it lies in. */
static int compare_address(const void *a, const void *b) {
    const struct storage *left = a;
    const struct storage *right = b;

    if (left->address + left->nbytes <= right->address) {
        return -1;
    }
    return right->address + right->nbytes <= left->address;
}

static struct storage *find_in(void *const *tree, const struct storage *key,
                               int (*compare)(const void *, const void *)) {
    struct storage **node = tfind(key, tree, compare);

    return node ? *node : NULL;
}

struct storage *storage_ref(struct storage *storage) {
    atomic_fetch_add_explicit(&storage->state, ONE, memory_order_relaxed);
    return storage;
}

struct storage *storage_find(struct session *session, uint64_t id) {
    struct storage key = {.id = id};

    session_lock(session);
    struct storage *storage = find_in(&session->by_id, &key, compare_id);
    if (storage) {
        storage_ref(storage);
    }
    session_unlock(session);
    return storage;
}

struct storage *storage_find_bytes(struct session *session, const void *data, size_t nbytes) {
    struct storage key = {.address = (char *)data, .nbytes = 1};
    struct storage *found = NULL;

    if (!data || nbytes == 0) {
        return NULL;
    }
    session_lock(session);
    struct storage *storage = find_in(&session->by_address, &key, compare_address);
    if (storage && !storage->is_hidden &&
        nbytes <= storage->nbytes - (size_t)(key.address - storage->address)) {
        found = storage_ref(storage);
    }
    session_unlock(session);
    return found;
}

/* --------------------------------------------------------------------------------- from a grant */

/* Removes the object from the trees and gives up what it holds here. Lock held. */
static void forget(struct session *session, struct storage *storage) {
    tdelete(storage, &session->by_id, compare_id);
    if (storage->address) {
        tdelete(storage, &session->by_address, compare_address);
        segment_leave(storage->segment);
    }
}

/* The segment that the grant's bytes lie in; NULL when there are none. Lock held. */
static int find_segment(struct session *session, const struct wire_grant *grant,
                        struct segment **ret_segment) {
    struct segment *segment = NULL;

    if (grant->nbytes > 0) {
        segment = segment_find(session, grant->segment);
        if (!segment) { /* the session died meanwhile */
            return session_error_lost(session);
        }
        uint64_t nbytes = segment->mapping->nbytes;
        if (grant->offset > nbytes || grant->nbytes > nbytes - grant->offset) {
            return error(STATUS_INTERNAL, "tensorcxd gave a storage outside of its segment");
        }
    }
    *ret_segment = segment;
    return STATUS_OK;
}

/* Enters the object in the trees, in both or none. Lock held. */
static int enter(struct session *session, struct storage *storage) {
    if (!tsearch(storage, &session->by_id, compare_id)) {
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    if (storage->address) {
        struct storage **node = tsearch(storage, &session->by_address, compare_address);
        if (!node || *node != storage) {
            tdelete(storage, &session->by_id, compare_id);
            return node ? error(STATUS_INTERNAL, "tensorcxd gave two storages the same bytes")
                        : error_plain(STATUS_OUT_OF_MEMORY);
        }
        storage->segment->storages++;
    }
    return STATUS_OK;
}

/* A new object with count 1 for a grant whose segment is mapped. Lock held. */
static int create(struct session *session, const struct wire_grant *grant,
                  struct storage **ret_storage) {
    struct segment *segment = NULL;
    int r = find_segment(session, grant, &segment);

    if (r == STATUS_OK && session->is_inherited) { /* the grant is the parent's */
        r = session_error_lost(session);
    }
    if (r != STATUS_OK) {
        return r;
    }
    struct storage *storage = calloc(1, sizeof *storage);
    if (!storage) {
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    storage->id = grant->storage;
    storage->nbytes = grant->nbytes;
    storage->address = segment ? segment->mapping->address + grant->offset : NULL;
    storage->segment = segment;
    storage->device = segment ? segment->mapping->device : NULL;
    storage->device_index = segment_device(grant->segment);
    storage->grants = 1;
    atomic_init(&storage->state, ONE);
    r = enter(session, storage);
    if (r != STATUS_OK) {
        free(storage);
        return r;
    }
    storage->session = session_ref(session);
    session->known[grant->storage % KNOWN_STORAGES] = *grant;
    REACHED(STORAGE_ENTERED);
    *ret_storage = storage;
    return STATUS_OK;
}

/* Of who uses memory of a device the daemon must know: such a use may end badly. */
static int may_be_pinned(const struct wire_grant *known, uint64_t id) {
    return id != 0 && known->storage == id && segment_device(known->segment) == 0;
}

struct storage *storage_pin(struct session *session, uint64_t id, struct channel_buffer *buffer) {
    struct storage key = {.id = id};

    session_lock(session);
    struct wire_grant known = session->known[id % KNOWN_STORAGES];
    struct storage *storage = find_in(&session->by_id, &key, compare_id);
    if (storage) {
        storage_ref(storage);
    } else if (buffer && may_be_pinned(&known, id) &&
               create(session, &known, &storage) == STATUS_OK) {
        storage->grants = 0;
        storage->pin = channel_buffer_ref(buffer);
    }
    session_unlock(session);
    return storage;
}

int storage_enter(struct session *session, const struct wire_grant *grant,
                  struct storage **ret_storage) {
    struct storage key = {.id = grant->storage};
    struct storage *storage;
    int r = grant->storage == 0  ? error(STATUS_INTERNAL, "tensorcxd gave a storage without id")
            : grant->nbytes == 0 ? STATUS_OK
                                 : segment_map(session, grant->segment);

    session_lock(session);
    storage = find_in(&session->by_id, &key, compare_id);
    if (r == STATUS_OK && storage && storage->nbytes == grant->nbytes) {
        storage->grants++;
        REACHED(GRANT_ADDED);
        *ret_storage = storage_ref(storage);
    } else if (r == STATUS_OK && storage) {
        r = error(STATUS_INTERNAL, "tensorcxd gave a storage two sizes");
    } else if (r == STATUS_OK) {
        r = create(session, grant, ret_storage);
    }
    session_unlock(session);
    return r;
}

int storage_take(struct session *session, const struct wire_grant *grant,
                 struct storage **ret_storage) {
    int r = storage_enter(session, grant, ret_storage);

    if (r != STATUS_OK) {
        storage_decline(session, grant);
    }
    return r;
}

int storage_is_granted(struct storage *storage) {
    if (!storage->pin) {
        return 1;
    }
    session_lock(storage->session);
    int is_granted = storage->grants > 0;
    session_unlock(storage->session);
    return is_granted;
}

/* A large allocation is committed while we wait: 4 ns a byte more than a usual answer. */
#define COMMIT_NS_PER_BYTE 4

int64_t storage_commit_ns(uint64_t nbytes) {
    return nbytes < INT64_MAX / COMMIT_NS_PER_BYTE ? (int64_t)nbytes * COMMIT_NS_PER_BYTE
                                                   : INT64_MAX;
}

/* On a device the daemon may wait for memory that others are about to unmap. */
#define DEVICE_NS (10 * NS_PER_S)

static int ask_for_memory(struct session *session, const struct wire_alloc *fixed,
                          struct call **ret_call) {
    struct frame frame = REQUEST(ALLOC, fixed);

    return call_run(session, &frame, fixed->device ? DEVICE_NS : storage_commit_ns(fixed->nbytes),
                    ret_call);
}

int storage_allocate(struct session *session, const struct device *device, uint64_t nbytes,
                     struct storage **ret_storage) {
    struct wire_alloc fixed = {.nbytes = nbytes, .device_type = device ? TCX_CUDA : TCX_CPU};
    struct call *call;
    int r = device_index(session, device, &fixed.device);

    if (r == STATUS_OK) {
        size_t since = reclaim_progress();
        r = ask_for_memory(session, &fixed, &call);
        /* Ours may be on its way, or have come too late. */
        if (r == STATUS_OUT_OF_MEMORY && device && reclaim_hurry(session, since)) {
            r = ask_for_memory(session, &fixed, &call);
        }
    }
    if (r != STATUS_OK) {
        return r;
    }
    struct wire_grant grant = ((const struct wire_alloc_reply *)call_fixed(call))->grant;
    call_free(session, call);
    REACHED(ALLOC_ANSWERED);
    if (grant.nbytes != nbytes || (nbytes > 0 && segment_device(grant.segment) != fixed.device)) {
        storage_decline(session, &grant);
        return error(STATUS_INTERNAL, "tensorcxd gave another storage than asked");
    }
    r = storage_take(session, &grant, ret_storage);
    if (r == STATUS_OK) {
        (*ret_storage)->device_index = fixed.device; /* also without bytes */
    }
    return r;
}

int storage_fill(struct session *session, struct device *device, const tcx_array_t *source,
                 uint64_t nbytes, struct storage **ret_storage) {
    struct storage *storage = NULL;
    int r = storage_allocate(session, device, nbytes, &storage);

    if (r != STATUS_OK) {
        return r;
    }
    storage_populate(storage);
    r = copy_array(source, device, storage->address);
    REACHED(STORAGE_FILLED);
    if (r != STATUS_OK) {
        storage_unref(storage);
        return r;
    }
    *ret_storage = storage;
    return STATUS_OK;
}

void storage_decline(struct session *session, const struct wire_grant *grant) {
    session_lock(session);
    storages_return(session, grant, 1);
    session_unlock(session);
}

void storage_populate(struct storage *storage) {
    storage_populate_part(storage, 0, storage->nbytes);
}

void storage_populate_part(struct storage *storage, uint64_t offset, uint64_t nbytes) {
    if (storage->segment) {
        struct mapping *mapping = storage->segment->mapping;
        mapping_populate(mapping, (uint64_t)(storage->address - mapping->address) + offset, nbytes);
    }
}

void storage_hide(struct storage *storage) {
    session_lock(storage->session);
    storage->is_hidden = 1;
    session_unlock(storage->session);
}

/* -------------------------------------------------------------------------------------- release */

void storage_unref(struct storage *storage) {
    uint64_t state;
    uint64_t next;

    if (!storage) {
        return;
    }
    state = atomic_load(&storage->state);
    do {
        next = state - ONE;
        if (next == 0) {
            next = QUEUED;
        }
    } while (!atomic_compare_exchange_weak(&storage->state, &state, next));
    if (next != QUEUED || (state & QUEUED)) {
        return; /* others use it, or whoever queued it will see to it */
    }

    /* Nobody frees it before it is on the list, and afterwards it is not ours to touch. */
    struct session *session = session_ref(storage->session);
    storage->next = atomic_load(&session->released);
    while (!atomic_compare_exchange_weak(&session->released, &storage->next, storage)) {
    }
    REACHED(STORAGE_LET_GO);
    session_tidy(session);
    session_unref(session);
}

static void send_released(struct session *session, const struct wire_returned *returned,
                          size_t count) {
    struct wire_release fixed = {0};
    struct frame frame = REQUEST(RELEASE, &fixed);

    if (count > 0 && !atomic_load(&session->is_dead)) {
        frame.tail[0] = returned;
        frame.tail_nbytes[0] = count * sizeof *returned;
        call_note(session, &frame);
        REACHED(RELEASE_SENT);
    }
}

struct storage *storages_drain(struct session *session) {
    struct wire_returned batch[BATCH];
    size_t count = 0;
    struct storage *pinned = NULL;
    struct storage *next;

    if (!atomic_load(&session->released)) {
        return NULL;
    }
    for (struct storage *storage = atomic_exchange(&session->released, NULL); storage;
         storage = next) {
        next = storage->next;
        /* After this a holder of the last reference may queue it again; but at count 0 there is no
         * holder, and a lookup, which could make one, needs the lock. */
        if (atomic_fetch_and(&storage->state, ~(uint64_t)QUEUED) != QUEUED) {
            continue; /* revived */
        }
        forget(session, storage);
        REACHED(STORAGE_FORGOTTEN);
        if (storage->grants > 0) {
            batch[count++] = (struct wire_returned){storage->id, storage->grants};
        }
        if (count == BATCH) {
            send_released(session, batch, count);
            count = 0;
        }
        session_unref(storage->session); /* not the last: our caller has one */
        if (storage->pin) {
            storage->next = pinned;
            pinned = storage;
        } else {
            free(storage);
        }
    }
    send_released(session, batch, count);
    if (atomic_load(&session->is_dead)) {
        segments_doom_unused(session);
    }
    return pinned;
}

void storages_unpin(struct storage *pinned) {
    while (pinned) {
        struct storage *next = pinned->next;
        channel_buffer_unref(pinned->pin);
        free(pinned);
        pinned = next;
    }
}

void storages_return(struct session *session, const void *grants, size_t count) {
    struct wire_returned batch[BATCH];
    struct wire_grant grant;
    size_t filled = 0;

    for (size_t i = 0; i < count; i++) {
        memcpy(&grant, (const char *)grants + i * sizeof grant, sizeof grant);
        batch[filled++] = (struct wire_returned){grant.storage, 1};
        if (filled == BATCH || i == count - 1) {
            send_released(session, batch, filled);
            filled = 0;
        }
    }
}

void storage_put_off(struct session *session, uint64_t id) {
    struct wire_ticket fixed = {.storage = id};
    struct frame frame = REQUEST(TICKET, &fixed);

    call_detach(session, &frame);
}
