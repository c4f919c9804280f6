/*
 * handle_name.c - PUBLISH, PUT, GET, STAT, DELETE, LIST
 */
#include <inttypes.h>
#include <string.h>

#include "call.h"
#include "desc.h"
#include "handle.h"
#include "name.h"
#include "quota.h"
#include "step.h"

/* The tail of PUBLISH and PUT, taken apart; borrowed from the message. */
struct named {
    const void *desc;
    size_t desc_nbytes;
    const char *name;
    size_t name_nbytes;
    const void *data;
    size_t data_nbytes;
    uint64_t ttl_ms;
    uint32_t flags;
};

static int bad_name(struct call *call, const char *why) {
    return call_fail(call, STATUS_INVALID, "%s", why);
}

static int not_found(struct call *call, const void *name, size_t nbytes) {
    return call_fail(call, STATUS_NOT_FOUND, "no tensor is named \"%.*s\"", (int)nbytes,
                     (const char *)name);
}

static struct name *find(struct call *call, const char *name, size_t nbytes) {
    return catalog_find(&call->server->catalog, name, nbytes, server_now(call->server));
}

/* Takes the tail apart: description, name, data. */
static int split_tail(struct call *call, struct named *named) {
    if (named->desc_nbytes + named->name_nbytes + named->data_nbytes != call->tail_nbytes) {
        return call_broken(call,
                           "the sizes of description, name and data are not those of the tail");
    }
    if (named->flags & ~(uint32_t)(PUT_EPHEMERAL | PUT_EXCLUSIVE)) {
        return call_broken(call, "unknown flags");
    }
    named->desc = call->tail;
    named->name = (const char *)call->tail + named->desc_nbytes;
    named->data = named->name + named->name_nbytes;
    return STATUS_OK;
}

static int check_desc(struct call *call, const struct named *named, uint64_t storage_nbytes,
                      unsigned device) {
    struct desc desc;
    const char *wrong = desc_decode(named->desc, named->desc_nbytes, &desc);

    if (!wrong && (desc.device_type != device_type_of(device) || desc.device != device)) {
        wrong = "the description names another device than the storage is on";
    }
    if (!wrong && (desc.flags & ~(uint32_t)(DESC_READONLY | DESC_BUNDLE))) {
        wrong = "the description has unknown flags";
    }
    if (!wrong) {
        wrong = desc_check(&desc, storage_nbytes);
    }
    return wrong ? call_fail(call, STATUS_INVALID, "%s", wrong) : STATUS_OK;
}

static int check_named(struct call *call, const struct named *named, uint64_t storage_nbytes,
                       unsigned device) {
    const char *wrong = name_check(named->name, named->name_nbytes);

    if (wrong) {
        return bad_name(call, wrong);
    }
    if ((named->flags & PUT_EXCLUSIVE) && find(call, named->name, named->name_nbytes)) {
        return call_fail(call, STATUS_EXISTS, "\"%.*s\" exists already", (int)named->name_nbytes,
                         named->name);
    }
    int r = channel_is_named(call, STATUS_EXISTS, named->name, named->name_nbytes);
    return r == STATUS_OK ? check_desc(call, named, storage_nbytes, device) : r;
}

static int publish(struct call *call, const struct named *named, struct storage *storage,
                   uint64_t *ret_version) {
    struct catalog *catalog = &call->server->catalog;
    struct account *account = call->client->account;
    const struct name *old = find(call, named->name, named->name_nbytes);
    struct put put = {.name = named->name,
                      .name_nbytes = named->name_nbytes,
                      .desc = named->desc,
                      .desc_nbytes = named->desc_nbytes,
                      .storage = storage,
                      .account = account,
                      .now_ms = server_now(call->server),
                      .ttl_ms = named->ttl_ms,
                      .owner = named->flags & PUT_EPHEMERAL ? &call->client->names : NULL,
                      .publisher = (uint32_t)call->client->pid};
    int r = old && old->account == account ? STATUS_OK : quota_check(call, ACCOUNT_NAMES, 1);

    if (r != STATUS_OK) {
        return r;
    }
    r = catalog_put(catalog, &put, ret_version);
    if (r == STATUS_LIMIT) {
        return call_fail(call, r, "there are %" PRIu64 " names already: the limit is --max-names",
                         catalog->count);
    }
    return r == STATUS_OK ? r : call_no_books(call);
}

