/* Channels whose buffers are on a CUDA device, and messages on another one than theirs. */
#include "cuda_fixture.h"

static tcx_channel_t *opened(const char *name, tcx_device_t device, uint64_t buffer_nbytes) {
    tcx_channel_options_t options = {
        .capacity = 2, .device = device, .buffer_nbytes = buffer_nbytes};
    tcx_channel_t *channel;

    EXPECT_OK(tcx_channel_open(client, name, &options, &channel));
    return channel;
}

static tcx_tensor_t *received(tcx_channel_t *channel) {
    tcx_tensor_t *tensor;

    EXPECT_OK(tcx_channel_recv(channel, 20, 0, &tensor, NULL));
    return tensor;
}

static tcx_device_t device_of(tcx_channel_t *channel) {
    tcx_channel_info_t info;

    tcx_channel_info(channel, &info);
    return info.device;
}

static uint64_t storages_now(void) {
    tcx_stats_t stats;

    EXPECT_OK(tcx_stats(client, &stats));
    return stats.storages;
}

static void send_in_buffers(enum mode mode) {
    struct private_array private;

    given_cuda(mode);
    private_create(&private, 1000);
    tcx_channel_t *queue = opened("q", (tcx_device_t){0}, 0);
    EXPECT_EQ(0, device_of(queue).type);
    for (int i = 0; i < 20; i++) { /* where the first message is */
        EXPECT_OK(tcx_channel_send(queue, &private.array, 20));
        EXPECT_EQ(TCX_CUDA, device_of(queue).type);
        tcx_tensor_t *tensor = received(queue);
        expect_tensor(tensor, cuda, 1000, 0, 1);
        EXPECT_EQ(1, storages_now());
        tcx_tensor_unref(tensor);
    }
    private_destroy(&private);
    tcx_channel_close(queue);
    end_cuda();
}

TEST(what_is_on_the_channels_device_is_sent_in_its_buffers_vmm) {
    send_in_buffers(VMM);
}

TEST(what_is_on_the_channels_device_is_sent_in_its_buffers_ipc) {
    send_in_buffers(IPC);
}

TEST(what_is_elsewhere_goes_by_reference_and_stays_there) {
    struct private_array private;

    given_cuda(VMM);
    private_create(&private, 1000);
    tcx_channel_t *there = opened("there", cuda, 4000);
    tcx_channel_t *here = opened("here", cpu, 4000);
    EXPECT_EQ(TCX_CUDA, device_of(there).type);
    EXPECT_EQ(TCX_CPU, device_of(here).type);
    EXPECT_OK(tcx_channel_send(there, counting(1000), 20));
    EXPECT_OK(tcx_channel_send(here, &private.array, 20));
    EXPECT_EQ(4, storages_now());
    tcx_tensor_t *tensor = received(there);
    expect_tensor(tensor, cpu, 1000, 0, 1);
    tcx_tensor_unref(tensor);
    tensor = received(here);
    expect_tensor(tensor, cuda, 1000, 0, 1);
    tcx_tensor_unref(tensor);
    private_destroy(&private);
    tcx_channel_close(there);
    tcx_channel_close(here);
    end_cuda();
}

TEST(large_shared_empty_and_deep_tensors_are_sent_too) {
    int64_t ones[TCX_NDIM_MAX];
    struct private_array private;
    tcx_tensor_t *shared;

    given_cuda(VMM);
    tcx_channel_t *queue = opened("q", cuda, 400);
    private_create(&private, 1000);
    EXPECT_OK(tcx_channel_send(queue, &private.array, 20));
    tcx_tensor_t *tensor = received(queue);
    expect_tensor(tensor, cuda, 1000, 0, 1);
    tcx_tensor_unref(tensor);

    EXPECT_OK(tcx_copy(client, &private.array, cuda, &shared));
    EXPECT_OK(tcx_channel_send(queue, tcx_tensor_array(shared), 20));
    tensor = received(queue);
    EXPECT_TRUE(address_of(tensor) == address_of(shared));
    tcx_tensor_unref(tensor);
    tcx_tensor_unref(shared);

    private.array.shape = (int64_t[]){0};
    EXPECT_OK(tcx_channel_send(queue, &private.array, 20));
    tensor = received(queue);
    EXPECT_EQ(TCX_CUDA, tcx_tensor_array(tensor)->device.type);
    tcx_tensor_unref(tensor);

    for (int i = 0; i < TCX_NDIM_MAX; i++) {
        ones[i] = 1;
    }
    private.array.ndim = TCX_NDIM_MAX;
    private.array.shape = ones;
    EXPECT_OK(tcx_channel_send(queue, &private.array, 20));
    tensor = received(queue);
    EXPECT_EQ(TCX_CUDA, tcx_tensor_array(tensor)->device.type);
    EXPECT_EQ(TCX_NDIM_MAX, tcx_tensor_array(tensor)->ndim);
    tcx_tensor_unref(tensor);
    private_destroy(&private);
    tcx_channel_close(queue);
    end_cuda();
}

