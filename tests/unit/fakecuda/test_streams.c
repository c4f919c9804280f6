/* The fake driver's streams, its devices, and the ways in which it fails. */
#include <stdlib.h>

#include "fakecuda_fixture.h"
#include "processes.h"

#define NBYTES    ((size_t)4096)
#define SLOW      300 /* ms of work: long beside a call */
#define INVALID   901 /* a capture that was disturbed */
#define CAPTURING 900

static const struct cuda_driver *driver;
static CUdeviceptr address;

static void given_memory(void) {
    driver = given_context();
    EXPECT_EQ(CUDA_SUCCESS, driver->alloc(&address, NBYTES));
    EXPECT_EQ(CUDA_SUCCESS, fake.cuMemsetD8_v2(address, 1, NBYTES));
}

static CUstream given_stream(unsigned int flags) {
    CUstream stream;

    EXPECT_EQ(CUDA_SUCCESS, fake.cuStreamCreate(&stream, flags));
    return stream;
}

/* The first byte, by a stream that waits for no other. */
static int byte_now(void) {
    static CUstream aside;
    unsigned char byte;

    aside = aside ? aside : given_stream(1);
    EXPECT_EQ(CUDA_SUCCESS, driver->copy_out(&byte, address, 1, aside));
    EXPECT_EQ(CUDA_SUCCESS, driver->stream_synchronize(aside));
    return byte;
}

TEST(who_does_not_wait_sees_old_bytes) {
    given_memory();
    CUstream stream = given_stream(1);

    EXPECT_EQ(CUDA_SUCCESS, fake.fakecuda_launch(stream, address, NBYTES, 2, SLOW));
    EXPECT_EQ(1, byte_now());
    EXPECT_EQ(CUDA_ERROR_NOT_READY, fake.cuStreamQuery(stream));
    EXPECT_EQ(CUDA_SUCCESS, driver->stream_synchronize(stream));
    EXPECT_EQ(2, byte_now());
    EXPECT_EQ(CUDA_SUCCESS, fake.cuStreamDestroy_v2(stream));
    EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, driver->stream_synchronize(stream));
}

TEST(a_delay_holds_copies_back) {
    unsigned char byte = 2;

    given_memory();
    fake.fakecuda_delay(SLOW);
    EXPECT_EQ(CUDA_SUCCESS, driver->copy_in(address, &byte, 1, CU_STREAM_LEGACY));
    fake.fakecuda_delay(0);
    EXPECT_EQ(1, byte_now());
    EXPECT_EQ(CUDA_SUCCESS, driver->context_synchronize());
    EXPECT_EQ(2, byte_now());
}

TEST(the_legacy_stream_waits_for_blocking_streams_only) {
    given_memory();
    EXPECT_EQ(CUDA_SUCCESS, fake.fakecuda_launch(given_stream(1), address, NBYTES, 2, 2 * SLOW));
    EXPECT_EQ(CUDA_SUCCESS, driver->stream_synchronize(CU_STREAM_LEGACY));
    EXPECT_EQ(1, byte_now());
    EXPECT_EQ(CUDA_SUCCESS, driver->context_synchronize());
    EXPECT_EQ(2, byte_now());

    EXPECT_EQ(CUDA_SUCCESS, fake.fakecuda_launch(given_stream(0), address, NBYTES, 3, SLOW));
    EXPECT_EQ(CUDA_SUCCESS, driver->fill(address + 1, 3, 1, CU_STREAM_LEGACY));
    EXPECT_EQ(CUDA_SUCCESS, driver->stream_synchronize(CU_STREAM_LEGACY));
    EXPECT_EQ(3, byte_now());
    EXPECT_EQ(CUDA_SUCCESS, fake.fakecuda_launch(CU_STREAM_LEGACY, address, NBYTES, 4, SLOW));
    EXPECT_EQ(CUDA_SUCCESS, driver->fill(address + 1, 4, 1, CU_STREAM_PER_THREAD));
    EXPECT_EQ(CUDA_SUCCESS, driver->stream_synchronize(CU_STREAM_PER_THREAD));
    EXPECT_EQ(4, byte_now());
}

