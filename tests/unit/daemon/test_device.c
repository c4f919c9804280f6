/* CUDA devices and both kinds of their memory, on the fake driver: what is known of them, and every
 * way in which the driver can refuse. */
#include <fcntl.h>
#include <stdlib.h>

#include "device.h"
#include "fakecuda_fixture.h"
#include "log.h"
#include "segments_fixture.h"
#include "store_cuda.h"
#include "warm.h"

struct machine {
    struct fixture f;
    struct devices devices;
};

static void setup_devices(struct machine *m, const char *mode) {
    m->devices = (struct devices){.segments = {.ready = &m->f.ready,
                                               .failed = on_failed,
                                               .now = now,
                                               .owner = &m->f,
                                               .warm_ms = 5000},
                                  .worker = &m->f.worker,
                                  .mode = mode};
    devices_init(&m->devices);
}

static void teardown_devices(struct machine *m) {
    devices_stop(&m->devices);
    uv_run(&m->f.loop, UV_RUN_DEFAULT);
    devices_fini(&m->devices);
}

/* Device 1 is where tests take, once it is loaded. */
static void setup_machine(struct machine *m, const char *mode) {
    given_driver();
    log_set_level(LOG_ERROR);
    setup(&m->f, 64 * MIB, 0);
    m->f.worker.is_serial = true;
    worker_init(&m->f.worker);
    setup_devices(m, mode);
}

static void teardown_machine(struct machine *m) {
    teardown_devices(m);
    teardown(&m->f);
}

static int load(struct machine *m) {
    int r = devices_load(&m->devices);

    if (r == -EAGAIN) {
        uv_run(&m->f.loop, UV_RUN_DEFAULT);
        r = devices_load(&m->devices);
    }
    if (r == STATUS_OK) {
        m->f.from = &devices_find(&m->devices, 1)->segments;
    }
    return r;
}

/* Back to the driver. */
static void give_back(struct machine *m, struct range *range) {
    give(&m->f, range);
    warm_shrink(m->f.from, 0);
    uv_run(&m->f.loop, UV_RUN_DEFAULT);
}

static void expect_whole(struct machine *m) {
    struct range *range = take(&m->f, 900 * MIB); /* of 1 GiB */

    EXPECT_TRUE(range != NULL);
    give_back(m, range);
}

/* -------------------------------------------------------------------------------------- loading */

TEST(devices_have_numbers_uuids_and_nine_tenths_of_their_memory) {
    struct machine m;
    setenv("FAKECUDA_DEVICES", "2", 1);
    setup_machine(&m, "auto");

    EXPECT_TRUE(!devices_find(&m.devices, 1));
    EXPECT_EQ(STATUS_OK, load(&m));
    EXPECT_EQ(2, m.devices.count);
    for (unsigned number = 1; number <= 2; number++) {
        const struct device *device = devices_find(&m.devices, number);
        EXPECT_EQ(number, device->segments.device);
        EXPECT_EQ(number - 1, device->uuid.bytes[15]);
        EXPECT_EQ(1024 * MIB, device->nbytes);
        EXPECT_EQ(1024 * MIB / 100 * 90 / (2 * MIB) * (2 * MIB), device->segments.capacity);
        EXPECT_TRUE(strcmp("vmm", device->store.name) == 0);
    }
    EXPECT_TRUE(!devices_find(&m.devices, 0) && !devices_find(&m.devices, 3));
    teardown_machine(&m);
}

TEST(all_who_ask_wait_for_one_loading) {
    struct machine m;
    struct waiter waiters[2];
    setup_machine(&m, "auto");

    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(-EAGAIN, devices_load(&m.devices));
        waiter_wait(&waiters[i], &m.devices.waiters);
    }
    uv_run(&m.f.loop, UV_RUN_DEFAULT);
    EXPECT_TRUE(list_pop(&m.f.ready) && list_pop(&m.f.ready) && !list_pop(&m.f.ready));
    EXPECT_EQ(STATUS_OK, devices_load(&m.devices));
    teardown_machine(&m);
}

TEST(off_is_off) {
    struct machine m;
    setup_machine(&m, "off");

    EXPECT_EQ(STATUS_DEVICE, devices_load(&m.devices));
    EXPECT_TRUE(strstr(m.devices.why, "--cuda=off"));
    teardown_machine(&m);
}

TEST(auto_shares_as_each_device_can) {
    struct machine m;
    setenv("FAKECUDA_DEVICES",
           "face0000000000000000000000000000:1073741824:v,"
           "face0000000000000000000000000001:1073741824:vf",
           1);
    setup_machine(&m, "auto");

    EXPECT_EQ(STATUS_OK, load(&m));
    EXPECT_TRUE(strcmp("ipc", devices_find(&m.devices, 1)->store.name) == 0);
    EXPECT_TRUE(strcmp("vmm", devices_find(&m.devices, 2)->store.name) == 0);
    teardown_machine(&m);
}

TEST(vmm_leaves_devices_out_that_cannot) {
    struct machine m;
    setenv("FAKECUDA_NO_VMM", "1", 1);
    setup_machine(&m, "vmm");

    EXPECT_EQ(STATUS_DEVICE, load(&m));
    EXPECT_TRUE(strstr(m.devices.why, "--cuda=vmm"));
    teardown_machine(&m);
}

