/* Tensors in and out of a real daemon. */
#include <pthread.h>

#include "own_daemon.h"

static struct own_daemon own;
static tcx_client_t *client;

static void given_daemon(void) {
    daemon_start(&own);
    client = daemon_client(&own);
}

/* Nothing may be left but `names` storages. */
static void end(uint64_t names) {
    expect_settles(client, 0, names);
    tcx_client_close(client);
    daemon_stop(&own);
    daemon_clean(&own);
}

static const tcx_dtype_t float32 = {TCX_FLOAT, 32, 1};

static tcx_info_t info_of(const tcx_tensor_t *tensor) {
    tcx_info_t info;

    tcx_tensor_info(tensor, &info);
    return info;
}

static tcx_tensor_t *get(const char *name) {
    tcx_tensor_t *tensor;

    EXPECT_OK(tcx_get(client, name, NULL, &tensor, NULL));
    return tensor;
}

/* ------------------------------------------------------------------------------------- put, get */

TEST(what_is_put_is_got_with_all_it_says) {
    struct floats floats;
    float data[3] = {1, 2, 3};
    tcx_tensor_t *put;

    given_daemon();
    EXPECT_OK(tcx_put(client, "a/b", floats_on(&floats, data, 3), NULL, &put));
    tcx_tensor_t *got = get("a/b");
    tcx_info_t info = info_of(got);
    EXPECT_TRUE(floats_of(put) == floats_of(got));
    EXPECT_EQ(2, floats_of(got)[1]);
    EXPECT_EQ(0, (uintptr_t)floats_of(got) % 256);
    EXPECT_STR_EQ("a/b", info.name);
    EXPECT_EQ(1, info.version);
    EXPECT_EQ(12, info.nbytes);
    EXPECT_EQ(12, info.storage_nbytes);
    EXPECT_TRUE(info.is_shared && !info.readonly && info.storage_id != 0);
    tcx_tensor_unref(put);
    tcx_tensor_unref(got);
    end(1);
}

TEST(a_put_replaces_and_readers_keep_what_they_have) {
    struct floats floats;
    float one = 1;
    float two = 2;

    given_daemon();
    EXPECT_OK(tcx_put(client, "x", floats_on(&floats, &one, 1), NULL, NULL));
    tcx_tensor_t *old = get("x");
    EXPECT_OK(tcx_put(client, "x", floats_on(&floats, &two, 1), NULL, NULL));
    tcx_tensor_t *new = get("x");
    EXPECT_EQ(1, floats_of(old)[0]);
    EXPECT_EQ(2, floats_of(new)[0]);
    EXPECT_TRUE(info_of(new).version > info_of(old).version);
    EXPECT_OK(tcx_delete(client, "x"));
    EXPECT_EQ(2, floats_of(new)[0]);
    tcx_tensor_unref(old);
    tcx_tensor_unref(new);
    end(0);
}

TEST(every_dtype_and_size_comes_back_exactly) {
    static const tcx_dtype_t dtypes[] = {
        {TCX_BOOL, 8, 1},     {TCX_INT, 8, 1},      {TCX_INT, 16, 1},   {TCX_INT, 32, 1},
        {TCX_INT, 64, 1},     {TCX_UINT, 8, 1},     {TCX_UINT, 16, 1},  {TCX_UINT, 32, 1},
        {TCX_UINT, 64, 1},    {TCX_FLOAT, 16, 1},   {TCX_FLOAT, 32, 1}, {TCX_FLOAT, 64, 1},
        {TCX_COMPLEX, 64, 1}, {TCX_COMPLEX, 128, 1}};
    static const int64_t counts[] = {1, 7, 4095, 4096, 4097, 65536, 65537, 300000};
    char *bytes = malloc(300000 * 16);

    given_daemon();
    for (size_t i = 0; i < 300000 * 16; i++) {
        bytes[i] = (char)(i * 31 + i / 257);
    }
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            tcx_array_t array = {.data = bytes, .dtype = dtypes[d], .ndim = 1, .shape = &counts[c]};
            size_t nbytes = (size_t)counts[c] * dtypes[d].bits / 8;
            EXPECT_OK(tcx_put(client, "x", &array, NULL, NULL));
            tcx_tensor_t *tensor = get("x");
            EXPECT_EQ(nbytes, info_of(tensor).nbytes);
            EXPECT_EQ(0, memcmp(&dtypes[d], &tcx_tensor_array(tensor)->dtype, sizeof *dtypes));
            EXPECT_EQ(0, memcmp(bytes, tcx_tensor_array(tensor)->data, nbytes));
            tcx_tensor_unref(tensor);
        }
    }
    free(bytes);
    end(1);
}