TEST(an_event_makes_a_stream_or_the_host_wait) {
    CUevent event;
    CUstream writer, reader;
    unsigned char byte = 0;

    given_memory();
    writer = given_stream(1);
    reader = given_stream(1);
    EXPECT_EQ(CUDA_SUCCESS, driver->event_create(&event, CU_EVENT_DISABLE_TIMING));
    EXPECT_EQ(CUDA_SUCCESS, fake.fakecuda_launch(writer, address, NBYTES, 2, SLOW));
    EXPECT_EQ(CUDA_SUCCESS, driver->event_record(event, writer));
    EXPECT_EQ(CUDA_ERROR_NOT_READY, fake.cuEventQuery(event));
    EXPECT_EQ(CUDA_SUCCESS, driver->stream_wait(reader, event, 0));
    EXPECT_EQ(CUDA_SUCCESS, driver->copy_out(&byte, address, 1, reader));
    EXPECT_EQ(CUDA_SUCCESS, driver->event_synchronize(event));
    EXPECT_EQ(2, byte_now());
    EXPECT_EQ(CUDA_SUCCESS, driver->stream_synchronize(reader));
    EXPECT_EQ(2, byte);
    EXPECT_EQ(CUDA_SUCCESS, driver->event_destroy(event));
    EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, driver->event_synchronize(event));
}

TEST(a_kernel_whose_memory_is_gone_loses_the_context) {
    char bytes[NBYTES];
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = {
        CU_MEM_ALLOCATION_TYPE_PINNED, 0, {CU_MEM_LOCATION_TYPE_DEVICE, 0}, NULL, {0}};

    given_memory();
    size_t block = (size_t)2 << 20;
    EXPECT_EQ(CUDA_SUCCESS, driver->create(&handle, block, &properties, 0));
    EXPECT_EQ(CUDA_SUCCESS, driver->address_reserve(&address, block, 0, 0, 0));
    EXPECT_EQ(CUDA_SUCCESS, driver->map(address, block, 0, handle, 0));
    EXPECT_EQ(CUDA_SUCCESS, driver->release(handle));
    EXPECT_EQ(CUDA_SUCCESS,
              driver->set_access(address, block,
                                 &(CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, 0}, 3}, 1));
    EXPECT_EQ(CUDA_SUCCESS, fake.fakecuda_read(given_stream(1), address, NBYTES, SLOW, bytes));
    EXPECT_EQ(CUDA_SUCCESS, driver->unmap(address, block));
    EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, driver->context_synchronize());
    EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, driver->alloc(&address, 1));
}

TEST(whoever_waits_for_the_context_breaks_a_capture) {
    void *graph;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    given_memory();
    CUstream stream = given_stream(1);
    EXPECT_EQ(CUDA_SUCCESS, driver->capture_mode(&mode));
    EXPECT_EQ(0, mode);
    EXPECT_EQ(CUDA_SUCCESS, fake.cuStreamBeginCapture_v2(stream, mode));
    EXPECT_EQ(CUDA_SUCCESS, driver->fill(address, 2, 1, stream)); /* not now */
    EXPECT_EQ(1, byte_now());
    EXPECT_EQ(CUDA_SUCCESS, fake.cuStreamEndCapture(stream, &graph));

    EXPECT_EQ(CUDA_SUCCESS, fake.cuStreamBeginCapture_v2(stream, mode));
    EXPECT_EQ(CAPTURING, driver->context_synchronize());
    EXPECT_EQ(INVALID, fake.cuStreamEndCapture(stream, &graph));
    EXPECT_EQ(CUDA_SUCCESS, driver->context_synchronize());
}

TEST(unsafe_calls_break_a_capture_unless_the_thread_is_relaxed) {
    void *graph;
    CUdeviceptr other;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    given_memory();
    CUstream stream = given_stream(1);
    EXPECT_EQ(CUDA_SUCCESS, fake.cuStreamBeginCapture_v2(stream, mode));
    EXPECT_EQ(CUDA_SUCCESS, driver->capture_mode(&mode));
    EXPECT_EQ(CUDA_SUCCESS, driver->alloc(&other, 1));
    EXPECT_EQ(CUDA_SUCCESS, driver->capture_mode(&mode));
    EXPECT_EQ(CAPTURING, driver->alloc(&other, 1));
    EXPECT_EQ(INVALID, fake.cuStreamEndCapture(stream, &graph));
}

/* ------------------------------------------------------------------------ devices and failures */