int handle_publish(struct call *call, const struct wire_publish *request,
                   struct wire_publish_reply *reply) {
    struct storage *storage = storage_find(&call->server->storages, request->storage);
    struct named named = {.desc_nbytes = request->desc_nbytes,
                          .name_nbytes = request->name_nbytes,
                          .ttl_ms = request->ttl_ms,
                          .flags = request->flags};
    int r = split_tail(call, &named);

    if (r != STATUS_OK) {
        return r;
    }
    if (!storage || !holds_find(&call->client->holds, storage)) {
        return call_fail(call, STATUS_STALE, "this client does not hold storage %" PRIu64,
                         request->storage);
    }
    r = check_named(call, &named, storage->nbytes, storage->device);
    return r == STATUS_OK ? publish(call, &named, storage, &reply->version) : r;
}

/* Fills the new storage, grants it and gives it its name, if it is to have one. */
static int complete_put(struct call *call, const struct named *named, struct storage *storage,
                        struct wire_put_reply *reply) {
    int r = storage_write(storage, named->data, named->data_nbytes);

    REACHED(STORAGE_WRITTEN);
    if (r < 0) {
        return call_fail(call, STATUS_SYSTEM, "the data cannot be written: %s", strerror(-r));
    }
    r = grant(call, storage, &reply->grant);
    if (r != STATUS_OK || named->name_nbytes == 0) {
        return r;
    }
    r = publish(call, named, storage, &reply->version);
    if (r != STATUS_OK) {
        hold_return(&call->client->holds, storage->id, 1);
    }
    return r;
}

int handle_put(struct call *call, const struct wire_put *request, struct wire_put_reply *reply) {
    struct named named = {.desc_nbytes = request->desc_nbytes,
                          .name_nbytes = request->name_nbytes,
                          .data_nbytes = request->data_nbytes,
                          .ttl_ms = request->ttl_ms,
                          .flags = request->flags};
    struct storage *storage;
    int r = split_tail(call, &named);

    if (r == STATUS_OK && named.name_nbytes > 0) {
        r = check_named(call, &named, named.data_nbytes, 0);
    }
    if (r == STATUS_OK) {
        r = new_storage(call, 0, named.data_nbytes, &storage);
    }
    if (r != STATUS_OK) {
        return r;
    }
    r = complete_put(call, &named, storage, reply);
    storage_unref(&call->server->storages, storage);
    return r;
}

/* -------------------------------------------------------------------------------------- look up */

int handle_get(struct call *call, const struct wire_get *request, struct wire_get_reply *reply) {
    struct catalog *catalog = &call->server->catalog;
    const char *bytes = (const char *)call->tail;
    const char *wrong = name_check(bytes, call->tail_nbytes);

    if (wrong) {
        return bad_name(call, wrong);
    }
    if (request->flags & ~(uint32_t)GET_WAIT) {
        return call_broken(call, "unknown flags");
    }
    int r = channel_is_named(call, STATUS_INVALID, bytes, call->tail_nbytes);
    if (r != STATUS_OK) {
        return r;
    }
    const struct name *name = find(call, bytes, call->tail_nbytes);
    if (name && name->version > request->newer_than) {
        reply->version = name->version;
        call->reply_tail = name_desc(name);
        call->reply_tail_nbytes = name->desc_nbytes;
        return grant(call, name->storage, &reply->grant);
    }
    if (request->flags & GET_WAIT) {
        struct waitlist *wait = catalog_waitlist(catalog, bytes, call->tail_nbytes);
        return wait ? call_wait(call, wait) : call_no_books(call);
    }
    if (name) {
        return call_fail(call, STATUS_NOT_FOUND, "\"%.*s\" has nothing newer than version %" PRIu64,
                         (int)call->tail_nbytes, bytes, request->newer_than);
    }
    return not_found(call, bytes, call->tail_nbytes);
}

