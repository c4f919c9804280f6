/* The index of a bundle: what is written is read, and what is hostile is refused. */
#include <stdlib.h>

#include "fixture.h"
#include "index.h"
#include "messages.h"

static const struct desc scalar = {.dtype = {2, 32, 1}, .device_type = 1, .byte_offset = 64};

static struct desc vector(int64_t count) {
    struct desc desc = scalar;

    desc.ndim = 1;
    desc.shape[0] = count;
    desc.strides[0] = 1;
    return desc;
}

/* Three items, two of them in other storages. */
static struct index_writer example(void) {
    struct index_writer writer;
    const uint64_t storages[2] = {11, 12};
    struct desc five = vector(5);

    index_begin(&writer, 3, storages, 2);
    index_add(&writer, (const char *[]){"layers", "0", "weight"}, 3, 2, &five);
    index_add(&writer, (const char *[]){""}, 1, 0, &scalar);
    index_add(&writer, (const char *[]){"nichts", "\xc3\xa4"}, 2, 0, NULL);
    EXPECT_TRUE(!writer.is_out_of_memory);
    return writer;
}

/* Reads all of it as a client would. Returns what is wrong, or NULL. */
static const char *read_all(const void *bytes, size_t nbytes) {
    struct index_reader reader;
    struct index_item item;
    /* A copy of exactly the size, so that a sanitizer sees every step beyond it. */
    char *copy = malloc(nbytes ? nbytes : 1);

    memcpy(copy, bytes, nbytes);
    const char *wrong = index_open(&reader, copy, nbytes);
    for (uint32_t i = 0; !wrong && i < reader.items; i++) {
        wrong = index_next(&reader, &item);
        for (size_t k = 0; !wrong && k < item.depth; k++) {
            EXPECT_TRUE(strlen(item.path[k]) <= INDEX_KEY_MAX);
        }
        EXPECT_TRUE(wrong || item.storage <= reader.storage_count);
    }
    for (uint32_t i = 0; !wrong && i < reader.storage_count; i++) {
        volatile uint64_t id = reader.storages[i];
        (void)id;
    }
    free(copy);
    return wrong;
}

TEST(what_is_written_is_read) {
    struct index_writer writer = example();
    struct index_reader reader;
    struct index_item item;

    EXPECT_TRUE(index_open(&reader, writer.bytes, writer.nbytes) == NULL);
    EXPECT_EQ(3, reader.items);
    EXPECT_EQ(2, reader.storage_count);
    EXPECT_EQ(12, reader.storages[1]);

    EXPECT_TRUE(index_next(&reader, &item) == NULL);
    EXPECT_EQ(3, item.depth);
    EXPECT_STR_EQ("weight", item.path[2]);
    EXPECT_EQ(2, item.storage);
    EXPECT_EQ(5, item.desc.shape[0]);

    EXPECT_TRUE(index_next(&reader, &item) == NULL);
    EXPECT_STR_EQ("", item.path[0]);
    EXPECT_EQ(0, item.storage);
    EXPECT_EQ(0, item.desc.ndim);
    EXPECT_EQ(64, item.desc.byte_offset);

    EXPECT_TRUE(index_next(&reader, &item) == NULL);
    EXPECT_TRUE(!item.has_tensor);
    EXPECT_STR_EQ("\xc3\xa4", item.path[1]);
    index_free(&writer);
}

TEST(an_empty_bundle_has_an_index) {
    struct index_writer writer;

    index_begin(&writer, 0, NULL, 0);
    EXPECT_TRUE(read_all(writer.bytes, writer.nbytes) == NULL);
    index_free(&writer);
}

