/*
 * cuda_fixture.h - a real daemon and a client of it, both on the fake CUDA driver
 */
#pragma once

#include "fakecuda_fixture.h"
#include "own_daemon.h"

static struct own_daemon own;
static tcx_client_t *client;
static const struct cuda_driver *driver;

static const tcx_device_t cpu = {TCX_CPU, 0};
static const tcx_device_t cuda = {TCX_CUDA, 0};
static const tcx_dtype_t float32 = {TCX_FLOAT, 32, 1};

/* How the daemon shares its memory. */
enum mode { VMM, IPC };

enum { COUNT = 1000, SLOW_MS = 200 };

static inline void given_cuda(enum mode mode) {
    if (mode == IPC) {
        setenv("FAKECUDA_NO_VMM", "1", 1);
    }
    daemon_start(&own);
    unsetenv("FAKECUDA_NO_VMM");
    client = daemon_client(&own);
    driver = given_driver();
}

static inline int count_maps(const char *part) {
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "re");

    while (fgets(line, sizeof line, maps)) {
        count += strstr(line, part) != NULL;
    }
    fclose(maps);
    return count;
}

/* What the daemon has on the device. */
static inline int get_device(void *context, const tcx_device_entry_t *entry) {
    *(tcx_device_entry_t *)context = *entry;
    return 0;
}

static inline tcx_device_entry_t device_now(void) {
    tcx_device_entry_t entry = {0};

    EXPECT_OK(tcx_devices(client, get_device, &entry));
    return entry;
}

/* Waits until this process has just so much memory of devices mapped; the thread that reclaims has
 * some for moments. */
static inline void expect_mapped(int count) {
    int64_t deadline = clock_after(20 * NS_PER_S);

    while (count_maps("fakecuda:") != count && clock_now() < deadline) {
        poll(NULL, 0, 1);
    }
    EXPECT_EQ(count, count_maps("fakecuda:"));
}

static inline void expect_unmapped(void) {
    expect_mapped(0);
}

/* The end of a test: nothing may be left, here or there. The connection ends with the client: what
 * is idle is unmapped at once; the daemon gives it back beside its loop. */
static inline void end_cuda(void) {
    int64_t deadline = clock_after(20 * NS_PER_S);
    tcx_stats_t stats;

    tcx_client_close(client);
    expect_unmapped();
    client = daemon_client(&own);
    expect_settles(client, 0, 0);
    do {
        EXPECT_OK(tcx_stats(client, &stats));
    } while ((stats.clients > 1 || device_now().dying_bytes > 0) && clock_now() < deadline);
    EXPECT_EQ(1, stats.clients);
    EXPECT_EQ(0, stats.dropped);
    EXPECT_EQ(0, device_now().dying_bytes);
    tcx_client_close(client);
    daemon_stop(&own);
    daemon_clean(&own);
}

/* The elements of a float32 array, wherever it is. */
static inline void expect_floats(const tcx_array_t *array, int64_t count, float first, float step) {
    float *host = malloc((size_t)count * sizeof *host);

    EXPECT_EQ(1, array->ndim);
    EXPECT_EQ(count, array->shape[0]);
    EXPECT_OK(tcx_array_pack(array, host, (size_t)count * sizeof *host));
    for (int64_t i = 0; i < count; i++) {
        if (host[i] != first + step * (float)i) {
            TEST_FAILED("element %lld is %g, not %g", (long long)i, (double)host[i],
                        (double)(first + step * (float)i));
        }
    }
    free(host);
}

static inline void expect_tensor(const tcx_tensor_t *tensor, tcx_device_t device, int64_t count,
                                 float first, float step) {
    EXPECT_EQ(device.type, tcx_tensor_array(tensor)->device.type);
    EXPECT_EQ(device.id, tcx_tensor_array(tensor)->device.id);
    expect_floats(tcx_tensor_array(tensor), count, first, step);
}

/* 0, 1, 2, ... on the CPU; lasts until the next call. */
static inline const tcx_array_t *counting(int64_t count) {
    static struct floats floats;
    static float *data;

    free(data);
    data = malloc((size_t)count * sizeof *data);
    for (int64_t i = 0; i < count; i++) {
        data[i] = (float)i;
    }
    return floats_on(&floats, data, count);
}

/* The same on the device, in memory of this process's own. */
struct private_array {
    CUdeviceptr address;
    int64_t shape[1];
    tcx_array_t array;
};

static inline void private_create(struct private_array *private, int64_t count) {
    const tcx_array_t *source = counting(count);

    EXPECT_OK(tcx_device_push(cuda));
    EXPECT_EQ(CUDA_SUCCESS, driver->alloc(&private->address, (size_t)count * sizeof(float)));
    EXPECT_EQ(CUDA_SUCCESS,
              fake.cuMemcpyHtoD_v2(private->address, source->data, (size_t)count * sizeof(float)));
    tcx_device_pop(cuda);
    private->shape[0] = count;
    private->array = (tcx_array_t){.data = (void *)(uintptr_t) private->address,
                                   .dtype = float32,
                                   .ndim = 1,
                                   .shape = private->shape,
                                   .device = cuda};
}

static inline void private_destroy(struct private_array *private) {
    EXPECT_OK(tcx_device_push(cuda));
    EXPECT_EQ(CUDA_SUCCESS, driver->free(private->address));
    tcx_device_pop(cuda);
}

static inline CUdeviceptr address_of(const tcx_tensor_t *tensor) {
    return (CUdeviceptr)(uintptr_t)tcx_tensor_array(tensor)->data;
}

/* A kernel of `ms` that writes the byte to all of the tensor. */
static inline void launch(CUstream stream, const tcx_tensor_t *tensor, unsigned char value,
                          int ms) {
    tcx_info_t info;

    tcx_tensor_info(tensor, &info);
    EXPECT_OK(tcx_device_push(cuda));
    EXPECT_EQ(CUDA_SUCCESS,
              fake.fakecuda_launch(stream, address_of(tensor), info.nbytes, value, ms));
    tcx_device_pop(cuda);
}

static inline CUstream stream_create(void) {
    CUstream stream;

    EXPECT_OK(tcx_device_push(cuda));
    EXPECT_EQ(CUDA_SUCCESS, fake.cuStreamCreate(&stream, 1)); /* not blocking */
    tcx_device_pop(cuda);
    return stream;
}

static inline void stream_destroy(CUstream stream) {
    EXPECT_OK(tcx_device_push(cuda));
    EXPECT_EQ(CUDA_SUCCESS, fake.cuStreamDestroy_v2(stream));
    tcx_device_pop(cuda);
}

/* COUNT elements of 1.0, 2.0 or so. */
static inline tcx_tensor_t *filled(float value) {
    struct floats floats;
    float data[COUNT];
    tcx_tensor_t *tensor;

    for (int i = 0; i < COUNT; i++) {
        data[i] = value;
    }
    EXPECT_OK(tcx_copy(client, floats_on(&floats, data, COUNT), cuda, &tensor));
    return tensor;
}
