/* Tensors on CUDA devices: made, copied, put and got, in both ways to share their memory. */
#include "cuda_fixture.h"

/* Runs the rest of a test with both. */
#define TEST_BOTH(name)               \
    static void name(enum mode mode); \
    TEST(name##_vmm) {                \
        name(VMM);                    \
    }                                 \
    TEST(name##_ipc) {                \
        name(IPC);                    \
    }                                 \
    static void name(enum mode mode)

static tcx_tensor_t *get(tcx_client_t *from, const char *name) {
    tcx_tensor_t *tensor;

    EXPECT_OK(tcx_get(from, name, NULL, &tensor, NULL));
    return tensor;
}

/* --------------------------------------------------------------------------------------- making */

TEST_BOTH(zeros_are_zero_and_empty_can_be_written) {
    tcx_tensor_t *zeros;
    tcx_tensor_t *empty;

    given_cuda(mode);
    EXPECT_OK(tcx_zeros(client, cuda, float32, 1, (int64_t[]){1000}, &zeros));
    expect_tensor(zeros, cuda, 1000, 0, 0);
    EXPECT_OK(tcx_empty(client, cuda, float32, 1, (int64_t[]){1 << 20}, &empty));
    EXPECT_OK(tcx_array_copy(tcx_tensor_array(empty), counting(1 << 20)));
    expect_tensor(empty, cuda, 1 << 20, 0, 1);
    EXPECT_STR_EQ(mode == VMM ? "vmm" : "ipc", device_now().mode);
    EXPECT_EQ(2, device_now().storages);
    EXPECT_TRUE(tcx_is_shared(client, tcx_tensor_array(empty)->data, 4));
    tcx_tensor_unref(zeros);
    tcx_tensor_unref(empty);
    end_cuda();
}

TEST_BOTH(copies_go_from_anywhere_to_anywhere) {
    tcx_tensor_t *there;
    tcx_tensor_t *still;
    tcx_tensor_t *back;
    float packed[100];

    given_cuda(mode);
    EXPECT_OK(tcx_copy(client, counting(100), cuda, &there));
    EXPECT_OK(tcx_copy(client, tcx_tensor_array(there), (tcx_device_t){0}, &still));
    EXPECT_OK(tcx_copy(client, tcx_tensor_array(still), cpu, &back));
    tcx_tensor_unref(there);
    expect_tensor(still, cuda, 100, 0, 1);
    expect_tensor(back, cpu, 100, 0, 1);
    EXPECT_EQ(99, floats_of(back)[99]);
    EXPECT_OK(tcx_array_pack(tcx_tensor_array(still), packed, sizeof packed));
    EXPECT_EQ(42, packed[42]);
    tcx_tensor_unref(still);
    tcx_tensor_unref(back);
    end_cuda();
}

TEST(strided_memory_of_the_cpu_is_packed_and_of_a_device_refused) {
    int64_t strides[2] = {1, 2};
    int64_t shape[2] = {2, 3};
    float data[6] = {0, 3, 1, 4, 2, 5};
    tcx_array_t turned = {
        .data = data, .dtype = float32, .ndim = 2, .shape = shape, .strides = strides};
    float packed[6];
    tcx_tensor_t *tensor;

    given_cuda(VMM);
    EXPECT_OK(tcx_copy(client, &turned, cuda, &tensor));
    EXPECT_OK(tcx_array_pack(tcx_tensor_array(tensor), packed, sizeof packed));
    for (int i = 0; i < 6; i++) {
        EXPECT_EQ(i, packed[i]);
    }
    tcx_array_t there = *tcx_tensor_array(tensor);
    there.strides = strides;
    EXPECT_EQ(TCX_EXCHANGE, tcx_array_pack(&there, packed, sizeof packed));
    EXPECT_TRUE(strstr(tcx_error(), "make it contiguous") != NULL);
    EXPECT_EQ(TCX_EXCHANGE, tcx_put(client, "x", &there, NULL, NULL));
    tcx_tensor_unref(tensor);
    end_cuda();
}

