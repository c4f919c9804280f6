#include "index.h"

#include <stdlib.h>
#include <string.h>

#include "messages.h"
#include "name.h"

#define MAGIC 0x42584354u /* "TCXB" */

struct head {
    uint32_t magic;
    uint32_t items;
    uint32_t storages;
    uint32_t reserved;
};

struct item_head {
    uint32_t storage;
    uint32_t keys_nbytes;
    uint16_t desc_nbytes; /* 0: an empty mapping */
    uint16_t depth;
    uint32_t reserved;
};

_Static_assert(sizeof(struct head) == 16 && sizeof(struct item_head) == 16,
               "other processes read it");

/* -------------------------------------------------------------------------------------- writing */

static void append(struct index_writer *writer, const void *bytes, size_t nbytes) {
    if (writer->nbytes + nbytes > writer->capacity) {
        size_t capacity = 2 * (writer->nbytes + nbytes);
        char *grown = writer->is_out_of_memory ? NULL : realloc(writer->bytes, capacity);
        if (!grown) {
            writer->is_out_of_memory = 1;
            return;
        }
        writer->bytes = grown;
        writer->capacity = capacity;
    }
    if (nbytes > 0) {
        memcpy(writer->bytes + writer->nbytes, bytes, nbytes);
    }
    writer->nbytes += nbytes;
}

static void pad(struct index_writer *writer) {
    static const char zeroes[8];

    append(writer, zeroes, -writer->nbytes & 7);
}

void index_begin(struct index_writer *writer, uint32_t items, const uint64_t *storages,
                 uint32_t count) {
    struct head head = {MAGIC, items, count, 0};

    *writer = (struct index_writer){0};
    append(writer, &head, sizeof head);
    append(writer, storages, count * sizeof *storages);
}

void index_add(struct index_writer *writer, const char *const *path, size_t depth, uint32_t storage,
               const struct desc *desc) {
    char encoded[WIRE_DESC_MAX];
    struct item_head head = {
        .storage = storage,
        .desc_nbytes = desc ? (uint16_t)desc_encode(desc, encoded) : 0,
        .depth = (uint16_t)depth,
    };

    for (size_t i = 0; i < depth; i++) {
        head.keys_nbytes += (uint32_t)(sizeof(uint16_t) + strlen(path[i]) + 1);
    }
    append(writer, &head, sizeof head);
    append(writer, encoded, head.desc_nbytes);
    for (size_t i = 0; i < depth; i++) {
        uint16_t length = (uint16_t)strlen(path[i]);
        append(writer, &length, sizeof length);
        append(writer, path[i], (size_t)length + 1);
    }
    pad(writer);
}

void index_free(struct index_writer *writer) {
    free(writer->bytes);
    *writer = (struct index_writer){0};
}

/* -------------------------------------------------------------------------------------- reading */

static size_t left(const struct index_reader *reader) {
    return (size_t)(reader->end - reader->at);
}

const char *index_open(struct index_reader *reader, const void *bytes, size_t nbytes) {
    struct head head;

    if (nbytes < sizeof head) {
        return "the index is cut short";
    }
    memcpy(&head, bytes, sizeof head);
    if (head.magic != MAGIC) {
        return "there is no index where one should be";
    }
    *reader = (struct index_reader){
        .at = (const char *)bytes + sizeof head,
        .end = (const char *)bytes + nbytes,
        .items = head.items,
        .storage_count = head.storages,
        .storages = (const void *)((const char *)bytes + sizeof head),
    };
    if (head.storages > left(reader) / sizeof(uint64_t)) {
        return "the index counts more storages than it has";
    }
    reader->at += head.storages * sizeof(uint64_t);
    if (head.items > left(reader) / sizeof(struct item_head)) {
        return "the index counts more items than it has";
    }
    return NULL;
}

/* Splits the keys of one item, which take exactly `nbytes`. */
static const char *read_keys(const char *at, size_t nbytes, struct index_item *item) {
    for (size_t i = 0; i < item->depth; i++) {
        uint16_t length;
        if (nbytes < sizeof length) {
            return "a key is cut short";
        }
        memcpy(&length, at, sizeof length);
        at += sizeof length;
        nbytes -= sizeof length;
        if (nbytes < (size_t)length + 1) {
            return "a key is cut short";
        }
        if (at[length] != '\0' || memchr(at, '\0', length) || !text_is_utf8(at, length)) {
            return "a key is not text";
        }
        item->path[i] = at;
        at += (size_t)length + 1;
        nbytes -= (size_t)length + 1;
    }
    return nbytes == 0 ? NULL : "the keys are longer than their path";
}

const char *index_next(struct index_reader *reader, struct index_item *ret_item) {
    struct item_head head;
    const char *wrong = NULL;

    if (left(reader) < sizeof head) {
        return "the index is cut short";
    }
    memcpy(&head, reader->at, sizeof head);
    reader->at += sizeof head;
    if (head.depth < 1 || head.depth > INDEX_DEPTH_MAX) {
        return "a path has 1 to 64 keys";
    }
    if (head.storage > reader->storage_count) {
        return "an item lies in a storage that the index does not name";
    }
    size_t padded = (size_t)head.desc_nbytes + head.keys_nbytes;
    padded += -padded & 7;
    if (padded > left(reader)) {
        return "the index is cut short";
    }
    ret_item->storage = head.storage;
    ret_item->depth = head.depth;
    ret_item->has_tensor = head.desc_nbytes > 0;
    if (ret_item->has_tensor) {
        wrong = desc_decode(reader->at, head.desc_nbytes, &ret_item->desc);
    }
    if (!wrong) {
        wrong = read_keys(reader->at + head.desc_nbytes, head.keys_nbytes, ret_item);
    }
    reader->at += padded;
    return wrong;
}