TEST(scalars_and_empty_shapes_keep_their_shape) {
    static const int64_t empty[3] = {5, 0, 1LL << 40};
    tcx_array_t none = {.dtype = float32, .ndim = 3, .shape = empty};
    float seven = 7;
    tcx_array_t scalar = {.data = &seven, .dtype = float32, .ndim = 0};
    tcx_tensor_t *tensor;

    given_daemon();
    EXPECT_OK(tcx_put(client, "empty", &none, NULL, NULL));
    tensor = get("empty");
    EXPECT_EQ(3, tcx_tensor_array(tensor)->ndim);
    EXPECT_EQ(1LL << 40, tcx_tensor_array(tensor)->shape[2]);
    EXPECT_EQ(0, info_of(tensor).nbytes);
    EXPECT_TRUE(info_of(tensor).is_shared);
    tcx_tensor_unref(tensor);
    EXPECT_OK(tcx_put(client, "scalar", &scalar, NULL, NULL));
    tensor = get("scalar");
    EXPECT_EQ(0, tcx_tensor_array(tensor)->ndim);
    EXPECT_EQ(7, floats_of(tensor)[0]);
    tcx_tensor_unref(tensor);
    EXPECT_OK(tcx_empty(client, (tcx_device_t){0}, float32, 3, empty, &tensor));
    tcx_tensor_unref(tensor);
    EXPECT_OK(tcx_zeros(client, (tcx_device_t){0}, float32, 0, NULL, &tensor));
    EXPECT_EQ(0, floats_of(tensor)[0]);
    tcx_tensor_unref(tensor);
    end(2);
}

TEST(any_layout_is_packed) {
    enum { ROWS = 300, COLUMNS = 200 };
    static float matrix[ROWS * COLUMNS];
    int64_t shape[2] = {COLUMNS, ROWS};
    int64_t transposed[2] = {1, COLUMNS};
    tcx_array_t large = {
        .data = matrix, .dtype = float32, .ndim = 2, .shape = shape, .strides = transposed};
    int64_t small_shape[1] = {4};
    int64_t reversed[1] = {-1};
    tcx_array_t small = {
        .data = matrix + 3, .dtype = float32, .ndim = 1, .shape = small_shape, .strides = reversed};

    given_daemon();
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        matrix[i] = (float)i;
    }
    EXPECT_OK(tcx_put(client, "large", &large, NULL, NULL));
    EXPECT_OK(tcx_put(client, "small", &small, NULL, NULL));
    tcx_tensor_t *tensor = get("large");
    EXPECT_EQ(COLUMNS, floats_of(tensor)[1]);
    EXPECT_EQ(1, floats_of(tensor)[ROWS]);
    tcx_tensor_unref(tensor);
    tensor = get("small");
    EXPECT_EQ(3, floats_of(tensor)[0]);
    EXPECT_EQ(0, floats_of(tensor)[3]);
    tcx_tensor_unref(tensor);
    end(2);
}

/* ----------------------------------------------------------------------------- shared or copied */

TEST(memory_born_shared_is_published_as_it_is) {
    tcx_tensor_t *born;
    tcx_tensor_t *row;
    int64_t shape[2] = {4, 8};

    given_daemon();
    EXPECT_OK(tcx_zeros(client, (tcx_device_t){0}, float32, 2, shape, &born));
    EXPECT_OK(tcx_tensor_view(born, float32, 1, shape + 1, 64, 0, &row));
    EXPECT_OK(tcx_put(client, "row", tcx_tensor_array(row), NULL, NULL));
    tcx_tensor_t *got = get("row");
    EXPECT_TRUE(floats_of(got) == floats_of(born) + 16);
    EXPECT_EQ(info_of(born).storage_id, info_of(got).storage_id);
    EXPECT_EQ(32, info_of(got).nbytes);
    floats_of(born)[16] = 5; /* later writes show */
    EXPECT_EQ(5, floats_of(got)[0]);
    tcx_tensor_unref(born);
    tcx_tensor_unref(row);
    tcx_tensor_unref(got);
    end(1);
}

