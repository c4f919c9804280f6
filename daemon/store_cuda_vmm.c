/*
 * store_cuda_vmm.c - CUDA memory as descriptors
 *
 * A segment is an allocation of cuMemCreate() that is exported once. From then on the descriptor is
 * all we have of it: no context, no mapping. The memory lives until the descriptor and all mappings
 * are gone, also when we are.
 */
#include <fcntl.h>
#include <unistd.h>

#include "descriptor.h"
#include "step.h"
#include "store_cuda.h"

static CUmemAllocationProp properties_of(const struct device *device) {
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal},
        .allocFlags = {.gpuDirectRDMACapable = device->has_rdma},
    };
}

CUresult store_cuda_granularity(const struct device *device, uint64_t *ret_nbytes) {
    CUmemAllocationProp properties = properties_of(device);
    size_t nbytes = 0;
    CUresult result =
        store_cuda_driver()->granularity(&nbytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);

    *ret_nbytes = nbytes;
    return result;
}

static int commit(struct backing *backing, uint64_t offset, uint64_t nbytes) {
    const struct cuda_driver *driver = store_cuda_driver();
    CUmemAllocationProp properties = properties_of(store_cuda_device(backing));
    CUmemGenericAllocationHandle allocation;
    CUresult result = driver->create(&allocation, nbytes, &properties, 0);
    int fd = -1;

    (void)offset;
    if (result != CUDA_SUCCESS) {
        return store_cuda_failed(backing, "cuMemCreate", result);
    }
    REACHED(CUDA_MEMORY_CREATED);
    result = driver->export_handle(&fd, allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    REACHED(CUDA_MEMORY_EXPORTED);
    CUresult released = driver->release(allocation);
    if (result != CUDA_SUCCESS) {
        return store_cuda_failed(backing, "cuMemExportToShareableHandle", result);
    }
    if (released != CUDA_SUCCESS) {
        close(fd);
        return store_cuda_failed(backing, "cuMemRelease", released);
    }
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    fd = descriptor_for_memory(fd);
    if (fd < 0) {
        return fd;
    }
    backing->fd = fd;
    REACHED(CUDA_HANDLE_RELEASED);
    return 0;
}

/* Closing the last one gives the memory back, which may take its time. */
static int trim(struct backing *backing, uint64_t offset, uint64_t nbytes) {
    (void)offset;
    (void)nbytes;
    if (backing->fd >= 0) {
        close(backing->fd);
        backing->fd = -1;
        REACHED(CUDA_DESCRIPTOR_CLOSED);
    }
    return 0;
}

const struct store store_cuda_vmm = {.name = "vmm",
                                     .mapping = MAPPING_VMM,
                                     .unit = STORE_CUDA_UNIT,
                                     .step = UINT64_MAX,
                                     .trim_step = UINT64_MAX,
                                     .create = store_cuda_create,
                                     .commit = commit,
                                     .trim = trim};