TEST(a_refusal_while_loading_is_told_and_tried_again_after_a_second) {
    const char *const functions[] = {"cuDeviceGet",          "cuDeviceGetUuid_v2",
                                     "cuDeviceGetName",      "cuDeviceTotalMem_v2",
                                     "cuDeviceGetAttribute", "cuMemGetAllocationGranularity"};

    struct machine m;
    setup_machine(&m, "auto");

    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        char rule[64];
        snprintf(rule, sizeof rule, "%s:1:999", functions[i]);
        EXPECT_EQ(CUDA_SUCCESS, fake.fakecuda_fail(rule));
        EXPECT_EQ(STATUS_DEVICE, load(&m));
        EXPECT_TRUE(strstr(m.devices.why, functions[i]));
        m.f.now_ms += 999;
        EXPECT_EQ(STATUS_DEVICE, load(&m));
        m.f.now_ms += 1;
        EXPECT_EQ(STATUS_OK, load(&m));
        expect_whole(&m);
        teardown_devices(&m);
        setup_devices(&m, "auto");
    }
    teardown_machine(&m);
}

/* --------------------------------------------------------------------------------------- memory */

TEST(memory_is_a_descriptor_that_is_not_inherited) {
    struct machine m;
    setup_machine(&m, "vmm");
    EXPECT_EQ(STATUS_OK, load(&m));
    struct range *range = take(&m.f, 20 * MIB);

    EXPECT_EQ(FD_CLOEXEC, fcntl(range->segment->backing.fd, F_GETFD));
    give_back(&m, range);
    teardown_machine(&m);
}

TEST(memory_is_a_handle_and_no_descriptor) {
    static const uint8_t nothing[WIRE_IPC_HANDLE];
    struct machine m;
    setup_machine(&m, "ipc");
    EXPECT_EQ(STATUS_OK, load(&m));
    struct range *range = take(&m.f, 20 * MIB);

    EXPECT_EQ(-1, range->segment->backing.fd);
    EXPECT_TRUE(memcmp(nothing, range->segment->backing.handle, sizeof nothing) != 0);
    give_back(&m, range);
    teardown_machine(&m);
}

/* Each of these, refused once, fails one request; the next one works, and nothing is lost. */
static void expect_refusals(const char *mode, const char *const *functions, size_t count) {
    struct machine m;
    setup_machine(&m, mode);
    EXPECT_EQ(STATUS_OK, load(&m));

    for (size_t i = 0; i < count; i++) {
        char rule[64];
        snprintf(rule, sizeof rule, "%s:1:999", functions[i]);
        EXPECT_EQ(CUDA_SUCCESS, fake.fakecuda_fail(rule));
        EXPECT_TRUE(!take(&m.f, 20 * MIB));
        EXPECT_EQ(STORE_DRIVER + 999, m.f.shortage.error);
        EXPECT_TRUE(strcmp(functions[i], m.f.shortage.limit) == 0);
        expect_whole(&m);
    }
    teardown_machine(&m);
}

TEST(a_refusal_fails_one_request_vmm) {
    const char *const functions[] = {"cuMemCreate", "cuMemExportToShareableHandle"};

    expect_refusals("vmm", functions, 2);
}

TEST(a_refusal_fails_one_request_ipc) {
    const char *const functions[] = {"cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2",
                                     "cuMemAlloc_v2", "cuIpcGetMemHandle"};

    expect_refusals("ipc", functions, 4);
}

TEST(memory_that_the_driver_does_not_take_back_ends_nothing_else) {
    struct machine m;
    setup_machine(&m, "ipc");
    EXPECT_EQ(STATUS_OK, load(&m));
    struct range *range = take(&m.f, 20 * MIB);
    EXPECT_EQ(CUDA_SUCCESS, fake.fakecuda_fail("cuMemFree_v2:1:999"));
    give_back(&m, range);
    range = take(&m.f, 20 * MIB);
    EXPECT_TRUE(range != NULL);
    give_back(&m, range);
    teardown_machine(&m);
}

static void expect_shortage(const char *mode, const char *rule) {
    struct machine m;
    setup_machine(&m, mode);
    EXPECT_EQ(STATUS_OK, load(&m));
    EXPECT_EQ(CUDA_SUCCESS, fake.fakecuda_fail(rule));
    EXPECT_TRUE(!take(&m.f, 20 * MIB));
    EXPECT_EQ(ENOMEM, m.f.shortage.error);
    expect_whole(&m);
    teardown_machine(&m);
}

TEST(a_driver_without_memory_is_a_shortage_vmm) {
    expect_shortage("vmm", "cuMemCreate:1:2");
}

TEST(a_driver_without_memory_is_a_shortage_ipc) {
    expect_shortage("ipc", "cuMemAlloc_v2:1:2");
}

TEST(a_handle_that_is_refused_for_want_of_memory_is_asked_for_again) {
    expect_shortage("ipc", "cuIpcGetMemHandle:1:2");
}

TEST(what_nobody_uses_goes_back_to_the_driver_after_a_second) {
    struct machine m;
    setup_machine(&m, "vmm");
    EXPECT_EQ(STATUS_OK, load(&m));
    struct device *device = devices_find(&m.devices, 1);
    struct range *range = take(&m.f, 100 * MIB);

    segments_give(range);
    EXPECT_EQ(m.f.now_ms + 1000, devices_do_due(&m.devices, m.f.now_ms));
    EXPECT_EQ(100 * MIB, device->segments.warm_nbytes);
    EXPECT_EQ(UINT64_MAX, devices_do_due(&m.devices, m.f.now_ms + 1000));
    EXPECT_EQ(0, device->segments.committed);
    EXPECT_EQ(1, devices_destroyed(&m.devices));
    uv_run(&m.f.loop, UV_RUN_DEFAULT);
    expect_whole(&m);
    teardown_machine(&m);
}
