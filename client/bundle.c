#include "bundle.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "hold.h"
#include "index.h"
#include "session.h"

static const char *packed_bytes(const struct tcx_bundle *bundle) {
    return bundle->storage ? bundle->storage->address : bundle->base->array.data;
}

static uint64_t packed_nbytes(const struct tcx_bundle *bundle) {
    return bundle->storage ? bundle->storage->nbytes : bundle->base->nbytes;
}

/* A bundle's index is one array of bytes behind the arrays. Copies it: the original may change. */
static int copy_index(struct tcx_bundle *bundle, const struct desc *desc) {
    const char *wrong = desc_check(desc, packed_nbytes(bundle));

    if (!wrong && (desc->device || (bundle->storage && bundle->storage->device))) {
        wrong = "an index is on the CPU";
    }
    if (!wrong && (desc->ndim != 1 || dtype_nbytes(desc->dtype) != 1 || desc->shape[0] == 0 ||
                   !shape_is_contiguous(1, desc->shape, desc->strides))) {
        wrong = "an index is an array of bytes";
    }
    if (wrong) {
        return error(STATUS_INTERNAL, "a bundle's description cannot be right: %s", wrong);
    }
    bundle->index_offset = desc->byte_offset;
    bundle->index_nbytes = (size_t)desc->shape[0];
    bundle->index = malloc(bundle->index_nbytes);
    if (!bundle->index) {
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    memcpy(bundle->index, packed_bytes(bundle) + bundle->index_offset, bundle->index_nbytes);
    return STATUS_OK;
}

/* ------------------------------------------------------------------------------------ its items */

/* Pointers to all keys: how many there are is known only after a first look. */
static const char *count_keys(struct index_reader reader, size_t *ret_count) {
    struct index_item item;
    size_t count = 0;

    for (uint32_t i = 0; i < reader.items; i++) {
        const char *wrong = index_next(&reader, &item);
        if (wrong) {
            return wrong;
        }
        count += item.depth;
    }
    *ret_count = count;
    return NULL;
}

static int open_tensor(struct session *session, const struct tcx_bundle *bundle,
                       const struct index_item *item, struct storage *const *storages,
                       struct tcx_tensor **ret_tensor) {
    if (storages[item->storage]) {
        return tensor_from_desc(storage_ref(storages[item->storage]), &item->desc,
                                bundle->is_readonly, NULL, ret_tensor);
    }
    struct place place = {
        .session = session, .address = bundle->base->array.data, .nbytes = bundle->base->nbytes};
    int r = tensor_at(&place, &item->desc, bundle->is_readonly, NULL, ret_tensor);
    if (r == STATUS_OK) {
        (*ret_tensor)->base = tcx_tensor_ref(bundle->base);
    }
    return r;
}

static int open_item(struct session *session, struct tcx_bundle *bundle,
                     const struct index_item *item, struct storage *const *storages) {
    struct bundle_item *to = &bundle->items[bundle->count];
    int r = STATUS_OK;

    *to = (struct bundle_item){.depth = item->depth};
    if (item->has_tensor) {
        r = open_tensor(session, bundle, item, storages, &to->tensor);
    }
    if (r == STATUS_OK) {
        bundle->nbytes += to->tensor ? to->tensor->nbytes : 0;
        bundle->count++;
    }
    return r;
}

static int open_items(struct session *session, struct tcx_bundle *bundle,
                      struct index_reader *reader, struct storage *const *storages) {
    struct index_item item;
    size_t keys = 0;
    const char *wrong = count_keys(*reader, &keys);

    if (wrong) {
        return error(STATUS_INTERNAL, "a bundle's index cannot be right: %s", wrong);
    }
    bundle->items = calloc((size_t)reader->items + 1, sizeof *bundle->items);
    bundle->keys = calloc(keys + 1, sizeof *bundle->keys);
    if (!bundle->items || !bundle->keys) {
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    const char **next = bundle->keys;
    for (uint32_t i = 0; i < reader->items; i++) {
        index_next(reader, &item); /* as in count_keys() */
        int r = open_item(session, bundle, &item, storages);
        if (r != STATUS_OK) {
            return r;
        }
        memcpy(next, item.path, item.depth * sizeof *next);
        bundle->items[i].path = next;
        next += item.depth;
    }
    return STATUS_OK;
}

/* Everything that the copied index says. */
static int read_index(struct session *session, struct tcx_bundle *bundle) {
    struct index_reader reader;
    const char *wrong = index_open(&reader, bundle->index, bundle->index_nbytes);

    if (wrong) {
        return error(STATUS_INTERNAL, "a bundle's index cannot be right: %s", wrong);
    }
    struct storage **storages = calloc((size_t)reader.storage_count + 1, sizeof(struct storage *));
    if (!storages) {
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    storages[0] = bundle->storage;
    int r = hold_ids(session, reader.storages, reader.storage_count, storages + 1);
    if (r == STATUS_OK) {
        r = open_items(session, bundle, &reader, storages);
    }
    for (uint32_t i = 1; i <= reader.storage_count; i++) {
        storage_unref(storages[i]);
    }
    free(storages);
    return r;
}

/* Takes `storage` or `base`, whichever there is. */
static int open_packed(struct session *session, struct storage *storage, struct tcx_tensor *base,
                       const struct desc *desc, int readonly, const struct name_tag *tag,
                       struct tcx_bundle **ret_bundle) {
    struct tcx_bundle *bundle = calloc(1, sizeof *bundle);

    if (!bundle) {
        storage_unref(storage);
        tcx_tensor_unref(base);
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    atomic_init(&bundle->refs, 1);
    bundle->storage = storage;
    bundle->base = base;
    bundle->version = tag->version;
    bundle->is_readonly = readonly || (desc->flags & DESC_READONLY);
    bundle->name = tag->name ? strdup(tag->name) : NULL;
    int r =
        tag->name && !bundle->name ? error_plain(STATUS_OUT_OF_MEMORY) : copy_index(bundle, desc);
    if (r == STATUS_OK) {
        r = read_index(session, bundle);
    }
    if (r != STATUS_OK) {
        tcx_bundle_unref(bundle);
        return r;
    }
    *ret_bundle = bundle;
    return STATUS_OK;
}

int bundle_open(struct session *session, struct storage *storage, const struct desc *desc,
                int readonly, const struct name_tag *tag, struct tcx_bundle **ret_bundle) {
    return open_packed(session, storage, NULL, desc, readonly, tag, ret_bundle);
}

int bundle_open_in(struct session *session, struct tcx_tensor *base, const struct desc *desc,
                   struct tcx_bundle **ret_bundle) {
    static const struct name_tag no_name;

    return open_packed(session, NULL, base, desc, 0, &no_name, ret_bundle);
}

/* --------------------------------------------------------------------------------------- public */

tcx_bundle_t *tcx_bundle_ref(tcx_bundle_t *bundle) {
    if (bundle) {
        atomic_fetch_add_explicit(&bundle->refs, 1, memory_order_relaxed);
    }
    return bundle;
}

void tcx_bundle_unref(tcx_bundle_t *bundle) {
    if (!bundle || atomic_fetch_sub_explicit(&bundle->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    for (size_t i = 0; i < bundle->count; i++) {
        tcx_tensor_unref(bundle->items[i].tensor);
    }
    storage_unref(bundle->storage);
    tcx_tensor_unref(bundle->base);
    free(bundle->items);
    free(bundle->keys);
    free(bundle->index);
    free(bundle->name);
    free(bundle);
}

size_t tcx_bundle_count(const tcx_bundle_t *bundle) {
    return bundle->count;
}

void tcx_bundle_item(const tcx_bundle_t *bundle, size_t index, const char *const **ret_path,
                     size_t *ret_depth, tcx_tensor_t **ret_tensor) {
    const struct bundle_item *item = &bundle->items[index];

    *ret_path = item->path;
    *ret_depth = item->depth;
    *ret_tensor = item->tensor;
}

void tcx_bundle_info(const tcx_bundle_t *bundle, tcx_info_t *ret_info) {
    *ret_info = (tcx_info_t){
        .nbytes = bundle->nbytes,
        .storage_id = bundle->storage ? bundle->storage->id : 0,
        .storage_nbytes = packed_nbytes(bundle),
        .version = bundle->version,
        .name = bundle->name,
        .readonly = bundle->is_readonly,
        .is_shared = bundle->storage && session_is_alive(bundle->storage->session),
        .device = {TCX_CPU, 0},
    };
}