TEST_BOTH(tensors_without_elements_have_a_device) {
    tcx_tensor_t *tensor;
    tcx_tensor_t *got;

    given_cuda(mode);
    EXPECT_OK(tcx_empty(client, cuda, float32, 1, (int64_t[]){0}, &tensor));
    EXPECT_EQ(TCX_CUDA, tcx_tensor_array(tensor)->device.type);
    EXPECT_OK(tcx_put(client, "none", tcx_tensor_array(tensor), NULL, NULL));
    got = get(client, "none");
    EXPECT_EQ(TCX_CUDA, tcx_tensor_array(got)->device.type);
    EXPECT_TRUE(tcx_tensor_array(got)->data == NULL);
    tcx_tensor_unref(got);
    tcx_tensor_unref(tensor);
    EXPECT_OK(tcx_delete(client, "none"));
    end_cuda();
}

TEST(more_than_the_device_has_is_out_of_memory_with_numbers) {
    tcx_tensor_t *tensor;

    given_cuda(VMM);
    EXPECT_EQ(TCX_OUT_OF_MEMORY,
              tcx_empty(client, cuda, float32, 1, (int64_t[]){1LL << 40}, &tensor));
    EXPECT_OK(tcx_empty(client, cuda, float32, 1, (int64_t[]){1000}, &tensor));
    tcx_tensor_unref(tensor);
    end_cuda();
}

TEST_BOTH(many_small_tensors_share_segments_and_descriptors) {
    enum { TENSORS = 10000 };
    tcx_tensor_t **tensors = calloc(TENSORS, sizeof(tcx_tensor_t *));

    given_cuda(mode);
    EXPECT_OK(tcx_empty(client, cuda, float32, 1, (int64_t[]){10}, &tensors[0]));
    int descriptors = count_descriptors();
    for (int i = 1; i < TENSORS; i++) {
        EXPECT_OK(tcx_empty(client, cuda, float32, 1, (int64_t[]){10}, &tensors[i]));
    }
    EXPECT_EQ(TENSORS, device_now().storages);
    EXPECT_TRUE(count_descriptors() <= descriptors + count_maps("fakecuda:"));
    EXPECT_TRUE(count_maps("fakecuda:") <= 4);
    for (int i = 0; i < TENSORS; i++) {
        tcx_tensor_unref(tensors[i]);
    }
    free(tensors);
    end_cuda();
}

TEST(work_on_the_cpu_does_not_load_the_driver) {
    tcx_tensor_t *tensor;
    tcx_tensor_t *got;
    tcx_channel_t *queue;

    daemon_start(&own);
    client = daemon_client(&own);
    EXPECT_OK(tcx_zeros(client, cpu, float32, 1, (int64_t[]){10}, &tensor));
    EXPECT_OK(tcx_put(client, "x", tcx_tensor_array(tensor), NULL, NULL));
    got = get(client, "x");
    EXPECT_OK(tcx_channel_open(client, "q", NULL, &queue));
    EXPECT_OK(tcx_channel_send(queue, counting(10), 1));
    tcx_channel_close(queue);
    tcx_tensor_unref(got);
    tcx_tensor_unref(tensor);
    EXPECT_OK(tcx_synchronize(cpu, 0));
    EXPECT_EQ(0, cuda_driver_is_loaded());
    tcx_client_close(client);
    daemon_stop(&own);
    daemon_clean(&own);
}

TEST(a_device_that_is_not_there_is_a_clear_error) {
    tcx_tensor_t *tensor;

    given_cuda(VMM);
    EXPECT_EQ(TCX_DEVICE,
              tcx_empty(client, (tcx_device_t){TCX_CUDA, 7}, float32, 0, NULL, &tensor));
    EXPECT_TRUE(strstr(tcx_error(), "cuda:7: this process sees 1 CUDA device") != NULL);
    EXPECT_EQ(TCX_INVALID, tcx_empty(client, (tcx_device_t){8, 0}, float32, 0, NULL, &tensor));
    EXPECT_EQ(TCX_INVALID,
              tcx_empty(client, (tcx_device_t){TCX_CPU, 1}, float32, 0, NULL, &tensor));
    end_cuda();
}

