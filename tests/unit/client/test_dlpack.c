/* The exchange contract, inwards: what is taken, and what is let go of once. */
#include "dlpack_fixture.h"

/* Accepted without a copy: shares the memory, and lets go of it once. */
static void expect_shared(struct forged *forged, const void *data) {
    tcx_tensor_t *tensor;

    EXPECT_OK(import_as(forged, TCX_COPY_NEVER, &tensor));
    EXPECT_EQ(0, deleted);
    if (data) {
        EXPECT_TRUE(tcx_tensor_array(tensor)->data == data);
    }
    EXPECT_TRUE(tcx_tensor_array(tensor)->strides != NULL);
    tcx_tensor_unref(tensor);
    EXPECT_EQ(1, deleted);
}

/* Refused in every mode, whoever asks, and let go of exactly once each time. The text helps. */
static void expect_refused(struct forged *forged, const char *text) {
    for (int copy = TCX_COPY_IF_NEEDED; copy <= TCX_COPY_ALWAYS; copy++) {
        tcx_tensor_t *tensor = NULL;
        deleted = 0;
        EXPECT_EQ(TCX_EXCHANGE, import_as(forged, copy, &tensor));
        EXPECT_TRUE(tensor == NULL);
        EXPECT_EQ(1, deleted);
        if (!strstr(tcx_error(), text)) {
            TEST_FAILED("\"%s\" does not say \"%s\"", tcx_error(), text);
        }
    }
}

/* ------------------------------------------------------------------------------------ ownership */

TEST(an_import_shares_memory_and_keeps_it_until_the_last_reference) {
    struct forged forged;
    tcx_tensor_t *tensor;
    tcx_info_t info;

    forge(&forged);
    EXPECT_OK(import_as(&forged, TCX_COPY_IF_NEEDED, &tensor));
    EXPECT_TRUE(tcx_tensor_array(tensor)->data == forged.data);
    tcx_tensor_info(tensor, &info);
    EXPECT_TRUE(!info.is_shared && !info.readonly);
    EXPECT_EQ(0, info.storage_id);
    EXPECT_EQ(24, info.nbytes);
    tcx_tensor_unref(tcx_tensor_ref(tensor));
    EXPECT_EQ(0, deleted);
    tcx_tensor_unref(tensor);
    EXPECT_EQ(1, deleted);
}

TEST(a_legacy_import_does_the_same) {
    struct forged forged;
    tcx_tensor_t *tensor;

    forge(&forged);
    forged.legacy = (struct DLManagedTensor){forged.versioned.dl_tensor, NULL, count_legacy};
    EXPECT_OK(tcx_from_dlpack_legacy(NULL, &forged.legacy, TCX_COPY_NEVER, &tensor));
    EXPECT_TRUE(tcx_tensor_array(tensor)->data == forged.data);
    tcx_tensor_unref(tensor);
    EXPECT_EQ(1, deleted);

    forged.legacy.dl_tensor.dtype.bits = 64;
    EXPECT_EQ(TCX_EXCHANGE, tcx_from_dlpack_legacy(NULL, &forged.legacy, TCX_COPY_NEVER, &tensor));
    EXPECT_EQ(2, deleted);
}

TEST(a_view_keeps_foreign_memory_alive) {
    struct forged forged;
    tcx_tensor_t *tensor;
    tcx_tensor_t *row;
    tcx_tensor_t *element;
    tcx_dtype_t dtype = {TCX_FLOAT, 32, 1};

    forge(&forged);
    EXPECT_OK(import_as(&forged, TCX_COPY_NEVER, &tensor));
    EXPECT_OK(tcx_tensor_view(tensor, dtype, 1, (int64_t[]){3}, 12, 0, &row));
    tcx_tensor_unref(tensor);
    EXPECT_OK(tcx_tensor_view(row, dtype, 0, NULL, 8, 1, &element));
    tcx_tensor_unref(row);
    EXPECT_EQ(0, deleted);
    EXPECT_EQ(5, floats_of(element)[0]);
    tcx_tensor_unref(element);
    EXPECT_EQ(1, deleted);
}