TEST(a_snapshot_and_a_strided_view_are_copied) {
    tcx_put_options_t snapshot = {.flags = TCX_PUT_COPY};
    int64_t strides[1] = {2};
    tcx_tensor_t *born;

    given_daemon();
    EXPECT_OK(tcx_zeros(client, (tcx_device_t){0}, float32, 1, (int64_t[]){8}, &born));
    EXPECT_OK(tcx_put(client, "copy", tcx_tensor_array(born), &snapshot, NULL));
    tcx_array_t strided = {.data = floats_of(born),
                           .dtype = float32,
                           .ndim = 1,
                           .shape = (int64_t[]){4},
                           .strides = strides};
    EXPECT_OK(tcx_put(client, "strided", &strided, NULL, NULL));
    floats_of(born)[0] = 1;
    tcx_tensor_t *copy = get("copy");
    tcx_tensor_t *packed = get("strided");
    EXPECT_EQ(0, floats_of(copy)[0]);
    EXPECT_EQ(0, floats_of(packed)[0]);
    tcx_tensor_unref(born);
    tcx_tensor_unref(copy);
    tcx_tensor_unref(packed);
    end(2);
}

TEST(private_memory_is_not_copied_when_that_is_forbidden) {
    tcx_put_options_t no_copy = {.flags = TCX_PUT_NO_COPY};
    struct floats floats;
    float data[2] = {1, 2};
    tcx_tensor_t *born;

    given_daemon();
    EXPECT_EQ(TCX_EXCHANGE, tcx_put(client, "x", floats_on(&floats, data, 2), &no_copy, NULL));
    EXPECT_TRUE(strstr(tcx_error(), "tcx_empty") != NULL);
    EXPECT_OK(tcx_empty(client, (tcx_device_t){0}, float32, 1, (int64_t[]){2}, &born));
    EXPECT_OK(tcx_put(client, "x", tcx_tensor_array(born), &no_copy, NULL));
    tcx_tensor_unref(born);
    end(1);
}

TEST(without_a_name_a_put_only_shares) {
    struct floats floats;
    float data[2] = {1, 2};
    tcx_tensor_t *tensor;

    given_daemon();
    EXPECT_OK(tcx_put(client, NULL, floats_on(&floats, data, 2), NULL, &tensor));
    EXPECT_TRUE(info_of(tensor).is_shared && info_of(tensor).name == NULL);
    EXPECT_TRUE(tcx_is_shared(client, floats_of(tensor), 8));
    EXPECT_TRUE(!tcx_is_shared(client, floats_of(tensor), 9)); /* bytes beyond it are not its own */
    EXPECT_TRUE(!tcx_is_shared(client, data, 8));
    tcx_tensor_unref(tensor);
    end(0);
}

TEST(what_another_client_has_from_the_same_daemon_is_not_copied) {
    tcx_tensor_t *tensor;
    tcx_tensor_t *there;

    given_daemon();
    tcx_client_t *other = daemon_client(&own);
    EXPECT_OK(tcx_zeros(client, (tcx_device_t){0}, float32, 1, (int64_t[]){4}, &tensor));
    EXPECT_TRUE(!tcx_is_shared(other, floats_of(tensor), 16)); /* with which daemon? */
    EXPECT_OK(tcx_client_connect(other));
    EXPECT_TRUE(tcx_is_shared(other, floats_of(tensor), 16));
    EXPECT_TRUE(!tcx_is_shared(other, floats_of(tensor), 17));
    EXPECT_OK(tcx_put(other, "x", tcx_tensor_array(tensor), NULL, &there));
    EXPECT_EQ(info_of(tensor).storage_id, info_of(there).storage_id);
    EXPECT_TRUE(floats_of(tensor) == floats_of(there));
    tcx_tensor_unref(tensor);
    tcx_client_close(other);
    EXPECT_EQ(0, floats_of(there)[0]); /* outlives its client */
    tcx_tensor_unref(there);
    end(1);
}