TEST(bundles_are_sent_whatever_the_device) {
    const char *keys[2][1] = {{"here"}, {"there"}};
    tcx_device_t devices[] = {cpu, cuda};
    struct private_array private;
    const char *const *path;
    tcx_bundle_t *bundle;
    tcx_tensor_t *tensor;
    size_t depth;

    given_cuda(VMM);
    private_create(&private, 100);
    for (int i = 0; i < 2; i++) {
        tcx_channel_t *queue = opened(i ? "a" : "b", devices[i], 4000);
        tcx_item_t items[2] = {{keys[0], 1, counting(100)}, {keys[1], 1, &private.array}};
        EXPECT_OK(tcx_channel_send_bundle(queue, items, 2, 20));
        EXPECT_OK(tcx_channel_recv(queue, 20, 0, NULL, &bundle));
        tcx_bundle_item(bundle, 0, &path, &depth, &tensor);
        expect_tensor(tensor, cpu, 100, 0, 1);
        tcx_bundle_item(bundle, 1, &path, &depth, &tensor);
        expect_tensor(tensor, cuda, 100, 0, 1);
        tcx_bundle_unref(bundle);
        tcx_channel_close(queue);
    }
    private_destroy(&private);
    end_cuda();
}

TEST(a_loan_is_where_the_buffers_are_and_complete_when_it_is_sent) {
    unsigned char bytes[400] = {0};
    tcx_tensor_t *loan;

    given_cuda(VMM);
    tcx_channel_t *queue = opened("q", cuda, 0);
    EXPECT_OK(tcx_channel_loan(queue, float32, 1, (int64_t[]){100}, 20, &loan));
    EXPECT_EQ(TCX_CUDA, tcx_tensor_array(loan)->device.type);
    CUstream stream = stream_create();
    launch(stream, loan, 0x3f, 200);
    EXPECT_EQ(TCX_TIMEOUT, tcx_channel_send_loan(queue, loan, TCX_AT_ONCE));
    EXPECT_OK(tcx_channel_send_loan(queue, loan, 20));
    tcx_tensor_unref(loan);
    tcx_tensor_t *tensor = received(queue);
    CUstream other = stream_create();
    EXPECT_OK(tcx_device_push(cuda));
    EXPECT_EQ(CUDA_SUCCESS, fake.fakecuda_read(other, address_of(tensor), sizeof bytes, 0, bytes));
    EXPECT_EQ(CUDA_SUCCESS, driver->stream_synchronize(other));
    tcx_device_pop(cuda);
    EXPECT_EQ(0x3f, bytes[0]);
    EXPECT_EQ(0x3f, bytes[399]);
    tcx_tensor_unref(tensor);
    stream_destroy(stream);
    stream_destroy(other);
    tcx_channel_close(queue);
    end_cuda();
}

