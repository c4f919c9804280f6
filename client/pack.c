/*
 * pack.c - put a bundle: private arrays packed into one storage per device, shared ones referred
 * to, an index
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bundle.h"
#include "call.h"
#include "client.h"
#include "copy.h"
#include "error.h"
#include "hold.h"
#include "layout.h"
#include "name.h"
#include "pack.h"
#include "step.h"

/* Of arrays in a pack: what consumers of DLPack ask for at most; what allocators of CUDA give. */
#define ITEM_ALIGNMENT        64
#define DEVICE_ITEM_ALIGNMENT 256

struct entry {
    const tcx_item_t *item; /* borrowed: the caller's */
    uint64_t nbytes;
    struct device *device;   /* where it is to be; NULL: the CPU */
    struct storage *storage; /* counted: what it refers to; NULL: private, or an empty mapping */
    struct entry *same;      /* an earlier entry with the same memory and layout; NULL: none */
    int is_copy;             /* of private memory, in a part */
    uint64_t offset;         /* in the pack, or in `storage` */
};

/* The private arrays that are to be on one device. */
struct part {
    struct device *device;
    uint64_t nbytes;
    struct storage *storage; /* counted; NULL: not yet */
};

/* ---------------------------------------------------------------------------------------- paths */

static int error_at(const tcx_item_t *item, int status, const char *text) {
    char path[256];
    size_t length = 0;

    path[0] = '\0';
    for (size_t i = 0; item->path && i < item->depth && length < sizeof path; i++) {
        length += (size_t)snprintf(path + length, sizeof path - length, "%s%s", i ? "/" : "",
                                   item->path[i] ? item->path[i] : "(null)");
    }
    return error(status, "item \"%s\": %s", path, text);
}

static int check_path(const tcx_item_t *item) {
    if (!item->path || item->depth < 1 || item->depth > INDEX_DEPTH_MAX) {
        return error(STATUS_INVALID, "an item's path has 1 to %d keys, not %zu", INDEX_DEPTH_MAX,
                     item->path ? item->depth : 0);
    }
    for (size_t i = 0; i < item->depth; i++) {
        const char *key = item->path[i];
        size_t length = key ? strlen(key) : 0;
        if (!key || length > INDEX_KEY_MAX || !text_is_utf8(key, length)) {
            return error_at(item, STATUS_INVALID, "a key is UTF-8 of at most 65535 bytes");
        }
    }
    return STATUS_OK;
}

/* Order in which a path comes right before those that begin with it. */
static int compare_paths(const void *a, const void *b) {
    const tcx_item_t *left = (*(struct entry *const *)a)->item;
    const tcx_item_t *right = (*(struct entry *const *)b)->item;

    for (size_t i = 0; i < left->depth && i < right->depth; i++) {
        int order = strcmp(left->path[i], right->path[i]);
        if (order != 0) {
            return order;
        }
    }
    return (left->depth > right->depth) - (left->depth < right->depth);
}

static int begins_with(const tcx_item_t *item, const tcx_item_t *prefix) {
    if (item->depth < prefix->depth) {
        return 0;
    }
    for (size_t i = 0; i < prefix->depth; i++) {
        if (strcmp(item->path[i], prefix->path[i]) != 0) {
            return 0;
        }
    }
    return 1;
}

/* No path twice, and none that leads through a tensor or through an empty mapping. */
static int check_paths_differ(const struct pack *pack) {
    qsort(pack->sorted, pack->count, sizeof(struct entry *), compare_paths);
    for (size_t i = 1; i < pack->count; i++) {
        const tcx_item_t *item = pack->sorted[i]->item;
        if (begins_with(item, pack->sorted[i - 1]->item)) {
            return error_at(item, STATUS_INVALID,
                            "the path is there twice, or leads through an item");
        }
    }
    return STATUS_OK;
}

/* --------------------------------------------------------------------------------------- memory */

static int is_private(const struct entry *entry) {
    return entry->item->array && !entry->storage;
}

/* One entry: is it well-formed, does it lie in a storage of ours, may it be copied. */
static int look_at(struct session *session, const struct publication *publication,
                   struct entry *entry) {
    const tcx_array_t *array = entry->item->array;
    int r = check_path(entry->item);

    if (r != STATUS_OK || !array) {
        return r;
    }
    r = layout_check(array, &entry->nbytes);
    if (r == STATUS_OK) {
        r = publication_device(publication, array, &entry->device);
    }
    if (r == STATUS_OK) {
        r = publication_hold(publication, session, array, entry->nbytes, entry->device,
                             &entry->storage);
    }
    if (r != STATUS_OK) {
        return error_at(entry->item, r, tcx_error());
    }
    if (entry->storage) {
        entry->offset = (uint64_t)((char *)array->data - entry->storage->address);
    }
    return STATUS_OK;
}

