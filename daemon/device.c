#include "device.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "commit.h"
#include "driver.h"
#include "log.h"
#include "messages.h"
#include "status.h"
#include "step.h"
#include "store_cuda.h"
#include "warm.h"

enum { RETRY_MS = 1000, WARM_MS = 1000 };

#define SHARE_PERCENT 90 /* of a device, unless --cuda-capacity is given */

/* --------------------------------------------------------------------------------------- load */

static CUresult attribute(const struct cuda_driver *driver, CUdevice_attribute which,
                          CUdevice ordinal, bool *ret_is_set) {
    int value = 0;
    CUresult result = driver->device_attribute(&value, which, ordinal);

    *ret_is_set = value != 0;
    return result;
}

/* Sets what can be asked about a device. NULL, or the function that failed. */
static const char *look(const struct cuda_driver *driver, int n, struct device *device,
                        CUresult *ret_result) {
    size_t total = 0;
    bool has_descriptors = false;

#define ASK(symbol, ...)                               \
    if ((*ret_result = __VA_ARGS__) != CUDA_SUCCESS) { \
        return symbol;                                 \
    }
    ASK("cuDeviceGet", driver->device_get(&device->ordinal, n))
    ASK("cuDeviceGetUuid_v2", driver->device_uuid(&device->uuid, device->ordinal))
    ASK("cuDeviceGetName",
        driver->device_name(device->name, sizeof device->name - 1, device->ordinal))
    ASK("cuDeviceTotalMem_v2", driver->device_total(&total, device->ordinal))
    ASK("cuDeviceGetAttribute",
        attribute(driver, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device->ordinal,
                  &device->has_vmm))
    ASK("cuDeviceGetAttribute",
        attribute(driver, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                  device->ordinal, &has_descriptors))
    ASK("cuDeviceGetAttribute",
        attribute(driver, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                  device->ordinal, &device->has_rdma))
    device->nbytes = total;
    device->has_vmm = device->has_vmm && has_descriptors;
    if (device->has_vmm) {
        ASK("cuMemGetAllocationGranularity", store_cuda_granularity(device, &device->store.unit))
    }
#undef ASK
    return NULL;
}

/* Chooses how the device's memory is shared. False: as the option says it cannot be. */
static bool choose(const struct devices *devices, struct device *device) {
    bool is_forced = strcmp(devices->mode, "vmm") == 0;
    uint64_t unit = bytes_round_up(device->store.unit, STORE_CUDA_UNIT);

    if (strcmp(devices->mode, "ipc") != 0 && device->has_vmm && unit > 0 &&
        RANGE_SPACE_MAX % unit == 0) {
        device->store = store_cuda_vmm;
        device->store.unit = unit;
        return true;
    }
    device->store = store_cuda_ipc;
    return !is_forced;
}

static void load_all(struct devices *devices, const struct cuda_driver *driver) {
    int count = driver->devices < WIRE_DEVICES_MAX ? driver->devices : WIRE_DEVICES_MAX;

    devices->all = calloc((size_t)count, sizeof *devices->all);
    if (!devices->all) {
        snprintf(devices->why, sizeof devices->why, "the daemon has no memory for its own books");
        return;
    }
    for (int n = 0; n < count; n++) {
        struct device *device = &devices->all[devices->count];
        CUresult result;
        const char *failed = look(driver, n, device, &result);
        if (failed) {
            char text[CUDA_TEXT_SIZE];
            snprintf(devices->why, sizeof devices->why, "%s of device %d: %s", failed, n,
                     cuda_text(result, text));
            devices->count = 0;
            return;
        }
        if (choose(devices, device)) {
            devices->count++;
        } else {
            *device = (struct device){0};
        }
    }
    if (devices->count == 0) {
        snprintf(devices->why, sizeof devices->why,
                 "no CUDA device here can share its memory by descriptors (--cuda=vmm): start the "
                 "daemon with --cuda=auto");
    }
}

static void load_work(struct job *job) {
    struct devices *devices = container_of(job, struct devices, job);
    const char *why;
    const struct cuda_driver *driver = cuda_driver(&why);

    if (driver) {
        load_all(devices, driver);
    } else {
        snprintf(devices->why, sizeof devices->why, "%s", why);
    }
}