/* -------------------------------------------------------------------------------- put and get */

TEST_BOTH(what_is_put_is_got_at_one_address_by_all_clients) {
    struct private_array private;
    tcx_tensor_t *put;

    given_cuda(mode);
    tcx_client_t *other = daemon_client(&own);
    private_create(&private, 5000);
    EXPECT_OK(tcx_put(client, "x", &private.array, NULL, &put));
    private_destroy(&private);
    expect_tensor(put, cuda, 5000, 0, 1);
    tcx_tensor_t *got = get(client, "x");
    tcx_tensor_t *others = get(other, "x");
    EXPECT_TRUE(address_of(put) == address_of(got));
    EXPECT_TRUE(address_of(put) == address_of(others));
    expect_mapped(1);
    tcx_tensor_unref(put);
    tcx_tensor_unref(got);
    EXPECT_OK(tcx_delete(client, "x"));
    expect_tensor(others, cuda, 5000, 0, 1);
    tcx_tensor_unref(others);
    tcx_client_close(other);
    end_cuda();
}

TEST(memory_that_is_shared_is_put_without_a_copy) {
    tcx_tensor_t *born;
    tcx_tensor_t *view;

    given_cuda(VMM);
    EXPECT_OK(tcx_copy(client, counting(1000), cuda, &born));
    EXPECT_OK(tcx_tensor_view(born, float32, 1, (int64_t[]){10}, 400, 0, &view));
    EXPECT_OK(tcx_put(client, "part", tcx_tensor_array(view), NULL, NULL));
    tcx_tensor_unref(view);
    tcx_tensor_t *got = get(client, "part");
    EXPECT_TRUE(address_of(got) == address_of(born) + 400);
    expect_tensor(got, cuda, 10, 100, 1);
    tcx_tensor_unref(got);
    tcx_tensor_unref(born);
    EXPECT_OK(tcx_delete(client, "part"));
    end_cuda();
}

TEST(a_put_moves_to_the_device_that_it_is_told) {
    tcx_put_options_t to_cuda = {.device = cuda};
    tcx_put_options_t to_cpu = {.device = cpu};
    tcx_put_options_t no_copy = {.device = cuda, .flags = TCX_PUT_NO_COPY};
    tcx_tensor_t *there;
    tcx_tensor_t *here;

    given_cuda(VMM);
    EXPECT_OK(tcx_put(client, "x", counting(10), &to_cuda, &there));
    EXPECT_OK(tcx_put(client, "x", tcx_tensor_array(there), &to_cpu, &here));
    EXPECT_EQ(TCX_EXCHANGE, tcx_put(client, "x", tcx_tensor_array(here), &no_copy, NULL));
    EXPECT_OK(tcx_put(client, "y", tcx_tensor_array(there), &no_copy, NULL));
    expect_tensor(there, cuda, 10, 0, 1);
    expect_tensor(here, cpu, 10, 0, 1);
    tcx_tensor_unref(there);
    tcx_tensor_unref(here);
    EXPECT_OK(tcx_delete(client, "x"));
    EXPECT_OK(tcx_delete(client, "y"));
    end_cuda();
}

TEST(an_array_that_names_another_device_than_its_memorys_is_refused) {
    tcx_tensor_t *tensor;

    setenv("FAKECUDA_DEVICES", "2", 1);
    given_cuda(VMM);
    EXPECT_OK(tcx_zeros(client, cuda, float32, 1, (int64_t[]){10}, &tensor));
    tcx_array_t wrong = *tcx_tensor_array(tensor);
    wrong.device.id = 1;
    EXPECT_EQ(TCX_INVALID, tcx_put(client, "x", &wrong, NULL, NULL));
    EXPECT_STR_EQ("the array is said to be on cuda:1, and its memory is on cuda:0", tcx_error());
    tcx_tensor_unref(tensor);
    end_cuda();
}

