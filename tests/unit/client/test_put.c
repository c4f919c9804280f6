/* Tensors in and out of a real daemon. */
#include "client_fixture.h"

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
    end_with(1);
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
    end();
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
    end_with(1);
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
    end_with(2);
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
    end_with(2);
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
    end_with(1);
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
    end_with(2);
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
    end_with(1);
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
    end();
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
    end_with(1);
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
    end();
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
    end_with(1);
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
    end_with(2);
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
    end_with(1);
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
    end_with(1);
}

TEST(more_than_the_capacity_is_out_of_memory_with_numbers) {
    tcx_tensor_t *tensor;

    given_daemon();
    EXPECT_EQ(TCX_OUT_OF_MEMORY,
              tcx_empty(client, (tcx_device_t){0}, float32, 1, (int64_t[]){1LL << 40}, &tensor));
    EXPECT_TRUE(strpbrk(tcx_error(), "0123456789") != NULL);
    EXPECT_OK(tcx_zeros(client, (tcx_device_t){0}, float32, 1, (int64_t[]){1 << 20}, &tensor));
    tcx_tensor_unref(tensor);
    end();
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
    end();
}