TEST(the_longest_path_fits) {
    struct index_writer writer;
    struct index_reader reader;
    struct index_item item;
    const char *path[INDEX_DEPTH_MAX];
    char *key = malloc(INDEX_KEY_MAX + 1);

    memset(key, 'k', INDEX_KEY_MAX);
    key[INDEX_KEY_MAX] = '\0';
    for (int i = 0; i < INDEX_DEPTH_MAX; i++) {
        path[i] = key;
    }
    index_begin(&writer, 1, NULL, 0);
    index_add(&writer, path, INDEX_DEPTH_MAX, 0, &scalar);
    EXPECT_TRUE(index_open(&reader, writer.bytes, writer.nbytes) == NULL);
    EXPECT_TRUE(index_next(&reader, &item) == NULL);
    EXPECT_EQ(INDEX_DEPTH_MAX, item.depth);
    EXPECT_STR_EQ(key, item.path[63]);
    free(key);
    index_free(&writer);
}

TEST(an_index_cut_anywhere_is_refused) {
    struct index_writer writer = example();

    EXPECT_TRUE(read_all(writer.bytes, writer.nbytes) == NULL);
    for (size_t nbytes = 0; nbytes < writer.nbytes; nbytes++) {
        EXPECT_TRUE(read_all(writer.bytes, nbytes) != NULL);
    }
    index_free(&writer);
}

TEST(any_byte_may_be_any_value_without_harm) {
    struct index_writer writer = example();
    static const unsigned char values[] = {0, 1, 0x7f, 0x80, 0xff};

    for (size_t at = 0; at < writer.nbytes; at++) {
        char saved = writer.bytes[at];
        for (size_t v = 0; v < sizeof values; v++) {
            writer.bytes[at] = (char)values[v];
            read_all(writer.bytes, writer.nbytes); /* the sanitizers watch */
        }
        writer.bytes[at] = saved;
    }
    index_free(&writer);
}

TEST(random_bytes_behind_a_good_start_do_no_harm) {
    struct index_writer writer = example();

    srandom(3);
    for (int round = 0; round < 20000; round++) {
        char bytes[256];
        memcpy(bytes, writer.bytes, writer.nbytes < sizeof bytes ? writer.nbytes : sizeof bytes);
        for (int k = 0; k < 8; k++) {
            bytes[16 + (size_t)random() % (sizeof bytes - 16)] = (char)random();
        }
        read_all(bytes, (size_t)random() % sizeof bytes);
    }
    index_free(&writer);
}

/* Changes a 32-bit field of the example and reads it. */
static const char *read_with(size_t offset, uint32_t value) {
    struct index_writer writer = example();

    memcpy(writer.bytes + offset, &value, sizeof value);
    const char *wrong = read_all(writer.bytes, writer.nbytes);
    index_free(&writer);
    return wrong;
}

TEST(counts_beyond_the_index_are_refused) {
    EXPECT_STR_EQ("there is no index where one should be", read_with(0, 0));
    EXPECT_STR_EQ("the index counts more items than it has", read_with(4, UINT32_MAX));
    EXPECT_STR_EQ("the index counts more storages than it has", read_with(8, UINT32_MAX));
}

TEST(an_item_in_a_storage_that_is_not_named_is_refused) {
    enum { FIRST_ITEM = 16 + 2 * 8 };

    EXPECT_TRUE(read_with(FIRST_ITEM, 2) == NULL);
    EXPECT_STR_EQ("an item lies in a storage that the index does not name",
                  read_with(FIRST_ITEM, 3));
    EXPECT_STR_EQ("the index is cut short", read_with(FIRST_ITEM + 4, UINT32_MAX));
}

TEST(a_key_with_a_zero_or_without_text_is_refused) {
    struct index_writer writer = example();
    char *key = memmem(writer.bytes, writer.nbytes, "layers", 6);

    key[2] = '\0';
    EXPECT_STR_EQ("a key is not text", read_all(writer.bytes, writer.nbytes));
    key[2] = '\xff';
    EXPECT_STR_EQ("a key is not text", read_all(writer.bytes, writer.nbytes));
    index_free(&writer);
}
