/*
 * handle_storage.c - ALLOC, MAP, RELEASE, HOLD, ATTACH, ALIVE
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "call.h"
#include "handle.h"
#include "quota.h"
#include "shortage.h"

static struct wire_grant grant_of(const struct storage *storage) {
    const struct segment *segment = storage->range.segment;

    return (struct wire_grant){.storage = storage->id,
                               .nbytes = storage->nbytes,
                               .segment = segment ? segment->id : 0,
                               .offset = range_offset(&storage->range)};
}

int grant(struct call *call, struct storage *storage, struct wire_grant *ret_grant) {
    if (hold_grant(&call->client->holds, storage) < 0) {
        return call_no_books(call);
    }
    *ret_grant = grant_of(storage);
    return STATUS_OK;
}

int grant_all(struct call *call, struct storage *const *storages, uint32_t count) {
    struct wire_grant *grants = (struct wire_grant *)call->server->page;

    for (uint32_t i = 0; i < count; i++) {
        int r = grant(call, storages[i], &grants[i]);
        if (r != STATUS_OK) {
            while (i-- > 0) {
                hold_return(&call->client->holds, storages[i]->id, 1);
            }
            return r;
        }
    }
    call->reply_tail = grants;
    call->reply_tail_nbytes = count * sizeof *grants;
    return STATUS_OK;
}

static int check_quotas(struct call *call, uint64_t nbytes) {
    int r = quota_check(call, ACCOUNT_STORAGES, 1);

    return r == STATUS_OK ? quota_check(call, ACCOUNT_BYTES, nbytes) : r;
}

int new_storage(struct call *call, unsigned device, uint64_t nbytes, struct storage **ret_storage) {
    struct segments *segments;
    struct shortage shortage;
    struct waitlist *wait;
    int r = find_memory(call, device, &segments);

    if (r != STATUS_OK) {
        return r;
    }
    if (call->shortage) {
        return shortage_text(call->server, segments, nbytes, call->shortage, call->text);
    }
    r = check_quotas(call, nbytes);
    if (r != STATUS_OK) {
        return r;
    }
    r = storage_create(&call->server->storages, segments, call->client->account, nbytes,
                       ret_storage, &wait, &shortage);
    switch (r) {
    case -EAGAIN:
        return call_wait(call, wait);
    case STATUS_LIMIT:
        return call_fail(call, r,
                         "%" PRIu64 " storages are in use already: the limit is --max-storages",
                         call->server->storages.max);
    case STATUS_INTERNAL:
        return call_no_books(call);
    case STATUS_OUT_OF_MEMORY:
        return shortage_text(call->server, segments, nbytes, &shortage, call->text);
    default:
        return r;
    }
}

int handle_alloc(struct call *call, const struct wire_alloc *request,
                 struct wire_alloc_reply *reply) {
    struct storage *storage;

    if (request->device_type != device_type_of(request->device)) {
        return call_fail(call, STATUS_INVALID,
                         "device type %u, device %u: there is memory of the CPU (1, 0) and of CUDA "
                         "devices (2, 1 and more)",
                         request->device_type, request->device);
    }
    int r = new_storage(call, request->device, request->nbytes, &storage);
    if (r != STATUS_OK) {
        return r;
    }
    r = grant(call, storage, &reply->grant);
    storage_unref(&call->server->storages, storage);
    return r;
}

/* The live segment of this id, wherever it is, or NULL. */
static struct segment *find_segment(const struct server *server, uint64_t id) {
    const struct device *device = devices_find(&server->devices, segment_device(id));

    if (segment_device(id) == 0) {
        return segments_find(&server->segments, id);
    }
    return device ? segments_find(&device->segments, id) : NULL;
}

/* From now on the client can use a device, also while it dies: so we watch it to its end. */
static int import(struct call *call, struct segment *segment) {
    struct client *client = call->client;
    int r = client_watch_process(client);

    if (r < 0) {
        return call_fail(call, STATUS_LIMIT,
                         "the daemon cannot watch process %d, which uses a device: %s (its limit "
                         "of descriptors is RLIMIT_NOFILE)",
                         (int)client->pid, strerror(-r));
    }
    return imports_add(&client->imports, segment) < 0 ? call_no_books(call) : STATUS_OK;
}

int handle_map(struct call *call, const struct wire_map *request, struct wire_map_reply *reply) {
    struct segment *segment = find_segment(call->server, request->segment);

    if (!segment) {
        return call_fail(call, STATUS_STALE, "segment %" PRIu64 " is gone", request->segment);
    }
    unsigned device = segment_device(segment->id);
    if (segment->backing.fd >= 0 && !client_may_send_descriptor(call->client)) {
        return call_fail(call, STATUS_LIMIT,
                         "too many replies with descriptors are unread: read them, then repeat the "
                         "call");
    }
    int r = device ? import(call, segment) : STATUS_OK;
    if (r != STATUS_OK) {
        return r;
    }
    reply->segment = segment->id;
    reply->nbytes = segment->nbytes;
    reply->device = (uint16_t)device;
    reply->mapping = segment->backing.store->mapping;
    call->reply_fd = segment->backing.fd;
    if (reply->mapping == MAPPING_IPC) {
        call->reply_tail = segment->backing.handle;
        call->reply_tail_nbytes = sizeof segment->backing.handle;
    }
    return STATUS_OK;
}