static int note_device(void *context, const tcx_entry_t *entry) {
    *(tcx_device_t *)context = tcx_entry_device(entry);
    return 0;
}

TEST(names_tell_their_device) {
    tcx_device_t device;
    tcx_put_options_t to_cuda = {.device = cuda};

    given_cuda(VMM);
    EXPECT_OK(tcx_put(client, "x", counting(10), &to_cuda, NULL));
    EXPECT_OK(tcx_stat(client, "x", note_device, &device));
    EXPECT_EQ(TCX_CUDA, device.type);
    EXPECT_EQ(0, device.id);
    EXPECT_OK(tcx_put(client, "x", counting(10), NULL, NULL));
    EXPECT_OK(tcx_list(client, NULL, note_device, &device));
    EXPECT_EQ(TCX_CPU, device.type);
    EXPECT_OK(tcx_delete(client, "x"));
    end_cuda();
}

/* ----------------------------------------------------------------------------- bundles, tickets */

TEST_BOTH(a_bundle_has_one_pack_per_device) {
    struct private_array private;
    tcx_tensor_t *shared;
    tcx_bundle_t *put;
    tcx_bundle_t *got;
    const char *keys[4][1] = {{"cpu"}, {"tied"}, {"cuda"}, {"shared"}};

    given_cuda(mode);
    private_create(&private, 500);
    EXPECT_OK(tcx_copy(client, counting(300), cuda, &shared));
    tcx_item_t items[4] = {
        {keys[0], 1, counting(100)},
        {keys[1], 1, &private.array},
        {keys[2], 1, &private.array},
        {keys[3], 1, tcx_tensor_array(shared)},
    };
    EXPECT_OK(tcx_put_bundle(client, "b", items, 4, NULL, &put));
    private_destroy(&private);
    EXPECT_EQ(2, device_now().storages);
    EXPECT_OK(tcx_get(client, "b", NULL, NULL, &got));
    const char *const *path;
    size_t depth;
    tcx_tensor_t *tensors[4];
    for (size_t i = 0; i < 4; i++) {
        tcx_bundle_item(got, i, &path, &depth, &tensors[i]);
        EXPECT_STR_EQ(keys[i][0], path[0]);
    }
    expect_tensor(tensors[0], cpu, 100, 0, 1);
    expect_tensor(tensors[2], cuda, 500, 0, 1);
    EXPECT_TRUE(address_of(tensors[1]) == address_of(tensors[2]));
    EXPECT_TRUE(address_of(tensors[3]) == address_of(shared));
    tcx_bundle_unref(put);
    tcx_bundle_unref(got);
    tcx_tensor_unref(shared);
    EXPECT_OK(tcx_delete(client, "b"));
    end_cuda();
}

TEST(a_bundle_moves_to_the_device_that_it_is_told) {
    const char *keys[2][1] = {{"a"}, {"none"}};
    tcx_put_options_t to_cuda = {.device = cuda, .flags = TCX_PUT_READONLY};
    tcx_put_options_t to_cpu = {.device = cpu};
    struct floats none;
    tcx_bundle_t *there;
    tcx_bundle_t *here;
    const char *const *path;
    size_t depth;
    tcx_tensor_t *tensor;

    given_cuda(VMM);
    tcx_item_t items[2] = {{keys[0], 1, counting(100)}, {keys[1], 1, floats_on(&none, NULL, 0)}};
    EXPECT_OK(tcx_put_bundle(client, NULL, items, 2, &to_cuda, &there));
    tcx_bundle_item(there, 1, &path, &depth, &tensor);
    EXPECT_EQ(TCX_CUDA, tcx_tensor_array(tensor)->device.type);
    tcx_bundle_item(there, 0, &path, &depth, &tensor);
    expect_tensor(tensor, cuda, 100, 0, 1);
    EXPECT_TRUE(tcx_tensor_array(tensor)->readonly);
    items[0].array = tcx_tensor_array(tensor);
    EXPECT_OK(tcx_put_bundle(client, "here", items, 1, &to_cpu, &here));
    tcx_bundle_item(here, 0, &path, &depth, &tensor);
    expect_tensor(tensor, cpu, 100, 0, 1);
    EXPECT_TRUE(!tcx_tensor_array(tensor)->readonly);
    tcx_bundle_unref(there);
    tcx_bundle_unref(here);
    EXPECT_OK(tcx_delete(client, "here"));
    end_cuda();
}