TEST(what_another_client_has_from_the_same_daemon_is_referred_to_by_a_bundle) {
    const char *path[1] = {"a"};
    tcx_bundle_t *bundle;
    tcx_tensor_t *tensor;
    tcx_tensor_t *entry;
    size_t depth;
    const char *const *keys;

    given_daemon();
    tcx_client_t *other = daemon_client(&own);
    EXPECT_OK(tcx_zeros(other, (tcx_device_t){0}, float32, 1, (int64_t[]){4}, &tensor));
    tcx_item_t item = {path, 1, tcx_tensor_array(tensor)};
    EXPECT_OK(tcx_put_bundle(client, NULL, &item, 1, NULL, &bundle));
    tcx_bundle_item(bundle, 0, &keys, &depth, &entry);
    EXPECT_TRUE(floats_of(tensor) == floats_of(entry));
    EXPECT_EQ(info_of(tensor).storage_id, info_of(entry).storage_id);
    tcx_bundle_unref(bundle);
    tcx_tensor_unref(tensor);
    tcx_client_close(other);
    end(0);
}

/* ------------------------------------------------------------------------------------ read-only */

TEST(read_only_is_for_whoever_gets_it_by_that_name_and_what_comes_of_it) {
    tcx_put_options_t readonly = {.flags = TCX_PUT_READONLY};
    tcx_tensor_t *born;
    tcx_tensor_t *view;

    given_daemon();
    EXPECT_OK(tcx_zeros(client, (tcx_device_t){0}, float32, 1, (int64_t[]){4}, &born));
    EXPECT_OK(tcx_put(client, "x", tcx_tensor_array(born), &readonly, NULL));
    EXPECT_OK(tcx_put(client, "y", tcx_tensor_array(born), NULL, NULL));
    tcx_tensor_t *fixed = get("x");
    tcx_tensor_t *free_one = get("y");
    EXPECT_TRUE(info_of(fixed).readonly && !info_of(free_one).readonly && !info_of(born).readonly);

    EXPECT_OK(tcx_tensor_view(fixed, float32, 1, (int64_t[]){2}, 8, 0, &view));
    EXPECT_OK(tcx_put(client, "z", tcx_tensor_array(view), NULL, NULL));
    tcx_tensor_t *again = get("z"); /* publishing it does not make it writable again */
    EXPECT_TRUE(info_of(view).readonly && info_of(again).readonly);
    tcx_tensor_unref(born);
    tcx_tensor_unref(fixed);
    tcx_tensor_unref(free_one);
    tcx_tensor_unref(view);
    tcx_tensor_unref(again);
    end(1);
}

TEST(a_copy_of_what_is_read_only_is_writable) {
    tcx_put_options_t copy = {.flags = TCX_PUT_COPY};
    tcx_put_options_t readonly = {.flags = TCX_PUT_READONLY};
    struct floats floats;
    float data = 1;
    tcx_tensor_t *fixed;
    tcx_tensor_t *copied;
    tcx_tensor_t *put;

    given_daemon();
    EXPECT_OK(tcx_put(client, "x", floats_on(&floats, &data, 1), &readonly, &fixed));
    EXPECT_OK(tcx_copy(client, tcx_tensor_array(fixed), (tcx_device_t){0}, &copied));
    EXPECT_OK(tcx_put(client, "y", tcx_tensor_array(fixed), &copy, &put));
    EXPECT_TRUE(info_of(fixed).readonly && !info_of(copied).readonly && !info_of(put).readonly);
    tcx_tensor_unref(fixed);
    tcx_tensor_unref(copied);
    tcx_tensor_unref(put);
    end(2);
}

TEST(a_handle_that_does_not_want_to_write_binds_only_itself) {
    tcx_get_options_t readonly = {.readonly = 1};
    struct floats floats;
    float data = 1;
    tcx_tensor_t *reader;

    given_daemon();
    EXPECT_OK(tcx_put(client, "x", floats_on(&floats, &data, 1), NULL, NULL));
    EXPECT_OK(tcx_get(client, "x", &readonly, &reader, NULL));
    tcx_tensor_t *writer = get("x");
    EXPECT_TRUE(info_of(reader).readonly && !info_of(writer).readonly);
    tcx_tensor_unref(reader);
    tcx_tensor_unref(writer);
    end(1);
}

/* --------------------------------------------------------------------------------------- errors */