TEST(a_buffer_is_filled_again_when_no_kernel_reads_it_any_more) {
    enum { ELEMENTS = 100 };
    float read[ELEMENTS];
    struct private_array ones;
    tcx_channel_options_t options = {.capacity = 1, .buffers = 2, .device = cuda};
    tcx_channel_t *queue;

    given_cuda(VMM);
    EXPECT_OK(tcx_channel_open(client, "q", &options, &queue));
    private_create(&ones, ELEMENTS);
    EXPECT_OK(tcx_channel_send(queue, &ones.array, 20));
    tcx_tensor_t *tensor = received(queue);
    CUstream stream = stream_create();
    EXPECT_OK(tcx_device_push(cuda));
    EXPECT_EQ(CUDA_SUCCESS, fake.fakecuda_read(stream, address_of(tensor), sizeof read, 200, read));
    EXPECT_EQ(CUDA_SUCCESS, fake.cuMemsetD8_v2(ones.address, 0, ELEMENTS * sizeof(float)));
    tcx_device_pop(cuda);
    tcx_tensor_unref(tensor);
    ones.array.stream = 1; /* does not wait for the kernel */
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(tcx_channel_send(queue, &ones.array, 20));
        tcx_tensor_unref(received(queue));
    }
    EXPECT_OK(tcx_synchronize(cuda, (intptr_t)stream));
    for (int i = 0; i < ELEMENTS; i++) {
        EXPECT_EQ(i, read[i]);
    }
    stream_destroy(stream);
    private_destroy(&ones);
    tcx_channel_close(queue);
    end_cuda();
}

/* As in a program in C in which an interpreter was embedded. */
TEST(buffers_go_back_after_the_end_of_an_interpreter) {
    struct private_array private;
    tcx_tensor_t *loan;

    given_cuda(VMM);
    private_create(&private, 1000);
    tcx_channel_t *queue = opened("q", cuda, 4000);
    tcx_devices_end();
    for (int i = 0; i < 20; i++) { /* more than there are buffers */
        EXPECT_OK(tcx_channel_loan(queue, float32, 1, (int64_t[]){1000}, 20, &loan));
        tcx_tensor_unref(loan);
        EXPECT_OK(tcx_channel_send(queue, &private.array, 20));
        tcx_tensor_unref(received(queue));
    }
    private_destroy(&private);
    tcx_channel_close(queue);
    end_cuda();
}

TEST(subscribers_share_a_message_on_a_device) {
    tcx_channel_options_t options = {.flags = TCX_CHANNEL_TOPIC, .device = cuda};
    struct private_array private;
    tcx_channel_t *topic;
    tcx_channel_t *readers[2];

    given_cuda(IPC);
    private_create(&private, 100);
    EXPECT_OK(tcx_channel_open(client, "t", &options, &topic));
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(tcx_channel_subscribe(topic, 0, &readers[i]));
    }
    EXPECT_OK(tcx_channel_send(topic, &private.array, 20));
    tcx_tensor_t *first = received(readers[0]);
    tcx_tensor_t *second = received(readers[1]);
    EXPECT_TRUE(address_of(first) == address_of(second));
    expect_tensor(second, cuda, 100, 0, 1);
    tcx_tensor_unref(first);
    tcx_tensor_unref(second);
    for (int i = 0; i < 2; i++) {
        tcx_channel_close(readers[i]);
    }
    tcx_channel_close(topic);
    private_destroy(&private);
    end_cuda();
}

TEST(a_channel_on_another_device_than_asked_for_is_refused) {
    tcx_channel_options_t wants_cpu = {.capacity = 2, .device = cpu};
    tcx_channel_options_t wants_second = {.capacity = 2, .device = {TCX_CUDA, 1}};
    tcx_channel_t *other;

    setenv("FAKECUDA_DEVICES", "2", 1);
    given_cuda(VMM);
    tcx_channel_t *queue = opened("q", cuda, 400);
    EXPECT_EQ(TCX_INVALID, tcx_channel_open(client, "q", &wants_cpu, &other));
    EXPECT_STR_EQ("\"q\" has device=cuda:0, and device=cpu was asked for", tcx_error());
    EXPECT_EQ(TCX_INVALID, tcx_channel_open(client, "q", &wants_second, &other));
    EXPECT_EQ(
        TCX_DEVICE,
        tcx_channel_open(client, "r", &(tcx_channel_options_t){.device = {TCX_CUDA, 5}}, &other));
    tcx_channel_close(queue);
    end_cuda();
}

static int note_channel(void *context, const tcx_channel_entry_t *entry) {
    *(tcx_device_t *)context = entry->device;
    return 0;
}

TEST(the_list_of_channels_tells_their_device) {
    tcx_device_t device;

    given_cuda(VMM);
    tcx_channel_t *queue = opened("q", cuda, 400);
    EXPECT_OK(tcx_channels(client, note_channel, &device));
    EXPECT_EQ(TCX_CUDA, device.type);
    EXPECT_EQ(0, device.id);
    tcx_channel_close(queue);
    end_cuda();
}
