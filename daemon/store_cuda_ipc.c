/*
 * store_cuda_ipc.c - CUDA memory by handles of cuIpcGetMemHandle()
 *
 * A segment is an allocation of cuMemAlloc() in the primary context of its device, which we keep
 * from the first one on. To free it while a client has it open is undefined, so it must not be
 * emptied before.
 */
#include <string.h>

#include "step.h"
#include "store_cuda.h"

/* Makes the device's context current; it is made when it is first needed. NULL, or the function
 * that failed. */
static const char *enter(const struct cuda_driver *driver, struct device *device,
                         CUresult *ret_result) {
    *ret_result =
        device->context ? CUDA_SUCCESS : driver->context_retain(&device->context, device->ordinal);
    REACHED(CUDA_CONTEXT_KEPT);
    if (*ret_result != CUDA_SUCCESS) {
        device->context = NULL;
        return "cuDevicePrimaryCtxRetain";
    }
    *ret_result = driver->context_push(device->context);
    return *ret_result == CUDA_SUCCESS ? NULL : "cuCtxPushCurrent_v2";
}

static void leave(const struct cuda_driver *driver) {
    CUcontext context;

    (void)driver->context_pop(&context); /* nothing else is done on this thread's context */
}

static const char *allocate(const struct cuda_driver *driver, struct backing *backing,
                            uint64_t nbytes, CUresult *ret_result) {
    CUdeviceptr address = backing->address; /* there already if only the handle was refused */
    CUipcMemHandle handle;

    *ret_result = address ? CUDA_SUCCESS : driver->alloc(&address, nbytes);
    if (*ret_result != CUDA_SUCCESS) {
        return "cuMemAlloc_v2";
    }
    backing->address = address;
    REACHED(CUDA_MEMORY_ALLOCATED);
    *ret_result = driver->ipc_get(&handle, address);
    if (*ret_result != CUDA_SUCCESS) {
        return "cuIpcGetMemHandle";
    }
    memcpy(backing->handle, &handle, sizeof handle);
    REACHED(CUDA_HANDLE_GOT);
    return NULL;
}

static int commit(struct backing *backing, uint64_t offset, uint64_t nbytes) {
    const struct cuda_driver *driver = store_cuda_driver();
    CUresult result;
    const char *failed = enter(driver, store_cuda_device(backing), &result);

    (void)offset;
    if (!failed) {
        failed = allocate(driver, backing, nbytes, &result);
        leave(driver);
    }
    return failed ? store_cuda_failed(backing, failed, result) : 0;
}

static int trim(struct backing *backing, uint64_t offset, uint64_t nbytes) {
    const struct cuda_driver *driver = store_cuda_driver();
    CUresult result;

    (void)offset;
    (void)nbytes;
    if (!backing->address) {
        return 0;
    }
    const char *failed = enter(driver, store_cuda_device(backing), &result);
    if (!failed) {
        result = driver->free(backing->address);
        REACHED(CUDA_MEMORY_FREED);
        failed = result == CUDA_SUCCESS ? NULL : "cuMemFree_v2";
        leave(driver);
    }
    backing->address = 0;
    return failed ? store_cuda_failed(backing, failed, result) : 0;
}

const struct store store_cuda_ipc = {.name = "ipc",
                                     .mapping = MAPPING_IPC,
                                     .unit = STORE_CUDA_UNIT,
                                     .step = UINT64_MAX,
                                     .trim_step = UINT64_MAX,
                                     .create = store_cuda_create,
                                     .commit = commit,
                                     .trim = trim};

_Static_assert(sizeof(CUipcMemHandle) == WIRE_IPC_HANDLE, "as it goes over the wire");