TEST_BOTH(a_ticket_carries_memory_on_a_device) {
    char ticket[TCX_TICKET_MAX];
    size_t nbytes;
    tcx_tensor_t *tensor;
    tcx_tensor_t *redeemed;

    given_cuda(mode);
    EXPECT_OK(tcx_copy(client, counting(100), cuda, &tensor));
    EXPECT_OK(tcx_tensor_ticket(client, tensor, ticket, &nbytes));
    CUdeviceptr address = address_of(tensor);
    tcx_tensor_unref(tensor);
    EXPECT_OK(tcx_redeem(client, ticket, nbytes, &redeemed, NULL));
    EXPECT_TRUE(address_of(redeemed) == address);
    expect_tensor(redeemed, cuda, 100, 0, 1);
    tcx_tensor_unref(redeemed);
    end_cuda();
}

/* -------------------------------------------------------------------------------------- devices */

#define UUID_A "000102030405060708090a0b0c0d0e0f"
#define UUID_B "101112131415161718191a1b1c1d1e1f"
#define TWO    UUID_A ":1073741824:vfr," UUID_B ":1073741824:vfr"

TEST(a_device_is_known_by_its_uuid_whatever_the_order) {
    tcx_tensor_t *first;
    tcx_tensor_t *second;

    setenv("FAKECUDA_DEVICES", TWO, 1);
    daemon_start(&own);
    setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
    client = daemon_client(&own);
    driver = given_driver();
    EXPECT_OK(tcx_copy(client, counting(10), (tcx_device_t){TCX_CUDA, 0}, &first));
    EXPECT_OK(tcx_copy(client, tcx_tensor_array(first), (tcx_device_t){TCX_CUDA, 1}, &second));
    expect_tensor(first, (tcx_device_t){TCX_CUDA, 0}, 10, 0, 1);
    expect_tensor(second, (tcx_device_t){TCX_CUDA, 1}, 10, 0, 1);
    EXPECT_EQ(1, count_maps("fakecuda:" UUID_B));
    EXPECT_EQ(1, count_maps("fakecuda:" UUID_A));
    tcx_tensor_unref(first);
    EXPECT_OK(tcx_tensor_view(second, float32, 1, (int64_t[]){5}, 0, 0, &first));
    tcx_tensor_unref(second);
    expect_tensor(first, (tcx_device_t){TCX_CUDA, 1}, 5, 0, 1);
    tcx_tensor_unref(first);
    end_cuda();
}

TEST(memory_on_a_device_that_is_hidden_here_is_refused_and_given_back) {
    tcx_put_options_t to_second = {.device = {TCX_CUDA, 1}};
    tcx_tensor_t *tensor;
    tcx_device_t device;
    int status;

    setenv("FAKECUDA_DEVICES", TWO, 1);
    daemon_start(&own);
    pid_t child = fork();
    if (child == 0) {
        client = daemon_client(&own);
        EXPECT_OK(tcx_put(client, "x", counting(10), &to_second, NULL));
        tcx_client_close(client);
        _exit(0);
    }
    EXPECT_EQ(child, waitpid(child, &status, 0));
    EXPECT_EQ(0, status);
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    client = daemon_client(&own);
    EXPECT_EQ(TCX_DEVICE, tcx_get(client, "x", NULL, &tensor, NULL));
    EXPECT_TRUE(strstr(tcx_error(), "which this process does not see") != NULL);
    EXPECT_OK(tcx_stat(client, "x", note_device, &device));
    EXPECT_EQ(TCX_CUDA, device.type);
    EXPECT_EQ(-1, device.id);
    EXPECT_OK(tcx_delete(client, "x"));
    end_cuda();
}