TEST(bad_arguments_are_refused_and_nothing_is_left) {
    tcx_put_options_t unknown = {.flags = 1u << 20};
    tcx_put_options_t both = {.flags = TCX_PUT_COPY | TCX_PUT_NO_COPY};
    tcx_put_options_t negative = {.ttl = -1};
    tcx_put_options_t exclusive = {.flags = TCX_PUT_EXCLUSIVE};
    tcx_get_options_t not_a_number = {.timeout = __builtin_nan("")};
    struct floats floats;
    float data = 1;
    char long_name[257];
    tcx_tensor_t *tensor = NULL;

    given_daemon();
    memset(long_name, 'n', 256);
    long_name[256] = '\0';
    const tcx_array_t *array = floats_on(&floats, &data, 1);
    EXPECT_EQ(TCX_INVALID, tcx_put(client, "", array, NULL, &tensor));
    EXPECT_EQ(TCX_INVALID, tcx_put(client, long_name, array, NULL, &tensor));
    EXPECT_EQ(TCX_INVALID, tcx_put(client, "a\nb", array, NULL, &tensor));
    EXPECT_EQ(TCX_INVALID, tcx_put(client, "\xff", array, NULL, &tensor));
    EXPECT_EQ(TCX_INVALID, tcx_put(client, "x", array, &unknown, &tensor));
    EXPECT_EQ(TCX_INVALID, tcx_put(client, "x", array, &both, &tensor));
    EXPECT_EQ(TCX_INVALID, tcx_put(client, "x", array, &negative, &tensor));
    EXPECT_EQ(TCX_INVALID, tcx_put(client, "x", NULL, NULL, &tensor));
    EXPECT_EQ(TCX_INVALID, tcx_put(NULL, "x", array, NULL, &tensor));
    EXPECT_EQ(TCX_INVALID, tcx_get(client, "x", &not_a_number, &tensor, NULL));
    EXPECT_EQ(TCX_INVALID,
              tcx_empty(client, (tcx_device_t){0}, float32, 1, (int64_t[]){-1}, &tensor));
    EXPECT_EQ(TCX_EXCHANGE,
              tcx_empty(client, (tcx_device_t){0}, (tcx_dtype_t){4, 16, 1}, 0, NULL, &tensor));
    EXPECT_EQ(TCX_NOT_FOUND, tcx_get(client, "x", NULL, &tensor, NULL));
    EXPECT_EQ(TCX_NOT_FOUND, tcx_delete(client, "x"));
    EXPECT_OK(tcx_put(client, "x", array, &exclusive, NULL));
    EXPECT_EQ(TCX_EXISTS, tcx_put(client, "x", array, &exclusive, &tensor));
    EXPECT_TRUE(tensor == NULL);
    end(1);
}

TEST(more_than_the_capacity_is_out_of_memory_with_numbers) {
    tcx_tensor_t *tensor;

    given_daemon();
    EXPECT_EQ(TCX_OUT_OF_MEMORY,
              tcx_empty(client, (tcx_device_t){0}, float32, 1, (int64_t[]){1LL << 40}, &tensor));
    EXPECT_TRUE(strpbrk(tcx_error(), "0123456789") != NULL);
    EXPECT_OK(tcx_zeros(client, (tcx_device_t){0}, float32, 1, (int64_t[]){1 << 20}, &tensor));
    tcx_tensor_unref(tensor);
    end(0);
}

TEST(views_stay_inside_their_tensor) {
    tcx_tensor_t *tensor;
    tcx_tensor_t *view;

    given_daemon();
    EXPECT_OK(tcx_zeros(client, (tcx_device_t){0}, float32, 1, (int64_t[]){4}, &tensor));
    EXPECT_EQ(TCX_INVALID, tcx_tensor_view(tensor, float32, 1, (int64_t[]){4}, 4, 0, &view));
    EXPECT_EQ(TCX_INVALID, tcx_tensor_view(tensor, float32, 1, (int64_t[]){1}, 2, 0, &view));
    EXPECT_EQ(TCX_INVALID, tcx_tensor_view(tensor, float32, 1, (int64_t[]){0}, 17, 0, &view));
    EXPECT_EQ(TCX_INVALID, tcx_tensor_view(tensor, float32, 1, (int64_t[]){-1}, 0, 0, &view));
    EXPECT_OK(tcx_tensor_view(tensor, float32, 1, (int64_t[]){0}, 16, 0, &view));
    tcx_tensor_unref(view);
    EXPECT_OK(
        tcx_tensor_view(tensor, (tcx_dtype_t){TCX_UINT, 8, 1}, 1, (int64_t[]){15}, 1, 0, &view));
    tcx_tensor_unref(view);
    tcx_tensor_unref(tensor);
    end(0);
}