TEST(a_deleter_may_be_missing) {
    struct forged forged;
    tcx_tensor_t *tensor;

    forge(&forged);
    forged.versioned.deleter = NULL;
    EXPECT_OK(import_as(&forged, TCX_COPY_NEVER, &tensor));
    tcx_tensor_unref(tensor);
    forged.versioned.version.major = 2;
    EXPECT_EQ(TCX_EXCHANGE, import_as(&forged, TCX_COPY_NEVER, &tensor));
}

TEST(of_another_major_version_only_the_deleter_is_used) {
    struct forged forged;
    tcx_tensor_t *tensor;

    forge(&forged);
    forged.versioned.version.major = 2;
    memset(&forged.versioned.dl_tensor, 0xee, sizeof forged.versioned.dl_tensor);
    forged.versioned.flags = UINT64_MAX;
    EXPECT_EQ(TCX_EXCHANGE, import_as(&forged, TCX_COPY_NEVER, &tensor));
    EXPECT_EQ(1, deleted);
    EXPECT_STR_EQ("the producer speaks DLPack 2.3, this library 1.x", tcx_error());
}

TEST(a_newer_minor_version_is_accepted) {
    struct forged forged;

    forge(&forged);
    forged.versioned.version.minor = 99;
    expect_shared(&forged, forged.data);
}

/* --------------------------------------------------------------------------------------- layout */

TEST(scalars_need_no_shape) {
    struct forged forged;
    DLTensor *tensor = forge(&forged);

    tensor->ndim = 0;
    tensor->shape = NULL;
    tensor->strides = NULL;
    expect_shared(&forged, forged.data);
    forge(&forged)->ndim = 0;
    tensor->shape = (int64_t *)8; /* older NumPy: points past its allocation */
    tensor->strides = (int64_t *)8;
    expect_shared(&forged, forged.data);
}

TEST(empty_shapes_are_accepted_with_any_strides_and_data) {
    struct forged forged;
    DLTensor *tensor = forge(&forged);

    forged.shape[0] = 0;
    expect_shared(&forged, forged.data);
    tensor = forge(&forged);
    forged.shape[0] = 0;
    tensor->data = NULL;
    expect_shared(&forged, NULL);
    forge(&forged);
    memcpy(forged.shape, (int64_t[]){2, 0}, 16);
    memcpy(forged.strides, (int64_t[]){7, -5}, 16);
    expect_shared(&forged, forged.data);
    forge(&forged);
    memcpy(forged.shape, (int64_t[]){0, 1LL << 40}, 16);
    expect_shared(&forged, forged.data);
}

TEST(missing_strides_mean_c_order) {
    struct forged forged;

    forge(&forged)->strides = NULL;
    expect_shared(&forged, forged.data);
}

TEST(strides_of_dimensions_of_size_one_mean_nothing) {
    static const int64_t odd[] = {0, 1, 99, -1, -7, 1000000000};
    struct forged forged;

    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        DLTensor *tensor = forge(&forged);
        tensor->ndim = 4;
        memcpy(forged.shape, (int64_t[]){1, 3, 1, 2}, 32);
        memcpy(forged.strides, (int64_t[]){odd[i], 2, odd[i], 1}, 32);
        expect_shared(&forged, forged.data);
    }
}

TEST(strided_layouts_are_refused) {
    static const int64_t strided[][2] = {{1, 2}, {6, 2}, {-3, 1}, {3, -1}, {0, 1}, {3, 0}};
    struct forged forged;

    for (size_t i = 0; i < sizeof strided / sizeof *strided; i++) {
        forge(&forged);
        memcpy(forged.strides, strided[i], sizeof strided[i]);
        expect_refused(&forged, "cx.asarray or tcx_copy() takes it");
    }
}

TEST(the_byte_offset_is_added) {
    struct forged forged;
    struct DLManagedTensorVersioned *out;
    tcx_tensor_t *tensor;

    forge(&forged)->byte_offset = 4;
    EXPECT_OK(import_as(&forged, TCX_COPY_NEVER, &tensor));
    EXPECT_TRUE(tcx_tensor_array(tensor)->data == forged.data + 1);
    EXPECT_EQ(1, floats_of(tensor)[0]);
    EXPECT_OK(tcx_to_dlpack(tensor, 0, &out));
    EXPECT_TRUE(out->dl_tensor.data == forged.data + 1);
    EXPECT_EQ(0, out->dl_tensor.byte_offset);
    out->deleter(out);
    tcx_tensor_unref(tensor);
    EXPECT_EQ(1, deleted);
}

