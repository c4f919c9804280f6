/* Every function of the driver that the library calls fails once: one call has an error or none,
 * all of it is undone, and the next call works. */
#include "cuda_fixture.h"

/* In which modes somebody is told when it fails; else only the thread that reclaims meets it. */
static const struct {
    const char *name;
    int is_told_vmm, is_told_ipc;
} functions[] = {
    {"cuCtxPushCurrent_v2", 1, 1},
    {"cuCtxSynchronize", 1, 1},
    {"cuMemImportFromShareableHandle", 1, 0},
    {"cuMemAddressReserve", 1, 0},
    {"cuMemMap", 1, 0},
    {"cuMemSetAccess", 1, 0},
    {"cuMemRelease", 0, 0},
    {"cuMemUnmap", 0, 0},
    {"cuMemAddressFree", 0, 0},
    {"cuIpcOpenMemHandle_v2", 0, 1},
    {"cuIpcCloseMemHandle", 0, 0},
    {"cuMemcpyHtoDAsync_v2", 1, 1},
    {"cuMemcpyDtoHAsync_v2", 1, 1},
    {"cuMemcpyDtoDAsync_v2", 1, 1},
    {"cuMemsetD8Async", 1, 1},
    {"cuStreamSynchronize", 1, 1},
    {"cuThreadExchangeStreamCaptureMode", 0, 0},
    {"cuMemAlloc_v2", 0, 0},
    {"cuMemFree_v2", 0, 0},
};

/* Whether the call did what it says, or has an error that is one of the device's. */
static int did(int status) {
    if (status != TCX_OK && status != TCX_DEVICE && status != TCX_OUT_OF_MEMORY) {
        TEST_FAILED("%s: %s", tcx_status_text(status), tcx_error());
    }
    if (status != TCX_OK) {
        EXPECT_TRUE(strstr(tcx_error(), "cuda:0: ") != NULL);
        EXPECT_TRUE(strstr(tcx_error(), "CUDA_ERROR_") != NULL);
    }
    return status == TCX_OK;
}

/* Of each kind of thing one, on a connection of its own; then everything is unmapped. Returns how
 * many of them failed. */
static int do_everything(void) {
    tcx_put_options_t to_cuda = {.device = cuda};
    tcx_tensor_t *zeros = NULL;
    tcx_tensor_t *copy = NULL;
    tcx_tensor_t *got = NULL;
    float back[10];
    int failed = 0;

    client = daemon_client(&own);
    failed += !did(tcx_zeros(client, cuda, float32, 1, (int64_t[]){10}, &zeros));
    if (zeros) {
        failed += !did(tcx_copy(client, tcx_tensor_array(zeros), (tcx_device_t){0}, &copy));
        failed += !did(tcx_array_pack(tcx_tensor_array(zeros), back, sizeof back));
        failed += !did(tcx_put(client, "x", tcx_tensor_array(zeros), NULL, NULL));
    }
    failed += !did(tcx_put(client, "x", counting(10), &to_cuda, NULL));
    int r = tcx_get(client, "x", NULL, &got, NULL);
    failed += r != TCX_NOT_FOUND && !did(r);
    tcx_tensor_unref(zeros);
    tcx_tensor_unref(copy);
    tcx_tensor_unref(got);
    tcx_delete(client, "x");
    tcx_client_close(client);
    expect_unmapped();
    return failed;
}

/* The n-th call of the function fails. Returns how many calls of ours did. */
static int fail_each(const char *function, int code) {
    char rule[128];
    int told = 0;

    for (int n = 1; n <= 3; n++) {
        snprintf(rule, sizeof rule, "%s:%d:%d", function, n, code);
        fake.fakecuda_fail(rule);
        int failed = do_everything();
        fake.fakecuda_fail(NULL);
        if (failed > 1) {
            TEST_FAILED("%s made %d calls fail", rule, failed);
        }
        EXPECT_EQ(0, do_everything());
        told += failed;
    }
    return told;
}

static void fail_all(enum mode mode, int code) {
    given_cuda(mode);
    tcx_client_close(client);
    EXPECT_EQ(0, do_everything());
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        int told = fail_each(functions[i].name, code);
        int expected = mode == VMM ? functions[i].is_told_vmm : functions[i].is_told_ipc;
        if ((told > 0) != expected) {
            TEST_FAILED("%s: %d calls failed", functions[i].name, told);
        }
    }
    client = daemon_client(&own);
    end_cuda();
}

TEST(each_function_fails_once_and_all_is_undone_vmm) {
    fail_all(VMM, 999);
}

TEST(each_function_fails_once_and_all_is_undone_ipc) {
    fail_all(IPC, 999);
}

TEST(each_function_is_once_out_of_memory_and_all_is_undone) {
    fail_all(VMM, 2);
}

/* At the very beginning, in a process that has not used the device yet. */
static void begin_with(const char *function) {
    char rule[128];

    given_cuda(VMM);
    tcx_client_close(client);
    snprintf(rule, sizeof rule, "%s:1:999", function);
    fake.fakecuda_fail(rule);
    EXPECT_EQ(1, do_everything());
    fake.fakecuda_fail(NULL);
    EXPECT_EQ(0, do_everything());
    client = daemon_client(&own);
    end_cuda();
}

TEST(a_device_that_cannot_be_got_is_got_later) {
    begin_with("cuDeviceGet");
}

TEST(a_uuid_that_cannot_be_got_is_got_later) {
    begin_with("cuDeviceGetUuid_v2");
}

TEST(a_context_that_cannot_be_had_is_had_later) {
    begin_with("cuDevicePrimaryCtxRetain");
}

/* ------------------------------------------------------------------------- what the driver refuses
 */

TEST(without_a_driver_the_cpu_works_and_cuda_says_why) {
    tcx_tensor_t *tensor;
    char path[512];

    daemon_start(&own);
    snprintf(path, sizeof path, "%s/broken", getenv("LD_LIBRARY_PATH"));
    pid_t child = fork();
    if (child == 0) {
        setenv("LD_LIBRARY_PATH", path, 1);
        setenv("TEST_OTHER_SOCKET", own.socket, 1);
        execl("/proc/self/exe", "test_cuda_faults", "the_process_without_a_driver", NULL);
        _exit(127);
    }
    int status;
    EXPECT_EQ(child, waitpid(child, &status, 0));
    EXPECT_EQ(0, status);
    client = daemon_client(&own);
    EXPECT_OK(tcx_zeros(client, cpu, float32, 0, NULL, &tensor));
    tcx_tensor_unref(tensor);
    tcx_client_close(client);
    daemon_stop(&own);
    daemon_clean(&own);
}

TEST(the_process_without_a_driver) {
    const char *socket = getenv("TEST_OTHER_SOCKET");
    tcx_client_options_t options = {.socket = socket, .no_autostart = 1};
    tcx_tensor_t *tensor;

    if (!socket) {
        return;
    }
    EXPECT_OK(tcx_client_open(&options, &client));
    EXPECT_EQ(TCX_DEVICE, tcx_zeros(client, cuda, float32, 0, NULL, &tensor));
    EXPECT_TRUE(strstr(tcx_error(), "CUDA cannot be used: no CUDA driver") != NULL);
    EXPECT_OK(tcx_zeros(client, cpu, float32, 0, NULL, &tensor));
    tcx_tensor_unref(tensor);
    tcx_client_close(client);
}