/* -------------------------------------------------------------------------------------- waiting */

TEST(a_wait_that_brings_nothing_says_what_was_awaited) {
    tcx_get_options_t options = {.timeout = 0.01};
    struct floats floats;
    float data = 1;
    tcx_tensor_t *tensor;

    given_daemon();
    EXPECT_EQ(TCX_TIMEOUT, tcx_get(client, "x", &options, &tensor, NULL));
    EXPECT_STR_EQ("nothing was put under \"x\" within 0.01 s", tcx_error());
    EXPECT_OK(tcx_put(client, "x", floats_on(&floats, &data, 1), NULL, NULL));
    options.newer_than = 1;
    EXPECT_EQ(TCX_TIMEOUT, tcx_get(client, "x", &options, &tensor, NULL));
    EXPECT_STR_EQ("nothing newer than version 1 was put under \"x\" within 0.01 s", tcx_error());
    options.newer_than = 0;
    EXPECT_OK(tcx_get(client, "x", &options, &tensor, NULL));
    tcx_tensor_unref(tensor);
    end(1);
}

static void *put_it(void *argument) {
    struct floats floats;
    float data = 5;
    tcx_stats_t stats;

    do {
        EXPECT_OK(tcx_stats(argument, &stats));
    } while (stats.waiting == 0);
    EXPECT_OK(tcx_put(argument, "x", floats_on(&floats, &data, 1), NULL, NULL));
    return NULL;
}

TEST(a_wait_ends_when_the_name_is_put_on_the_same_client) {
    tcx_get_options_t options = {.timeout = -1};
    pthread_t putter;
    tcx_tensor_t *tensor;

    given_daemon();
    EXPECT_EQ(0, pthread_create(&putter, NULL, put_it, client));
    EXPECT_OK(tcx_get(client, "x", &options, &tensor, NULL));
    EXPECT_EQ(5, floats_of(tensor)[0]);
    EXPECT_EQ(0, pthread_join(putter, NULL));
    tcx_tensor_unref(tensor);
    end(1);
}

/* --------------------------------------------------------------------------------------- asking */

struct seen {
    int count;
    int stop_after;
    char last[256];
    tcx_entry_t entry; /* its pointers are over */
};

static int see(void *context, const tcx_entry_t *entry) {
    struct seen *seen = context;

    EXPECT_TRUE(strcmp(seen->last, entry->name) < 0);
    snprintf(seen->last, sizeof seen->last, "%s", entry->name);
    seen->entry = *entry;
    return ++seen->count == seen->stop_after;
}

TEST(names_are_listed_in_order_over_many_pages) {
    enum { COUNT = 2000 };
    struct seen seen = {0};
    struct floats floats;
    float data = 1;

    given_daemon();
    for (int i = 0; i < COUNT; i++) {
        char name[200];
        snprintf(name, sizeof name, "%s/%0150d", i % 2 ? "odd" : "even", i);
        EXPECT_OK(tcx_put(client, name, floats_on(&floats, &data, 1), NULL, NULL));
    }
    EXPECT_OK(tcx_list(client, NULL, see, &seen));
    EXPECT_EQ(COUNT, seen.count);
    seen = (struct seen){0};
    EXPECT_OK(tcx_list(client, "odd/", see, &seen));
    EXPECT_EQ(COUNT / 2, seen.count);
    seen = (struct seen){.stop_after = 3};
    EXPECT_OK(tcx_list(client, "", see, &seen));
    EXPECT_EQ(3, seen.count);
    seen = (struct seen){0};
    EXPECT_OK(tcx_list(client, "nothing", see, &seen));
    EXPECT_EQ(0, seen.count);
    end(COUNT);
}