int handle_release(struct call *call, const struct wire_release *request) {
    (void)request;
    if (call->tail_nbytes % sizeof(struct wire_returned)) {
        return call_broken(call, "RELEASE: the tail is no list of storages and grants");
    }
    for (size_t at = 0; at < call->tail_nbytes; at += sizeof(struct wire_returned)) {
        struct wire_returned returned;
        memcpy(&returned, call->tail + at, sizeof returned);
        int r = hold_return(&call->client->holds, returned.storage, returned.grants);
        if (r < 0) {
            return call_broken(call, "RELEASE: more grants returned than were given");
        }
    }
    return STATUS_OK;
}

int count_ids(const struct call *call) {
    return call->tail_nbytes % sizeof(uint64_t) ? -1 : (int)(call->tail_nbytes / sizeof(uint64_t));
}

uint64_t id_at(const struct call *call, int i) {
    uint64_t id;

    memcpy(&id, call->tail + (size_t)i * sizeof id, sizeof id);
    return id;
}

static int stale(struct call *call, uint64_t id) {
    return call_fail(call, STATUS_STALE, "storage %" PRIu64 " is gone", id);
}

int handle_hold(struct call *call, const struct wire_hold *request, struct wire_hold_reply *reply) {
    struct storages *storages = &call->server->storages;
    struct storage *found[WIRE_HOLDS_MAX];
    int count = count_ids(call);

    (void)request;
    (void)reply;
    if (count < 0) {
        return call_broken(call, "HOLD: the tail is no list of ids");
    }
    for (int i = 0; i < count; i++) {
        found[i] = storage_find(storages, id_at(call, i));
        if (!found[i]) {
            return stale(call, id_at(call, i));
        }
    }
    return grant_all(call, found, (uint32_t)count);
}

/* Whether `count` storages of the tail may be attached to `storage`. */
static int check_attach(struct call *call, const struct storage *storage, int count) {
    for (int i = 0; i < count; i++) {
        const struct storage *other = storage_find(&call->server->storages, id_at(call, i));
        if (!other || !holds_find(&call->client->holds, other)) {
            return stale(call, id_at(call, i));
        }
        if (other->id >= storage->id) {
            return call_fail(call, STATUS_INVALID,
                             "storage %" PRIu64 " is not older than storage %" PRIu64
                             ", so it cannot be attached to it",
                             other->id, storage->id);
        }
    }
    if (storage->account != call->client->account) {
        return call_fail(call, STATUS_INVALID,
                         "another client has made storage %" PRIu64
                         ": only that one can attach others to it",
                         storage->id);
    }
    return quota_check(call, ACCOUNT_ATTACHMENTS, (uint64_t)count);
}

int handle_attach(struct call *call, const struct wire_attach *request,
                  struct wire_attach_reply *reply) {
    struct storages *storages = &call->server->storages;
    struct storage *storage = storage_find(storages, request->storage);
    int count = count_ids(call);

    (void)reply;
    if (count < 0) {
        return call_broken(call, "ATTACH: the tail is no list of ids");
    }
    if (!storage || !holds_find(&call->client->holds, storage)) {
        return stale(call, request->storage);
    }
    int r = check_attach(call, storage, count);
    if (r != STATUS_OK) {
        return r;
    }
    r = storage_reserve(storages, storage, (uint32_t)count);
    if (r == STATUS_LIMIT) {
        return call_fail(call, r,
                         "%" PRIu64 " storages are attached to others and this is about %d more: "
                         "the limit is --max-storages=%" PRIu64,
                         storages->attachments, count, storages->max);
    }
    if (r != STATUS_OK) {
        return call_no_books(call);
    }
    for (int i = 0; i < count; i++) {
        storage_attach(storages, storage, storage_find(storages, id_at(call, i)));
    }
    return STATUS_OK;
}

int handle_alive(struct call *call, const struct wire_alive *request,
                 struct wire_alive_reply *reply) {
    uint8_t *alive = (uint8_t *)call->server->page;
    int count = count_ids(call);

    (void)request;
    (void)reply;
    if (count < 0) {
        return call_broken(call, "ALIVE: the tail is no list of ids");
    }
    for (int i = 0; i < count; i++) {
        alive[i] = find_segment(call->server, id_at(call, i)) != NULL;
    }
    call->reply_tail = alive;
    call->reply_tail_nbytes = (size_t)count;
    return STATUS_OK;
}