TEST(two_processes_may_number_devices_differently) {
    CUuuid uuid;
    size_t total;
    int value;

    setenv("FAKECUDA_DEVICES",
           "00000000000000000000000000000001:4194304:vfr,"
           "00000000000000000000000000000002:8388608:-",
           1);
    setenv("CUDA_VISIBLE_DEVICES", "1,GPU-00000000-0000-0000-0000-000000000001,7,0", 1);
    driver = given_driver();
    EXPECT_EQ(2, driver->devices);
    EXPECT_EQ(CUDA_SUCCESS, driver->device_uuid(&uuid, 0));
    EXPECT_EQ(2, uuid.bytes[15]);
    EXPECT_EQ(CUDA_SUCCESS, driver->device_total(&total, 0));
    EXPECT_EQ(8388608, total);
    EXPECT_EQ(CUDA_SUCCESS, driver->device_attribute(&value, (CUdevice_attribute)102, 0));
    EXPECT_EQ(0, value);
    EXPECT_EQ(CUDA_SUCCESS, driver->device_attribute(&value, (CUdevice_attribute)102, 1));
    EXPECT_EQ(1, value);
    EXPECT_EQ(CUDA_ERROR_INVALID_DEVICE, driver->device_uuid(&uuid, 2));
}

TEST(a_fault_comes_at_the_call_that_it_is_wanted_at) {
    CUdeviceptr got;

    given_memory();
    fake.fakecuda_fail("cuMemAlloc_v2:2:2,cuMemFree_v2:1+:999");
    EXPECT_EQ(CUDA_SUCCESS, driver->alloc(&got, 1));
    EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, driver->alloc(&got, 1));
    EXPECT_EQ(CUDA_SUCCESS, driver->alloc(&got, 1));
    EXPECT_EQ(CUDA_ERROR_UNKNOWN, driver->free(got));
    EXPECT_EQ(CUDA_ERROR_UNKNOWN, driver->free(got));
    fake.fakecuda_fail(NULL);
    EXPECT_EQ(CUDA_SUCCESS, driver->free(got));
    fake.fakecuda_fail("cuMemAlloc_v2:1:700");
    EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, driver->alloc(&got, 1));
    EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, driver->alloc(&got, 1));
}

TEST(without_a_current_context_most_calls_fail) {
    CUdeviceptr got;
    CUcontext context;

    driver = given_driver();
    EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, driver->alloc(&got, 1));
    EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, driver->context_synchronize());
    EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, driver->context_pop(&context));
    EXPECT_EQ(CUDA_SUCCESS, driver->context_retain(&context, 0));
    EXPECT_EQ(CUDA_SUCCESS, driver->context_push(context));
    EXPECT_EQ(CUDA_SUCCESS, driver->context_synchronize());
    EXPECT_EQ(CUDA_SUCCESS, driver->context_release(0));
    EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, driver->context_push(context));
}

TEST(the_last_reference_to_a_context_ends_its_memory) {
    CUcontext again;
    CUdeviceptr got;

    driver = given_context();
    size_t left = free_bytes();
    EXPECT_EQ(CUDA_SUCCESS, driver->alloc(&got, 1));
    EXPECT_EQ(CUDA_SUCCESS, driver->context_retain(&again, 0));
    EXPECT_EQ(CUDA_SUCCESS, driver->context_release(0));
    EXPECT_TRUE(free_bytes() < left);
    EXPECT_EQ(CUDA_SUCCESS, driver->context_release(0));
    EXPECT_EQ(CUDA_SUCCESS, driver->context_retain(&again, 0));
    EXPECT_EQ(left, free_bytes());
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, driver->free(got));
}

static void calls_what_its_parent_initialised(void) {
    EXPECT_EQ(CUDA_ERROR_NOT_INITIALIZED, driver->init(0));
    EXPECT_EQ(CUDA_ERROR_NOT_INITIALIZED, driver->context_synchronize());
    EXPECT_EQ(CUDA_ERROR_NOT_INITIALIZED, driver->free(address));
}

TEST(a_forked_child_has_no_driver) {
    given_memory();
    expect_peer_passes(given_peer(calls_what_its_parent_initialised));
    EXPECT_EQ(1, byte_now());
}

static void calls_at_the_end(void) {
    if (driver->free(address) != CUDA_ERROR_DEINITIALIZED) {
        _exit(1);
    }
}

static void exits(void) {
    atexit(calls_at_the_end); /* before the driver's own: so it runs after it */
    given_memory();
    exit(0);
}

TEST(at_exit_the_driver_is_gone) {
    expect_peer_passes(given_peer(exits));
}