static struct wire_entry entry_of(const struct server *server, const struct name *name) {
    const struct lease *lease = name->lease;
    uint64_t now_ms = server_now(server);
    struct wire_entry entry = {.version = name->version,
                               .storage = name->storage->id,
                               .nbytes = storage_reach(name->storage),
                               .age_ms = now_ms - name->put_ms,
                               .holders = name->storage->holders,
                               .publisher = name->publisher,
                               .desc_nbytes = name->desc_nbytes,
                               .name_nbytes = name->nbytes};

    if (lease && lease->end_ms != UINT64_MAX) {
        entry.flags |= ENTRY_EXPIRES;
        entry.ttl_left_ms = lease->end_ms > now_ms ? lease->end_ms - now_ms : 0;
    }
    if (lease && !list_is_empty(&lease->link)) {
        entry.flags |= ENTRY_EPHEMERAL;
    }
    return entry;
}

int handle_stat(struct call *call, const struct wire_stat *request, struct wire_stat_reply *reply) {
    const char *bytes = (const char *)call->tail;
    const char *wrong = name_check(bytes, call->tail_nbytes);

    (void)request;
    if (wrong) {
        return bad_name(call, wrong);
    }
    int r = channel_is_named(call, STATUS_INVALID, bytes, call->tail_nbytes);
    if (r != STATUS_OK) {
        return r;
    }
    const struct name *name = find(call, bytes, call->tail_nbytes);
    if (!name) {
        return not_found(call, bytes, call->tail_nbytes);
    }
    reply->entry = entry_of(call->server, name);
    call->reply_tail = name_desc(name);
    call->reply_tail_nbytes = name->desc_nbytes;
    return STATUS_OK;
}

/* Of a tensor, or of a channel. */
int handle_delete(struct call *call, const struct wire_delete *request,
                  struct wire_delete_reply *reply) {
    struct server *server = call->server;
    const char *bytes = (const char *)call->tail;
    const char *wrong = name_check(bytes, call->tail_nbytes);

    (void)request;
    if (wrong) {
        return bad_name(call, wrong);
    }
    struct name *name = find(call, bytes, call->tail_nbytes);
    struct channel *channel = channels_find_name(&server->channels, bytes, call->tail_nbytes);
    if (name) {
        reply->version = name->version;
        catalog_delete(&server->catalog, name);
    } else if (channel) {
        channel_delete(channel);
    } else {
        return not_found(call, bytes, call->tail_nbytes);
    }
    return STATUS_OK;
}

/* Returns whether there was room. */
static bool add_entry(struct call *call, const struct name *name) {
    struct wire_entry entry = entry_of(call->server, name);
    char *to = call_add(call, sizeof entry + entry.desc_nbytes + entry.name_nbytes);

    if (to) {
        memcpy(to, &entry, sizeof entry);
        memcpy(to + sizeof entry, name_desc(name), entry.desc_nbytes);
        memcpy(to + sizeof entry + entry.desc_nbytes, name->bytes, entry.name_nbytes);
    }
    return to != NULL;
}

int handle_list(struct call *call, const struct wire_list *request, struct wire_list_reply *reply) {
    const struct catalog *catalog = &call->server->catalog;
    const char *prefix = (const char *)call->tail;
    size_t prefix_nbytes = request->prefix_nbytes;
    const char *after = prefix + prefix_nbytes;
    size_t after_nbytes = request->after_nbytes;
    const struct name *name;

    if (prefix_nbytes + after_nbytes != call->tail_nbytes) {
        return call_broken(call, "LIST: the sizes of prefix and name are not those of the tail");
    }
    while ((name = catalog_next(catalog, prefix, prefix_nbytes, after, after_nbytes))) {
        if (!add_entry(call, name)) {
            reply->more = 1;
            break;
        }
        reply->count++;
        after = name->bytes;
        after_nbytes = name->nbytes;
    }
    return STATUS_OK;
}