static int compare_memory(const void *a, const void *b) {
    struct entry *const *left = a;
    struct entry *const *right = b;
    int order = layout_compare((*left)->item->array, (*right)->item->array);

    return order ? order : (*left > *right) - (*left < *right); /* of equals, the first one put */
}

/* Finds private arrays that are there twice: the same memory and layout. */
static void find_same(struct pack *pack) {
    size_t n = 0;

    for (size_t i = 0; i < pack->count; i++) {
        if (is_private(&pack->entries[i])) {
            pack->sorted[n++] = &pack->entries[i];
        }
    }
    qsort(pack->sorted, n, sizeof(struct entry *), compare_memory);
    for (size_t i = 1; i < n; i++) {
        struct entry *before = pack->sorted[i - 1];
        if (layout_compare(before->item->array, pack->sorted[i]->item->array) == 0) {
            pack->sorted[i]->same = before->same ? before->same : before;
        }
    }
}

/* The part for a device; NULL: out of memory, error set. */
static struct part *part_of(struct pack *pack, struct device *device) {
    for (size_t i = 0; i < pack->part_count; i++) {
        if (pack->parts[i].device == device) {
            return &pack->parts[i];
        }
    }
    struct part *parts = realloc(pack->parts, (pack->part_count + 1) * sizeof *parts);
    if (!parts) {
        error_plain(STATUS_OUT_OF_MEMORY);
        return NULL;
    }
    pack->parts = parts;
    parts[pack->part_count] = (struct part){.device = device};
    return &parts[pack->part_count++];
}

/* Appends an array to those that are `*nbytes` so far. */
static int place(struct entry *entry, uint64_t *nbytes, uint64_t alignment) {
    if (entry->nbytes > INT64_MAX / 2 - *nbytes) {
        return error(STATUS_INVALID, "the bundle overflows: it has more than 2^62 bytes");
    }
    entry->offset = *nbytes;
    *nbytes += entry->nbytes;
    *nbytes += -*nbytes & (alignment - 1);
    return STATUS_OK;
}

/* Gives every private array its place; the same memory and layout twice is stored once. */
static int place_private(struct pack *pack) {
    int r = STATUS_OK;

    find_same(pack);
    for (size_t i = 0; i < pack->count && r == STATUS_OK; i++) {
        struct entry *entry = &pack->entries[i];
        if (!is_private(entry)) {
            continue;
        }
        if (entry->same) { /* an earlier one */
            entry->offset = entry->same->offset;
        } else if (!entry->device) {
            r = place(entry, &pack->data_nbytes, ITEM_ALIGNMENT);
        } else {
            struct part *part = part_of(pack, entry->device);
            r = part ? place(entry, &part->nbytes, DEVICE_ITEM_ALIGNMENT) : STATUS_OUT_OF_MEMORY;
        }
    }
    return r;
}

/* Copies what is to be on a device there; from then on it is referred to. Asks the daemon. */
static int fill_part(const struct pack *pack, struct session *session, struct part *part) {
    int r = storage_allocate(session, part->device, part->nbytes, &part->storage);

    for (size_t i = 0; i < pack->count && r == STATUS_OK; i++) {
        struct entry *entry = &pack->entries[i];
        if (!is_private(entry) || entry->device != part->device) {
            continue;
        }
        if (!entry->same && entry->nbytes > 0) {
            r = copy_array(entry->item->array, part->device,
                           part->storage->address + entry->offset);
        }
        if (r != STATUS_OK) {
            return error_at(entry->item, r, tcx_error());
        }
        entry->storage = storage_ref(part->storage);
        entry->is_copy = 1;
    }
    return r;
}

static int fill_parts(const struct pack *pack, struct session *session) {
    int r = STATUS_OK;

    for (size_t i = 0; i < pack->part_count && r == STATUS_OK; i++) {
        r = fill_part(pack, session, &pack->parts[i]);
    }
    return r;
}

static int compare_ids(const void *a, const void *b) {
    const uint64_t *left = a;
    const uint64_t *right = b;

    return (*left > *right) - (*left < *right);
}

