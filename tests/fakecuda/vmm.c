/* Memory that is made, exported as a descriptor, and mapped at addresses that were reserved. */
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct handle { /* of this process */
    int fd;
    size_t nbytes;
    CUdevice device;
    int is_exportable;
    struct handle *next;
};

static struct handle *handles; /* under memory_lock */

static struct handle *handle_find(CUmemGenericAllocationHandle handle) {
    for (struct handle *found = handles; found; found = found->next) {
        if ((CUmemGenericAllocationHandle)(uintptr_t)found == handle) {
            return found;
        }
    }
    return NULL;
}

static CUmemGenericAllocationHandle handle_add(int fd, size_t nbytes, CUdevice device,
                                               int exportable) {
    struct handle *handle = malloc(sizeof *handle);

    if (!handle) {
        abort();
    }
    pthread_rwlock_wrlock(&memory_lock);
    *handle = (struct handle){fd, nbytes, device, exportable, handles};
    handles = handle;
    pthread_rwlock_unlock(&memory_lock);
    return (CUmemGenericAllocationHandle)(uintptr_t)handle;
}

static int is_valid(const CUmemAllocationProp *properties) {
    return properties && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
           properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

CUresult cuMemGetAllocationGranularity(size_t *ret_nbytes, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags which) {
    BEGIN(HEALTH);
    if (!is_valid(properties) || (int)which > 1) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!device_find(properties->location.id)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *ret_nbytes = BLOCK;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *ret_handle, size_t nbytes,
                     const CUmemAllocationProp *properties, unsigned long long flags) {
    struct identity identity;

    BEGIN(HEALTH);
    if (!is_valid(properties) || flags != 0 || nbytes == 0 || nbytes % BLOCK) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct device *device = device_find(properties->location.id);
    if (!device) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    int exportable = properties->requestedHandleTypes != 0;
    if (!device->has_vmm || (exportable && !device->has_descriptors)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    int fd = ledger_create(device, nbytes, &identity);
    if (fd < 0) {
        return errno == ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : (CUresult)CUDA_ERROR_OPERATING_SYSTEM;
    }
    *ret_handle = handle_add(fd, nbytes, properties->location.id, exportable);
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    BEGIN(HEALTH);
    pthread_rwlock_wrlock(&memory_lock);
    struct handle *found = handle_find(handle);
    if (found) {
        struct handle **link = &handles;
        while (*link != found) {
            link = &(*link)->next;
        }
        *link = found->next;
        close(found->fd);
        free(found);
    }
    pthread_rwlock_unlock(&memory_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemExportToShareableHandle(void *ret_shared, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;

    BEGIN(HEALTH);
    pthread_rwlock_rdlock(&memory_lock);
    const struct handle *found = handle_find(handle);
    if (found && found->is_exportable && flags == 0 &&
        type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        int fd = fcntl(found->fd, F_DUPFD_CLOEXEC, 0);
        if (fd >= 0) {
            *(int *)ret_shared = fd;
        }
        result = fd >= 0 ? CUDA_SUCCESS : (CUresult)CUDA_ERROR_OPERATING_SYSTEM;
    }
    pthread_rwlock_unlock(&memory_lock);
    return result;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *ret_handle, void *shared,
                                        CUmemAllocationHandleType type) {
    int fd = (int)(intptr_t)shared; /* by value */
    CUuuid uuid;
    size_t nbytes;

    BEGIN(HEALTH);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !ledger_identify(fd, &uuid, &nbytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUdevice device = device_of_uuid(&uuid);
    if (device < 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) {
        return (CUresult)CUDA_ERROR_OPERATING_SYSTEM;
    }
    *ret_handle = handle_add(own, nbytes, device, 1);
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------------- addresses */

static void forget_pages(char *host, size_t nbytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;

    if (mmap(host, nbytes, PROT_NONE, flags, -1, 0) == MAP_FAILED) {
        abort();
    }
}

CUresult cuMemAddressReserve(CUdeviceptr *ret_address, size_t nbytes, size_t alignment,
                             CUdeviceptr wanted, unsigned long long flags) {
    (void)wanted; /* a hint */
    BEGIN(HEALTH);
    if (nbytes == 0 || nbytes % BLOCK || flags != 0 || (alignment & (alignment - 1)) ||
        alignment > BLOCK) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    char *host =
        mmap(NULL, nbytes + BLOCK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (host == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    size_t before = (BLOCK - (uintptr_t)host % BLOCK) % BLOCK;
    if (before > 0) {
        munmap(host, before);
    }
    if (before < BLOCK) {
        munmap(host + before + nbytes, BLOCK - before);
    }
    pthread_rwlock_wrlock(&memory_lock);
    range_add(&(struct range){.kind = RESERVED, .host = host + before, .nbytes = nbytes});
    pthread_rwlock_unlock(&memory_lock);
    *ret_address = device_address(host + before);
    return CUDA_SUCCESS;
}

/* The range of a kind that is exactly this, or contains it; with the lock. */
static struct range *find(int kind, CUdeviceptr address, size_t nbytes, int exactly) {
    const char *host = host_address(address);

    for (struct range *range = memory_ranges; range; range = range->next) {
        if ((int)range->kind == kind && host >= range->host &&
            host + nbytes <= range->host + range->nbytes && (!exactly || nbytes == range->nbytes)) {
            return range;
        }
    }
    return NULL;
}

/* Whether a mapping lies there; with the lock. */
static int is_occupied(CUdeviceptr address, size_t nbytes) {
    const char *host = host_address(address);

    for (const struct range *range = memory_ranges; range; range = range->next) {
        if (range->kind == MAPPED && host < range->host + range->nbytes &&
            range->host < host + nbytes) {
            return 1;
        }
    }
    return 0;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t nbytes) {
    BEGIN(HEALTH);
    pthread_rwlock_wrlock(&memory_lock);
    struct range *range = find(RESERVED, address, nbytes, 1);
    if (range && is_occupied(address, nbytes)) {
        range = NULL;
    }
    if (range) {
        munmap(range->host, range->nbytes);
        range_remove(range);
    }
    pthread_rwlock_unlock(&memory_lock);
    return range ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemMap(CUdeviceptr address, size_t nbytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;

    BEGIN(HEALTH);
    pthread_rwlock_wrlock(&memory_lock);
    const struct handle *found = handle_find(handle);
    if (found && offset == 0 && flags == 0 && nbytes > 0 && nbytes <= found->nbytes &&
        nbytes % BLOCK == 0 && address % BLOCK == 0 && find(RESERVED, address, nbytes, 0) &&
        !is_occupied(address, nbytes)) {
        char *host =
            mmap(host_address(address), nbytes, PROT_NONE, MAP_SHARED | MAP_FIXED, found->fd, 0);
        if (host == MAP_FAILED) {
            abort();
        }
        madvise(host, nbytes, MADV_DONTFORK);
        range_add(&(struct range){
            .kind = MAPPED, .host = host, .nbytes = nbytes, .device = found->device});
        result = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&memory_lock);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t nbytes) {
    BEGIN(HEALTH);
    pthread_rwlock_wrlock(&memory_lock);
    struct range *range = find(MAPPED, address, nbytes, 1);
    if (range) {
        forget_pages(range->host, range->nbytes);
        range_remove(range);
    }
    pthread_rwlock_unlock(&memory_lock);
    return range ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t nbytes, const CUmemAccessDesc *access,
                        size_t count) {
    BEGIN(HEALTH);
    if (!access || count != 1 || access->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        (access->flags & ~3) || access->flags == 2) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!device_find(access->location.id)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    pthread_rwlock_wrlock(&memory_lock);
    struct range *range = find(MAPPED, address, nbytes, 1);
    if (range) {
        range->access = (int)access->flags;
        mprotect(range->host, range->nbytes, (int)access->flags); /* PROT_READ, PROT_WRITE: 1, 2 */
    }
    pthread_rwlock_unlock(&memory_lock);
    return range ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