TEST(elements_must_be_aligned_to_their_size_and_no_more) {
    struct forged forged;
    DLTensor *tensor = forge(&forged);

    tensor->byte_offset = 2;
    expect_refused(&forged, "not aligned");
    tensor->byte_offset = 0;
    tensor->data = (char *)forged.data + 1;
    expect_refused(&forged, "not aligned");
    deleted = 0;
    tensor->byte_offset = 3;
    expect_shared(&forged, forged.data + 1);
    tensor = forge(&forged);
    tensor->data = forged.data + 1; /* 4, not 64 */
    expect_shared(&forged, forged.data + 1);
}

TEST(malformed_shapes_are_refused) {
    struct forged forged;

    forge(&forged)->ndim = -1;
    expect_refused(&forged, "0 to 64 dimensions");
    forge(&forged)->ndim = 65;
    expect_refused(&forged, "0 to 64 dimensions");
    forge(&forged)->shape = NULL;
    expect_refused(&forged, "needs a shape");
    forge(&forged);
    forged.shape[1] = -3;
    expect_refused(&forged, "negative");
    forge(&forged);
    memcpy(forged.shape, (int64_t[]){1LL << 40, 1LL << 40}, 16);
    expect_refused(&forged, "overflows");
    forge(&forged)->data = NULL;
    expect_refused(&forged, "no data");
    forge(&forged)->byte_offset = UINT64_MAX - 3;
    expect_refused(&forged, "beyond the end of memory");
    forge(&forged)->data = (void *)(UINTPTR_MAX - 15);
    expect_refused(&forged, "beyond the end of memory");
}

TEST(sixty_four_dimensions_are_accepted) {
    struct forged forged;
    DLTensor *tensor = forge(&forged);

    tensor->ndim = 64;
    for (int i = 0; i < 64; i++) {
        forged.shape[i] = 1;
    }
    expect_shared(&forged, forged.data);
}

/* ----------------------------------------------------------------------- dtypes, flags, devices */

TEST(three_dtypes_are_exchanged) {
    static const DLDataType exchanged[] = {{kDLFloat, 32, 1}, {kDLInt, 32, 1}, {kDLBool, 8, 1}};
    struct forged forged;

    for (size_t i = 0; i < sizeof exchanged / sizeof *exchanged; i++) {
        forge(&forged)->dtype = exchanged[i];
        expect_shared(&forged, forged.data);
    }
}

TEST(other_dtypes_are_refused_by_name) {
    static const struct {
        DLDataType dtype;
        const char *text;
    } others[] = {{{kDLBool, 1, 1}, "bool1"},
                  {{kDLFloat, 32, 4}, "float32x4"},
                  {{kDLOpaqueHandle, 64, 1}, "handle64"},
                  {{kDLBfloat, 16, 1}, "bfloat16"},
                  {{17, 4, 1}, "code 17"},
                  {{kDLFloat, 64, 1}, "float64"},
                  {{kDLUInt, 8, 1}, "uint8"},
                  {{kDLInt, 64, 1}, "int64"},
                  {{kDLComplex, 64, 1}, "complex64"}};
    struct forged forged;

    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        forge(&forged)->dtype = others[i].dtype;
        expect_refused(&forged, others[i].text);
    }
}

TEST(other_devices_are_refused) {
    static const DLDevice others[] = {{kDLCUDAHost, 0}, {kDLROCM, 0},  {kDLCUDAManaged, 0},
                                      {99, 0},          {kDLMetal, 0}, {kDLCPU, 1}};
    struct forged forged;

    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        forge(&forged)->device = others[i];
        expect_refused(&forged, "copy it to the CPU");
    }
}

TEST(a_read_only_tensor_is_not_shared) {
    struct forged forged;
    tcx_tensor_t *tensor;

    for (int copy = TCX_COPY_IF_NEEDED; copy <= TCX_COPY_NEVER; copy++) {
        forge(&forged);
        forged.versioned.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
        EXPECT_EQ(TCX_EXCHANGE, import_as(&forged, copy, &tensor));
        EXPECT_TRUE(strstr(tcx_error(), "pass copy=True") != NULL);
        EXPECT_EQ(1, deleted);
    }
}