TEST(one_name_is_described) {
    tcx_put_options_t options = {.flags = TCX_PUT_READONLY | TCX_PUT_EPHEMERAL, .ttl = 1000};
    struct seen seen = {0};
    struct floats floats;
    float data[5] = {0};
    tcx_tensor_t *tensor;

    given_daemon();
    EXPECT_OK(tcx_put(client, "x", floats_on(&floats, data, 5), &options, &tensor));
    EXPECT_OK(tcx_stat(client, "x", see, &seen));
    EXPECT_EQ(1, seen.entry.version);
    EXPECT_EQ(20, seen.entry.nbytes);
    EXPECT_EQ(info_of(tensor).storage_id, seen.entry.storage_id);
    EXPECT_TRUE(seen.entry.readonly && seen.entry.ephemeral && !seen.entry.is_bundle);
    EXPECT_EQ(1, seen.entry.ndim);
    EXPECT_EQ(1, seen.entry.holders);
    EXPECT_EQ(getpid(), seen.entry.publisher);
    EXPECT_TRUE(seen.entry.ttl_left > 0 && seen.entry.ttl_left <= 1000 && seen.entry.age >= 0);
    EXPECT_EQ(TCX_NOT_FOUND, tcx_stat(client, "y", see, &seen));
    tcx_tensor_unref(tensor);
    end(1);
}

static int count_peers(void *context, const tcx_peer_t *peer) {
    int *counts = context;

    EXPECT_EQ(getpid(), peer->pid);
    EXPECT_EQ(getuid(), peer->uid);
    EXPECT_STR_EQ("test_put", peer->program);
    EXPECT_TRUE(peer->connected);
    counts[peer->is_self ? 1 : 0]++;
    counts[2] += (int)peer->bytes;
    return 0;
}

TEST(clients_are_listed_with_what_they_hold) {
    int counts[3] = {0};
    char version[32];
    tcx_tensor_t *tensor;

    given_daemon();
    tcx_daemon_version(client, version, sizeof version);
    EXPECT_STR_EQ("", version);
    tcx_client_t *other = daemon_client(&own);
    EXPECT_OK(tcx_zeros(other, (tcx_device_t){0}, float32, 1, (int64_t[]){4}, &tensor));
    EXPECT_OK(tcx_clients(client, count_peers, counts));
    EXPECT_EQ(1, counts[0]);
    EXPECT_EQ(1, counts[1]);
    EXPECT_EQ(16, counts[2]);
    tcx_daemon_version(client, version, sizeof version);
    EXPECT_STR_EQ(TCX_VERSION, version);
    tcx_tensor_unref(tensor);
    tcx_client_close(other);
    end(0);
}

/* -------------------------------------------------------------------------------------- mapping */

/* Mappings of the daemon's memory in this process. */
static int count_maps(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;

    while (fgets(line, sizeof line, maps)) {
        count += strstr(line, "/dev/shm/") != NULL || strstr(line, "memfd:tensorcx") != NULL;
    }
    fclose(maps);
    return count;
}

TEST(what_the_daemon_destroys_is_unmapped_here) {
    int64_t deadline = clock_after(20 * NS_PER_S);
    tcx_stats_t stats;
    tcx_tensor_t *tensor;

    given_daemon();
    EXPECT_OK(tcx_client_connect(client));
    int before = count_maps();
    for (int i = 0; i < 20; i++) { /* each has a segment of its own */
        EXPECT_OK(
            tcx_zeros(client, (tcx_device_t){0}, float32, 1, (int64_t[]){(8 + i) << 20}, &tensor));
        EXPECT_TRUE(count_maps() > before);
        tcx_tensor_unref(tensor);
    }
    do {
        EXPECT_OK(tcx_stats(client, &stats)); /* brings the news, and then the answer */
    } while (count_maps() > before && clock_now() < deadline);
    EXPECT_EQ(before, count_maps());
    end(0);
}

TEST(descriptors_stay_few_however_much_is_mapped) {
    enum { COUNT = 40 };
    tcx_tensor_t *tensors[COUNT];

    given_daemon();
    EXPECT_OK(tcx_client_connect(client));
    int lowest_free = dup(0);
    close(lowest_free);
    for (int i = 0; i < COUNT; i++) {
        EXPECT_OK(
            tcx_zeros(client, (tcx_device_t){0}, float32, 1, (int64_t[]){5 << 20}, &tensors[i]));
    }
    EXPECT_EQ(lowest_free, dup(0));
    close(lowest_free);
    for (int i = 0; i < COUNT; i++) {
        tcx_tensor_unref(tensors[i]);
    }
    end(0);
}