/* The storages referred to, each once. */
static int collect_ids(struct pack *pack) {
    uint32_t n = 0;

    pack->ids = malloc((pack->count + 1) * sizeof *pack->ids);
    if (!pack->ids) {
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    for (size_t i = 0; i < pack->count; i++) {
        if (pack->entries[i].storage) {
            pack->ids[n++] = pack->entries[i].storage->id;
        }
    }
    qsort(pack->ids, n, sizeof *pack->ids, compare_ids);
    for (uint32_t i = 0; i < n; i++) {
        if (pack->id_count == 0 || pack->ids[pack->id_count - 1] != pack->ids[i]) {
            pack->ids[pack->id_count++] = pack->ids[i];
        }
    }
    return STATUS_OK;
}

static int write_index(struct pack *pack, const struct publication *publication) {
    index_begin(&pack->index, (uint32_t)pack->count, pack->ids, pack->id_count);
    for (size_t i = 0; i < pack->count; i++) {
        const struct entry *entry = &pack->entries[i];
        const tcx_item_t *item = entry->item;
        uint32_t flags = publication->desc_flags;
        uint32_t place = 0;
        struct desc desc;
        if (!item->array) {
            index_add(&pack->index, item->path, item->depth, 0, NULL);
            continue;
        }
        if (entry->storage) {
            const uint64_t *id = bsearch(&entry->storage->id, pack->ids, pack->id_count,
                                         sizeof *pack->ids, compare_ids);
            place = (uint32_t)(id - pack->ids) + 1;
            flags |= item->array->readonly && !entry->is_copy ? DESC_READONLY : 0u;
        }
        layout_describe(item->array, entry->storage ? entry->storage->device_index : 0,
                        entry->offset, flags, &desc);
        index_add(&pack->index, item->path, item->depth, place, &desc);
    }
    return pack->index.is_out_of_memory ? error_plain(STATUS_OUT_OF_MEMORY) : STATUS_OK;
}

int pack_init(struct pack *pack, struct session *session, const struct publication *publication,
              const tcx_item_t *items, size_t count) {
    int r = STATUS_OK;

    *pack = (struct pack){.count = count};
    if (count > UINT32_MAX / 2 || (count > 0 && !items)) {
        return error(STATUS_INVALID, "a bundle cannot have %zu items", count);
    }
    pack->entries = calloc(count + 1, sizeof *pack->entries);
    pack->sorted = calloc(count + 1, sizeof(struct entry *));
    if (!pack->entries || !pack->sorted) {
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    for (size_t i = 0; i < count && r == STATUS_OK; i++) {
        pack->entries[i].item = &items[i];
        pack->sorted[i] = &pack->entries[i];
        r = look_at(session, publication, &pack->entries[i]);
    }
    r = r == STATUS_OK ? check_paths_differ(pack) : r;
    r = r == STATUS_OK ? place_private(pack) : r;
    r = r == STATUS_OK ? fill_parts(pack, session) : r;
    r = r == STATUS_OK ? collect_ids(pack) : r;
    return r == STATUS_OK ? write_index(pack, publication) : r;
}

void pack_fini(struct pack *pack) {
    for (size_t i = 0; pack->entries && i < pack->count; i++) {
        storage_unref(pack->entries[i].storage);
    }
    for (size_t i = 0; i < pack->part_count; i++) {
        storage_unref(pack->parts[i].storage);
    }
    index_free(&pack->index);
    free(pack->parts);
    free(pack->ids);
    free(pack->sorted);
    free(pack->entries);
}

/* -------------------------------------------------------------------------------------- putting */

uint64_t pack_nbytes(const struct pack *pack) {
    return pack->data_nbytes + pack->index.nbytes;
}

void pack_describe(const struct pack *pack, uint32_t flags, struct desc *ret_desc) {
    int64_t length = (int64_t)pack->index.nbytes;
    tcx_array_t index = {.dtype = {TCX_UINT, 8, 1}, .ndim = 1, .shape = &length};

    layout_describe(&index, 0, pack->data_nbytes, DESC_BUNDLE | flags, ret_desc);
}

int pack_write(const struct pack *pack, char *to) {
    for (size_t i = 0; i < pack->count; i++) {
        const struct entry *entry = &pack->entries[i];
        int r = is_private(entry) && !entry->same
                    ? copy_array(entry->item->array, NULL, to + entry->offset)
                    : STATUS_OK;
        if (r != STATUS_OK) {
            return error_at(entry->item, r, tcx_error());
        }
    }
    memcpy(to + pack->data_nbytes, pack->index.bytes, pack->index.nbytes);
    return STATUS_OK;
}

/* Makes the pack keep alive what it refers to. */
static int attach(struct session *session, const struct storage *storage, const struct pack *pack) {
    struct wire_attach fixed = {.storage = storage->id};
    struct frame frame = REQUEST(ATTACH, &fixed);
    struct call *call;
    int r = STATUS_OK;

    for (uint32_t at = 0; at < pack->id_count && r == STATUS_OK; at += WIRE_IDS_MAX) {
        uint32_t n = pack->id_count - at < WIRE_IDS_MAX ? pack->id_count - at : WIRE_IDS_MAX;
        frame.tail[0] = pack->ids + at;
        frame.tail_nbytes[0] = n * sizeof *pack->ids;
        r = call_run(session, &frame, 0, &call);
        if (r == STATUS_OK) {
            call_free(session, call);
        }
    }
    return r;
}

int pack_store(const struct pack *pack, struct session *session, struct storage **ret_storage) {
    struct storage *storage;
    int r = storage_allocate(session, NULL, pack_nbytes(pack), &storage);

    if (r != STATUS_OK) {
        return r;
    }
    storage_populate(storage);
    r = pack_write(pack, storage->address);
    REACHED(PACK_FILLED);
    r = r == STATUS_OK ? attach(session, storage, pack) : r;
    REACHED(PACK_ATTACHED);
    if (r != STATUS_OK) {
        storage_unref(storage);
        return r;
    }
    *ret_storage = storage;
    return STATUS_OK;
}

/* The whole pack in one message. */
static int put_small(struct session *session, const struct publication *publication,
                     const struct pack *pack, const struct desc *desc, struct storage **ret_storage,
                     uint64_t *ret_version) {
    size_t nbytes = pack_nbytes(pack);
    struct wire_grant grant;
    char *bytes = calloc(1, nbytes); /* zeroes between arrays: no old bytes of ours leave */

    if (!bytes) {
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    int r = pack_write(pack, bytes);
    if (r == STATUS_OK) {
        r = publish_bytes(session, publication, desc, bytes, nbytes, &grant, ret_version);
    }
    free(bytes);
    return r == STATUS_OK ? storage_take(session, &grant, ret_storage) : r;
}

static int put_large(struct session *session, const struct publication *publication,
                     const struct pack *pack, const struct desc *desc, struct storage **ret_storage,
                     uint64_t *ret_version) {
    struct storage *storage;
    int r = pack_store(pack, session, &storage);

    if (r == STATUS_OK && publication->name) {
        r = publish_storage(session, publication, storage, desc, ret_version);
        if (r != STATUS_OK) {
            storage_unref(storage);
        }
    }
    if (r == STATUS_OK) {
        *ret_storage = storage;
    }
    return r;
}

static int put_pack(struct session *session, const struct publication *publication,
                    const struct pack *pack, tcx_bundle_t **ret_bundle) {
    int is_small = pack->id_count == 0 && pack_nbytes(pack) <= WIRE_PUT_MAX;
    struct storage *storage;
    uint64_t version = 0;
    struct desc desc;

    pack_describe(pack, publication->desc_flags, &desc);
    int r = publication->name && is_small
                ? put_small(session, publication, pack, &desc, &storage, &version)
                : put_large(session, publication, pack, &desc, &storage, &version);
    if (r != STATUS_OK) {
        return r;
    }
    if (!ret_bundle) {
        storage_unref(storage);
        return STATUS_OK;
    }
    struct name_tag tag = {publication->name, version};
    return bundle_open(session, storage, &desc, 0, &tag, ret_bundle);
}

int tcx_put_bundle(tcx_client_t *client, const char *name, const tcx_item_t *items, size_t count,
                   const tcx_put_options_t *options, tcx_bundle_t **ret_bundle) {
    struct publication publication;
    struct session *session;
    struct pack pack;
    int r = publication_init(name, options, &publication);

    if (r == STATUS_OK) {
        r = client_session(client, &session);
    }
    if (r != STATUS_OK) {
        return r;
    }
    r = pack_init(&pack, session, &publication, items, count);
    if (r == STATUS_OK) {
        r = put_pack(session, &publication, &pack, ret_bundle);
    }
    pack_fini(&pack);
    session_unref(session);
    return r;
}
