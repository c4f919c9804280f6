/* The exchange contract, outwards: what consumers get, and when the source is let go of. */
#include <pthread.h>

#include "dlpack_fixture.h"

TEST(an_export_has_every_field_that_consumers_want) {
    struct forged forged;
    struct DLManagedTensorVersioned *out;
    tcx_tensor_t *tensor;

    forge(&forged)->strides = NULL;
    EXPECT_OK(import_as(&forged, TCX_COPY_NEVER, &tensor));
    EXPECT_OK(tcx_to_dlpack(tensor, 1, &out));
    EXPECT_EQ(1, out->version.major);
    EXPECT_EQ(DLPACK_FLAG_BITMASK_IS_COPIED, out->flags);
    EXPECT_EQ(kDLCPU, out->dl_tensor.device.device_type);
    EXPECT_EQ(0, out->dl_tensor.device.device_id);
    EXPECT_EQ(2, out->dl_tensor.ndim);
    EXPECT_EQ(3, out->dl_tensor.strides[0]);
    EXPECT_EQ(1, out->dl_tensor.strides[1]);
    EXPECT_EQ(1, out->dl_tensor.dtype.lanes);
    tcx_tensor_unref(tensor);
    EXPECT_EQ(0, deleted);
    EXPECT_EQ(5, ((float *)out->dl_tensor.data)[5]);
    out->deleter(out);
    EXPECT_EQ(1, deleted);
}

TEST(an_empty_export_has_no_data_and_keeps_its_shape) {
    struct forged forged;
    struct DLManagedTensor *out;
    tcx_tensor_t *tensor;

    forge(&forged);
    forged.shape[0] = 0;
    EXPECT_OK(import_as(&forged, TCX_COPY_NEVER, &tensor));
    EXPECT_OK(tcx_to_dlpack_legacy(tensor, &out));
    EXPECT_TRUE(out->dl_tensor.data == NULL);
    EXPECT_EQ(0, out->dl_tensor.shape[0]);
    EXPECT_EQ(3, out->dl_tensor.shape[1]);
    EXPECT_TRUE(out->dl_tensor.strides != NULL);
    out->deleter(out);
    tcx_tensor_unref(tensor);
    EXPECT_EQ(1, deleted);
}

TEST(a_read_only_tensor_is_exported_with_the_flag_or_not_at_all) {
    struct forged forged;
    struct DLManagedTensorVersioned *out;
    struct DLManagedTensor *legacy;
    tcx_tensor_t *tensor;
    tcx_tensor_t *view;

    forge(&forged);
    EXPECT_OK(import_as(&forged, TCX_COPY_NEVER, &tensor));
    EXPECT_OK(
        tcx_tensor_view(tensor, (tcx_dtype_t){TCX_FLOAT, 32, 1}, 1, (int64_t[]){6}, 0, 1, &view));
    EXPECT_OK(tcx_to_dlpack(view, 0, &out));
    EXPECT_EQ(DLPACK_FLAG_BITMASK_READ_ONLY, out->flags);
    out->deleter(out);
    EXPECT_EQ(TCX_EXCHANGE, tcx_to_dlpack_legacy(view, &legacy));
    EXPECT_OK(tcx_to_dlpack_legacy(tensor, &legacy)); /* its writable base may */
    legacy->deleter(legacy);
    tcx_tensor_unref(view);
    tcx_tensor_unref(tensor);
    EXPECT_EQ(1, deleted);
}

TEST(a_chain_of_exports_and_imports_lets_go_of_the_first_source_once) {
    struct forged forged;
    struct DLManagedTensorVersioned *out;
    tcx_tensor_t *tensor;

    forge(&forged);
    EXPECT_OK(import_as(&forged, TCX_COPY_NEVER, &tensor));
    for (int i = 0; i < 10; i++) {
        EXPECT_OK(tcx_to_dlpack(tensor, 0, &out));
        tcx_tensor_unref(tensor);
        EXPECT_OK(tcx_from_dlpack(NULL, out, TCX_COPY_IF_NEEDED, &tensor));
    }
    EXPECT_TRUE(tcx_tensor_array(tensor)->data == forged.data);
    EXPECT_EQ(0, deleted);
    tcx_tensor_unref(tensor);
    EXPECT_EQ(1, deleted);
}

static void *delete_it(void *argument) {
    struct DLManagedTensorVersioned *out = argument;

    out->deleter(out);
    return NULL;
}

/* Replaces a tensor by an import of its own export, very often. */
static void expect_no_chain(int legacy) {
    struct forged forged;
    tcx_tensor_t *tensor;

    forge(&forged);
    EXPECT_OK(import_as(&forged, TCX_COPY_NEVER, &tensor));
    for (int i = 0; i < 300000; i++) { /* a release as deep as that would end the stack */
        struct DLManagedTensorVersioned *versioned;
        struct DLManagedTensor *older;
        tcx_tensor_t *next;
        if (legacy) {
            EXPECT_OK(tcx_to_dlpack_legacy(tensor, &older));
            EXPECT_OK(tcx_from_dlpack_legacy(NULL, older, TCX_COPY_NEVER, &next));
        } else {
            EXPECT_OK(tcx_to_dlpack(tensor, 0, &versioned));
            EXPECT_OK(tcx_from_dlpack(NULL, versioned, TCX_COPY_NEVER, &next));
        }
        tcx_tensor_unref(tensor);
        tensor = next;
    }
    EXPECT_EQ(0, deleted);
    EXPECT_TRUE(tcx_tensor_array(tensor)->data == forged.data);
    tcx_tensor_unref(tensor);
    EXPECT_EQ(1, deleted);
}

TEST(an_import_of_our_own_export_refers_to_its_source) {
    expect_no_chain(0);
    expect_no_chain(1);
}

TEST(sixteen_exports_may_be_deleted_on_sixteen_threads) {
    enum { COUNT = 16 };
    struct own_daemon daemon;
    pthread_t threads[COUNT];
    tcx_tensor_t *tensor;

    daemon_start(&daemon);
    tcx_client_t *client = daemon_client(&daemon);
    EXPECT_OK(tcx_zeros(client, (tcx_device_t){0}, (tcx_dtype_t){TCX_FLOAT, 32, 1}, 1,
                        (int64_t[]){8}, &tensor));
    for (int i = 0; i < COUNT; i++) {
        struct DLManagedTensorVersioned *out;
        EXPECT_OK(tcx_to_dlpack(tensor, 0, &out));
        EXPECT_EQ(0, pthread_create(&threads[i], NULL, delete_it, out));
    }
    tcx_tensor_unref(tensor);
    for (int i = 0; i < COUNT; i++) {
        EXPECT_EQ(0, pthread_join(threads[i], NULL));
    }
    expect_settles(client, 0, 0);
    tcx_client_close(client);
    daemon_stop(&daemon);
    daemon_clean(&daemon);
}
