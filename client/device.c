#include "device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "reclaim.h"
#include "step.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct device *_Atomic devices; /* all that this process sees; NULL: not asked yet */
static int count;

/* --------------------------------------------------------------------------------------- errors */

/* After these no call in the context works any more, and nothing runs there. */
static int is_lost(CUresult result) {
    static const int lost[] = {
        214, /* ECC_UNCORRECTABLE */
        220, /* NVLINK_UNCORRECTABLE */
        700, /* ILLEGAL_ADDRESS */
        702, /* LAUNCH_TIMEOUT */
        709, /* CONTEXT_IS_DESTROYED */
        710, /* ASSERT */
        714, /* HARDWARE_STACK_ERROR */
        715, /* ILLEGAL_INSTRUCTION */
        716, /* MISALIGNED_ADDRESS */
        717, /* INVALID_ADDRESS_SPACE */
        718, /* INVALID_PC */
        719, /* LAUNCH_FAILED */
    };

    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++) {
        if ((int)result == lost[i]) {
            return 1;
        }
    }
    return 0;
}

int device_error(const struct device *device, CUresult result, const char *what) {
    char text[CUDA_TEXT_SIZE];

    if (is_lost(result)) {
        return error(
            STATUS_DEVICE,
            "cuda:%d: the CUDA context of this process is lost (%s): nothing works in it any "
            "more, start the process anew; others are not concerned",
            device->ordinal, cuda_text(result, text));
    }
    return error(result == CUDA_ERROR_OUT_OF_MEMORY ? STATUS_OUT_OF_MEMORY : STATUS_DEVICE,
                 "cuda:%d: %s: %s", device->ordinal, what, cuda_text(result, text));
}

const char *device_text(tcx_device_t device, char text[DEVICE_TEXT_SIZE]) {
    if (device.type == TCX_CUDA) {
        snprintf(text, DEVICE_TEXT_SIZE, "cuda:%d", (int)device.id);
        return text;
    }
    return "cpu";
}

/* -------------------------------------------------------------------------------------- finding */

static int look(const struct cuda_driver *driver, int ordinal, struct device *device) {
    CUresult result = driver->device_get(&device->handle, ordinal);

    device->ordinal = ordinal;
    if (result == CUDA_SUCCESS) {
        result = driver->device_uuid(&device->uuid, device->handle);
    }
    return result == CUDA_SUCCESS ? STATUS_OK
                                  : device_error(device, result, "the device cannot be looked at");
}

