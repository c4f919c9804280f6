/* Memory on CUDA devices that is published, by put or a channel, is written by then: who publishes
 * it waits. */
#include <pthread.h>
#include <stdatomic.h>

#include "cuda_fixture.h"

/* The byte of a kernel that is under way, in all elements: 0x3f3f3f3f is 0.74706... */
#define WRITTEN 0x3f

static void expect_written(const tcx_tensor_t *tensor) {
    unsigned char bytes[COUNT * sizeof(float)];

    EXPECT_OK(tcx_array_pack(tcx_tensor_array(tensor), bytes, sizeof bytes));
    for (size_t i = 0; i < sizeof bytes; i++) {
        EXPECT_EQ(WRITTEN, bytes[i]);
    }
}

/* A tensor that a slow kernel writes on a stream of its own, as an array that says so or not. */
static tcx_array_t being_written(CUstream stream, const tcx_tensor_t *tensor, int says_so) {
    tcx_array_t array = *tcx_tensor_array(tensor);

    launch(stream, tensor, WRITTEN, SLOW_MS);
    array.stream = says_so ? (intptr_t)stream : 0;
    return array;
}

/* Bytes as another process sees them: nothing waits there for this one's work. */
static void expect_written_there(void) {
    int status;
    pid_t child = fork();

    if (child == 0) {
        execl("/proc/self/exe", "test_cuda_publish", "the_other_process_reads", NULL);
        _exit(127);
    }
    EXPECT_EQ(child, waitpid(child, &status, 0));
    EXPECT_EQ(0, status);
}

/* Not a test of its own: the other process of the next one, which sets the variable. */
TEST(the_other_process_reads) {
    const char *socket = getenv("TEST_OTHER_SOCKET");
    tcx_client_options_t options = {.socket = socket, .no_autostart = 1};
    tcx_tensor_t *tensor;

    if (!socket) {
        return;
    }
    EXPECT_OK(tcx_client_open(&options, &client));
    driver = given_driver();
    EXPECT_OK(tcx_get(client, "x", NULL, &tensor, NULL));
    expect_written(tensor);
    tcx_tensor_unref(tensor);
    tcx_client_close(client);
    expect_unmapped();
    _exit(0); /* the connection may still be about to be closed */
}

static void publish(int says_so) {
    given_cuda(VMM);
    setenv("TEST_OTHER_SOCKET", own.socket, 1);
    tcx_tensor_t *tensor = filled(1);
    CUstream stream = stream_create();
    tcx_array_t array = being_written(stream, tensor, says_so);
    EXPECT_OK(tcx_put(client, "x", &array, NULL, NULL));
    expect_written_there();
    EXPECT_OK(tcx_delete(client, "x"));
    tcx_tensor_unref(tensor);
    stream_destroy(stream);
    end_cuda();
}

TEST(what_is_put_is_complete_after_the_work_in_its_stream) {
    publish(1);
}

TEST(what_is_put_without_a_stream_is_complete_after_all_work) {
    publish(0);
}

/* What a look at the memory shows at once, without any wait. */
static void expect_complete(const tcx_tensor_t *tensor) {
    CUstream stream = stream_create();
    unsigned char bytes[COUNT * sizeof(float)] = {0};

    EXPECT_OK(tcx_device_push(cuda));
    EXPECT_EQ(CUDA_SUCCESS, fake.fakecuda_read(stream, address_of(tensor), sizeof bytes, 0, bytes));
    EXPECT_EQ(CUDA_SUCCESS, driver->stream_synchronize(stream));
    tcx_device_pop(cuda);
    stream_destroy(stream);
    EXPECT_EQ(WRITTEN, bytes[0]);
    EXPECT_EQ(WRITTEN, bytes[sizeof bytes - 1]);
}

TEST(copies_bundles_and_tickets_are_complete) {
    char ticket[TCX_TICKET_MAX];
    const char *key[1] = {"a"};
    tcx_bundle_t *bundle;
    tcx_tensor_t *copy;
    size_t nbytes;

    given_cuda(VMM);
    tcx_tensor_t *tensor = filled(1);
    CUstream stream = stream_create();
    tcx_array_t array = being_written(stream, tensor, 1);
    EXPECT_OK(tcx_copy(client, &array, (tcx_device_t){0}, &copy));
    expect_complete(copy);
    tcx_tensor_unref(copy);

    tcx_tensor_unref(tensor);
    tensor = filled(1);
    array = being_written(stream, tensor, 0);
    EXPECT_OK(tcx_put_bundle(client, NULL, &(tcx_item_t){key, 1, &array}, 1, NULL, &bundle));
    expect_complete(tensor);
    tcx_bundle_unref(bundle);

    tcx_tensor_unref(tensor);
    tensor = filled(1);
    launch(stream, tensor, WRITTEN, SLOW_MS);
    EXPECT_OK(tcx_tensor_ticket(client, tensor, ticket, &nbytes));
    expect_complete(tensor);
    EXPECT_OK(tcx_redeem(client, ticket, nbytes, &copy, NULL));
    tcx_tensor_unref(copy);
    tcx_tensor_unref(tensor);
    stream_destroy(stream);
    end_cuda();
}

TEST(a_stream_is_a_number_of_dlpacks) {
    given_cuda(VMM);
    tcx_tensor_t *tensor = filled(1);
    tcx_array_t array = *tcx_tensor_array(tensor);
    for (intptr_t stream = 0; stream <= 2; stream++) {
        array.stream = stream;
        EXPECT_OK(tcx_synchronize(cuda, stream));
        EXPECT_OK(tcx_put(client, "x", &array, NULL, NULL));
    }
    array.stream = -1;
    EXPECT_EQ(TCX_INVALID, tcx_put(client, "x", &array, NULL, NULL));
    EXPECT_EQ(TCX_INVALID, tcx_synchronize(cuda, -1));
    EXPECT_OK(tcx_synchronize(cpu, 0));
    EXPECT_OK(tcx_delete(client, "x"));
    tcx_tensor_unref(tensor);
    end_cuda();
}