/* From here on it can be used. */
static void begin(const struct devices *devices, unsigned number) {
    struct device *device = &devices->all[number - 1];
    uint64_t capacity =
        devices->capacity ? devices->capacity : device->nbytes / 100 * SHARE_PERCENT;
    char uuid[CUDA_UUID_SIZE];

    device->segments = devices->segments;
    device->segments.store = &device->store;
    device->segments.worker = devices->worker;
    device->segments.device = (uint16_t)number;
    device->segments.warm_ms = bytes_least(devices->segments.warm_ms, WARM_MS);
    device->segments.capacity = capacity / device->store.unit * device->store.unit;
    segments_init(&device->segments);
    log_info("event=device.found device=%u uuid=%s mapping=%s bytes=%" PRIu64 " capacity=%" PRIu64
             " unit=%" PRIu64,
             number, cuda_uuid_text(device->uuid.bytes, uuid), device->store.name, device->nbytes,
             device->segments.capacity, device->store.unit);
}

static void load_done(struct job *job) {
    struct devices *devices = container_of(job, struct devices, job);

    devices->state = devices->count > 0 ? DEVICES_KNOWN : DEVICES_FAILED;
    if (devices->state == DEVICES_FAILED) {
        free(devices->all);
        devices->all = NULL;
        devices->retry_ms = devices->segments.now(devices->segments.owner) + RETRY_MS;
        log_warn("event=device.none reason=\"%s\"", devices->why);
    }
    for (unsigned number = 1; number <= devices->count; number++) {
        begin(devices, number);
    }
    REACHED(DEVICES_FOUND);
    waitlist_wake(&devices->waiters, devices->segments.ready);
}

static void load(struct devices *devices) {
    devices->state = DEVICES_LOADING;
    devices->job.work = load_work;
    devices->job.done = load_done;
    worker_submit(devices->worker, &devices->job);
}

int devices_load(struct devices *devices) {
    if (devices->state == DEVICES_KNOWN) {
        return STATUS_OK;
    }
    if (strcmp(devices->mode, "off") == 0) {
        snprintf(devices->why, sizeof devices->why, "the daemon was started with --cuda=off");
        return STATUS_DEVICE;
    }
    if (devices->state == DEVICES_FAILED &&
        devices->segments.now(devices->segments.owner) < devices->retry_ms) {
        return STATUS_DEVICE;
    }
    if (devices->state != DEVICES_LOADING) {
        load(devices);
    }
    return -EAGAIN;
}

/* ------------------------------------------------------------------------------------------ use */

void devices_init(struct devices *devices) {
    waitlist_init(&devices->waiters, NULL);
}

unsigned devices_count(const struct devices *devices) {
    return devices->state == DEVICES_KNOWN ? devices->count : 0;
}

struct device *devices_find(const struct devices *devices, unsigned number) {
    bool is_one = number > 0 && number <= devices_count(devices);

    return is_one ? &devices->all[number - 1] : NULL;
}

uint64_t devices_destroyed(const struct devices *devices) {
    uint64_t destroyed = 0;

    for (unsigned number = 1; devices_find(devices, number); number++) {
        destroyed += devices_find(devices, number)->segments.destroyed;
    }
    return destroyed;
}

uint64_t devices_do_due(struct devices *devices, uint64_t now_ms) {
    uint64_t due_ms = UINT64_MAX;
    struct device *device;

    for (unsigned number = 1; (device = devices_find(devices, number)); number++) {
        due_ms = bytes_least(due_ms, warm_expire(&device->segments, now_ms));
        due_ms = bytes_least(due_ms, commit_expire(&device->segments, now_ms));
    }
    return due_ms;
}

void devices_stop(struct devices *devices) {
    struct device *device;

    for (unsigned number = 1; (device = devices_find(devices, number)); number++) {
        segments_stop(&device->segments);
    }
}

void devices_fini(struct devices *devices) {
    struct device *device;

    for (unsigned number = 1; (device = devices_find(devices, number)); number++) {
        segments_fini(&device->segments);
    }
    free(devices->all);
}