/* Fills the table, if that has not been done. Lock held. */
static int look_at_all(const struct cuda_driver *driver) {
    int r = STATUS_OK;

    if (atomic_load(&devices)) {
        return STATUS_OK;
    }
    struct device *all = calloc((size_t)driver->devices, sizeof *all);
    if (!all) {
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    for (int i = 0; i < driver->devices && r == STATUS_OK; i++) {
        r = look(driver, i, &all[i]);
    }
    if (r != STATUS_OK) {
        free(all);
        return r;
    }
    count = driver->devices;
    atomic_store(&devices, all);
    REACHED(CUDA_DEVICES_KNOWN);
    return STATUS_OK;
}

static const struct cuda_driver *find_driver(int *ret_status) {
    const char *why;
    const struct cuda_driver *driver = cuda_driver(&why);

    if (!driver) {
        *ret_status = error(STATUS_DEVICE, "CUDA cannot be used: %s", why);
    }
    return driver;
}

/* The table. */
static int know(void) {
    int r = STATUS_OK;
    const struct cuda_driver *driver = find_driver(&r);

    if (driver && !atomic_load(&devices)) {
        pthread_mutex_lock(&lock);
        r = look_at_all(driver);
        pthread_mutex_unlock(&lock);
    }
    return r;
}

int device_look_up(tcx_device_t name, struct device **ret_device) {
    if (name.type != TCX_CUDA) {
        return error(STATUS_INVALID,
                     "device (%d, %d): memory is on the CPU (1, 0) or a CUDA device (2, n)",
                     (int)name.type, (int)name.id);
    }
    int r = know();
    if (r != STATUS_OK) {
        return r;
    }
    if (name.id < 0 || name.id >= count) {
        return error(STATUS_DEVICE,
                     "cuda:%d: this process sees %d CUDA device%s, counted from 0 "
                     "(CUDA_VISIBLE_DEVICES may hide others)",
                     (int)name.id, count, count == 1 ? "" : "s");
    }
    *ret_device = &atomic_load(&devices)[name.id];
    return STATUS_OK;
}

int device_find_uuid(const unsigned char uuid[16], struct device **ret_device) {
    char text[CUDA_UUID_SIZE];
    int r = know();

    if (r != STATUS_OK) {
        return r;
    }
    struct device *all = atomic_load(&devices);
    for (int i = 0; i < count; i++) {
        if (memcmp(all[i].uuid.bytes, uuid, sizeof all[i].uuid) == 0) {
            *ret_device = &all[i];
            return STATUS_OK;
        }
    }
    return error(STATUS_DEVICE,
                 "the memory is on CUDA device %s, which this process does not see "
                 "(CUDA_VISIBLE_DEVICES hides it)",
                 cuda_uuid_text(uuid, text));
}

tcx_device_t device_name(const struct device *device) {
    return device ? (tcx_device_t){TCX_CUDA, device->ordinal} : (tcx_device_t){TCX_CPU, 0};
}

/* -------------------------------------------------------------------------------------- context */

/* The primary context; retained when there is none yet, and then there is a thread that reclaims
 * what is let go. */
static int retain(const struct cuda_driver *driver, struct device *device, CUcontext *ret_context) {
    CUcontext context = NULL;
    int r = STATUS_OK;

    pthread_mutex_lock(&lock);
    if (!(context = atomic_load(&device->context))) {
        CUresult result = driver->context_retain(&context, device->handle);
        REACHED(CUDA_CONTEXT_RETAINED);
        r = result == CUDA_SUCCESS ? reclaim_start()
                                   : device_error(device, result, "there is no context to be had");
        if (r == STATUS_OK) {
            atomic_store(&device->context, context);
        } else if (result == CUDA_SUCCESS) {
            driver->context_release(device->handle);
        }
    }
    pthread_mutex_unlock(&lock);
    *ret_context = context;
    return r;
}

/* *ret_result is that of the push, if it comes to it. */
static const struct cuda_driver *push(struct device *device, int *ret_status,
                                      CUresult *ret_result) {
    const struct cuda_driver *driver = find_driver(ret_status);
    CUcontext context = atomic_load(&device->context);

    *ret_result = CUDA_ERROR_UNKNOWN;
    if (!driver) {
        return NULL;
    }
    if (!context && (*ret_status = retain(driver, device, &context)) != STATUS_OK) {
        return NULL;
    }
    *ret_result = driver->context_push(context);
    if (*ret_result == CUDA_SUCCESS) {
        return driver;
    }
    *ret_status = device_error(device, *ret_result, "the context cannot be used");
    return NULL;
}

static void pop(const struct cuda_driver *driver) {
    CUcontext left;

    driver->context_pop(&left);
}

/* Between enter and leave: how this thread treats graphs that are recorded otherwise. */
static _Thread_local CUstreamCaptureMode usual_mode;

static const struct cuda_driver *enter(struct device *device, int *ret_status,
                                       CUresult *ret_result) {
    const struct cuda_driver *driver = push(device, ret_status, ret_result);

    usual_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (driver && driver->capture_mode(&usual_mode) != CUDA_SUCCESS) {
        usual_mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* whatever it is, it stays */
    }
    return driver;
}

const struct cuda_driver *device_enter(struct device *device, int *ret_status) {
    CUresult result;

    return enter(device, ret_status, &result);
}

void device_leave(const struct cuda_driver *driver) {
    CUstreamCaptureMode mode = usual_mode;

    if (mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
        driver->capture_mode(&mode);
    }
    pop(driver);
}

/* -------------------------------------------------------------------------------------- waiting */

int device_wait(struct device *device, intptr_t stream) {
    int r = STATUS_OK;

    if (!device) {
        return STATUS_OK;
    }
    if (stream < 0) {
        return error(STATUS_INVALID,
                     "stream %lld: as in DLPack 1 is the legacy default stream, 2 the thread's, "
                     "larger ones are a CUstream; here 0 is all work on the device",
                     (long long)stream);
    }
    const struct cuda_driver *driver = device_enter(device, &r);
    if (!driver) {
        return r;
    }
    CUresult result =
        stream ? driver->stream_synchronize((CUstream)stream) : driver->context_synchronize();
    device_leave(driver);
    return result == CUDA_SUCCESS ? STATUS_OK
                                  : device_error(device, result, "work cannot be waited for");
}

/* cuCtxSynchronize() ends, with an error, every graph capture on the device, whichever thread
 * records it. cuMemFree() is allowed beside captures to a thread in relaxed mode, and waits as
 * well: "managing memory allocations using cudaMalloc and cudaFree causes the GPU to synchronize
 * across all executing CUDA streams" (CUDA programming guide, stream-ordered memory allocator). A
 * whole block, since the driver might take back a part of one without that. A full device has no
 * memory for it, so there it is the former. */
#define TOKEN_NBYTES ((size_t)2 << 20)

static CUresult settle(const struct cuda_driver *driver, struct device *device) {
    if (!device->token && driver->alloc(&device->token, TOKEN_NBYTES) != CUDA_SUCCESS) {
        device->token = 0;
        return driver->context_synchronize();
    }
    CUresult result = driver->free(device->token);
    if (result == CUDA_SUCCESS) {
        device->token = 0;
    }
    return result;
}

int device_settle(struct device *device) {
    CUresult result;
    int status;
    const struct cuda_driver *driver = enter(device, &status, &result);

    if (driver) {
        result = settle(driver, device);
        device_leave(driver);
    }
    return result == CUDA_SUCCESS || result == CUDA_ERROR_DEINITIALIZED ||
           result == CUDA_ERROR_INVALID_CONTEXT || is_lost(result);
}

/* --------------------------------------------------------------------------------------- public */

int tcx_synchronize(tcx_device_t name, intptr_t stream) {
    struct device *device = NULL;
    int r = device_find(name, &device);

    return r == STATUS_OK ? device_wait(device, stream) : r;
}

int tcx_device_push(tcx_device_t name) {
    struct device *device = NULL;
    int r = device_find(name, &device);

    CUresult result;
    if (r == STATUS_OK && device) {
        push(device, &r, &result);
    }
    return r;
}

void tcx_device_pop(tcx_device_t name) {
    const char *why;
    const struct cuda_driver *driver = name.type == TCX_CUDA ? cuda_driver(&why) : NULL;

    if (driver) {
        pop(driver);
    }
}
