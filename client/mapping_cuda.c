#include "mapping_cuda.h"

#include <string.h>

#include "device.h"
#include "error.h"
#include "step.h"

/* To unmap, or to let go of a handle: the driver's functions "may also return error codes from
 * previous, asynchronous launches" (cuMemUnmap() in the CUDA driver API), which say nothing about
 * what was asked. */
#define ATTEMPTS 3

static CUdeviceptr device_address(const char *address) {
    return (CUdeviceptr)(uintptr_t)address;
}

/* -------------------------------------------------------------------------------------- mapping */

/* Maps an imported handle at an address of its own, or undoes what it did. */
static CUresult map_handle(const struct cuda_driver *driver, const struct device_memory *memory,
                           CUmemGenericAllocationHandle handle, CUdeviceptr *ret_address) {
    const CUmemAccessDesc access = {
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, memory->device->ordinal},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    size_t nbytes = memory->nbytes;
    CUdeviceptr address;
    CUresult result = driver->address_reserve(&address, nbytes, 0, 0, 0);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    REACHED(CUDA_ADDRESS_RESERVED);
    result = driver->map(address, nbytes, 0, handle, 0);
    if (result == CUDA_SUCCESS) {
        REACHED(CUDA_MEMORY_PLACED);
        result = driver->set_access(address, nbytes, &access, 1);
        if (result != CUDA_SUCCESS) {
            driver->unmap(address, nbytes);
        }
    }
    if (result != CUDA_SUCCESS) {
        driver->address_free(address, nbytes);
        return result;
    }
    *ret_address = address;
    return CUDA_SUCCESS;
}

/* The handle is only needed to map: what is mapped keeps the memory. */
static CUresult map_vmm(const struct cuda_driver *driver, const struct device_memory *memory,
                        CUdeviceptr *ret_address) {
    CUmemGenericAllocationHandle handle;
    CUresult result = driver->import_handle(&handle, (void *)(intptr_t)memory->fd,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    REACHED(CUDA_HANDLE_IMPORTED);
    result = map_handle(driver, memory, handle, ret_address);
    REACHED(CUDA_MEMORY_ACCESSIBLE);
    for (int i = 0; i < ATTEMPTS && driver->release(handle) != CUDA_SUCCESS; i++) {
    }
    return result;
}

static CUresult map_ipc(const struct cuda_driver *driver, const struct device_memory *memory,
                        CUdeviceptr *ret_address) {
    CUipcMemHandle handle;

    memcpy(&handle, memory->handle, sizeof handle);
    CUresult result = driver->ipc_open(ret_address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    REACHED(CUDA_MEMORY_OPENED);
    return result;
}

int mapping_cuda_map(const struct device_memory *memory, char **ret_address) {
    CUdeviceptr address = 0;
    int r = STATUS_OK;
    const struct cuda_driver *driver = device_enter(memory->device, &r);

    if (!driver) {
        return r;
    }
    CUresult result = memory->kind == MAPPING_VMM ? map_vmm(driver, memory, &address)
                                                  : map_ipc(driver, memory, &address);
    device_leave(driver);
    if (result == CUDA_ERROR_INVALID_CONTEXT && memory->kind == MAPPING_IPC) {
        return device_error(
            memory->device, result,
            "the daemon's memory cannot be mapped: it seems to be this process's own "
            "(with --cuda=ipc both must share a pid namespace; --cuda=vmm needs none)");
    }
    if (result != CUDA_SUCCESS) {
        return device_error(memory->device, result, "the daemon's memory cannot be mapped");
    }
    *ret_address = (char *)(uintptr_t)address;
    return STATUS_OK;
}

/* ------------------------------------------------------------------------------------ unmapping */

static CUresult unmap(const struct cuda_driver *driver, const struct mapping *mapping) {
    CUdeviceptr address = device_address(mapping->address);
    CUresult result;

    if (mapping->kind == MAPPING_IPC) {
        result = driver->ipc_close(address);
        REACHED(CUDA_MEMORY_CLOSED);
        return result;
    }
    result = driver->unmap(address, mapping->nbytes);
    if (result == CUDA_SUCCESS) {
        REACHED(CUDA_MEMORY_UNMAPPED);
        driver->address_free(address, mapping->nbytes);
    }
    return result;
}

int mapping_cuda_unmap(const struct mapping *mapping) {
    CUresult result = CUDA_ERROR_UNKNOWN;
    int r;

    for (int i = 0; i < ATTEMPTS && result != CUDA_SUCCESS; i++) {
        const struct cuda_driver *driver = device_enter(mapping->device, &r);
        if (driver) {
            result = unmap(driver, mapping);
            device_leave(driver);
        }
    }
    return result == CUDA_SUCCESS;
}