TEST(flags_that_change_nothing_are_ignored) {
    static const uint64_t flags[] = {DLPACK_FLAG_BITMASK_IS_COPIED,
                                     DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED, 1 << 20};
    struct forged forged;

    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        forge(&forged);
        forged.versioned.flags = flags[i];
        expect_shared(&forged, forged.data);
    }
}

/* --------------------------------------------------------------------------------------- copies */

TEST(a_copy_is_isolated_writable_and_lets_go_of_the_source_at_once) {
    struct own_daemon daemon;
    struct forged forged;
    tcx_tensor_t *tensor;
    tcx_info_t info;

    daemon_start(&daemon);
    tcx_client_t *client = daemon_client(&daemon);
    forge(&forged);
    forged.versioned.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
    EXPECT_OK(tcx_from_dlpack(client, &forged.versioned, TCX_COPY_ALWAYS, &tensor));
    EXPECT_EQ(1, deleted);
    tcx_tensor_info(tensor, &info);
    EXPECT_TRUE(info.is_shared && !info.readonly);
    floats_of(tensor)[0] = 100;
    EXPECT_EQ(0, forged.data[0]);
    forged.data[5] = 200;
    EXPECT_EQ(5, floats_of(tensor)[5]);
    tcx_tensor_unref(tensor);
    expect_settles(client, 0, 0);
    tcx_client_close(client);
    daemon_stop(&daemon);
    daemon_clean(&daemon);
}

TEST(a_copy_without_a_client_or_daemon_fails_and_lets_go) {
    tcx_client_options_t options = {.socket = "/tmp/no such folder/d.sock", .no_autostart = 1};
    struct forged forged;
    tcx_client_t *client;
    tcx_tensor_t *tensor;

    forge(&forged);
    EXPECT_EQ(TCX_INVALID, import_as(&forged, TCX_COPY_ALWAYS, &tensor));
    EXPECT_EQ(1, deleted);
    EXPECT_OK(tcx_client_open(&options, &client));
    EXPECT_EQ(TCX_UNAVAILABLE,
              tcx_from_dlpack(client, &forged.versioned, TCX_COPY_ALWAYS, &tensor));
    EXPECT_EQ(2, deleted);
    /* Sharing needs neither. */
    EXPECT_OK(tcx_from_dlpack(client, &forged.versioned, TCX_COPY_NEVER, &tensor));
    tcx_tensor_unref(tensor);
    EXPECT_EQ(3, deleted);
    tcx_client_close(client);
}

TEST(memory_born_shared_is_known_again) {
    struct own_daemon daemon;
    struct DLManagedTensorVersioned *out;
    struct forged forged;
    tcx_tensor_t *born;
    tcx_tensor_t *back;
    tcx_info_t info;

    daemon_start(&daemon);
    tcx_client_t *client = daemon_client(&daemon);
    EXPECT_OK(tcx_zeros(client, (tcx_device_t){0}, (tcx_dtype_t){TCX_FLOAT, 32, 1}, 1,
                        (int64_t[]){8}, &born));
    /* As a framework gives it back: its own managed tensor on our memory. */
    DLTensor *tensor = forge(&forged);
    tensor->data = floats_of(born) + 1;
    EXPECT_OK(tcx_from_dlpack(client, &forged.versioned, TCX_COPY_NEVER, &back));
    tcx_tensor_info(back, &info);
    EXPECT_TRUE(info.is_shared);
    tcx_tensor_unref(born);
    floats_of(back)[0] = 3;
    EXPECT_OK(tcx_to_dlpack(back, 0, &out));
    tcx_tensor_unref(back);
    EXPECT_EQ(0, deleted);
    EXPECT_EQ(3, ((float *)out->dl_tensor.data)[0]);
    out->deleter(out);
    EXPECT_EQ(1, deleted);
    expect_settles(client, 0, 0);
    tcx_client_close(client);
    daemon_stop(&daemon);
    daemon_clean(&daemon);
}
