#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define TAG ((CUdeviceptr)1 << 56) /* makes an address that no host can use */

pthread_rwlock_t memory_lock = PTHREAD_RWLOCK_INITIALIZER;
struct range *memory_ranges;

CUdeviceptr device_address(const char *host) {
    return (CUdeviceptr)(uintptr_t)host + TAG;
}

char *host_address(CUdeviceptr address) {
    return (char *)(uintptr_t)(address - TAG);
}

struct range *range_add(const struct range *range) {
    struct range *added = malloc(sizeof *added);

    if (!added) {
        abort();
    }
    *added = *range;
    added->next = memory_ranges;
    memory_ranges = added;
    return added;
}

void range_remove(struct range *range) {
    struct range **link = &memory_ranges;

    while (*link != range) {
        link = &(*link)->next;
    }
    *link = range->next;
    free(range);
}

struct range *range_covering(CUdeviceptr address, size_t nbytes) {
    for (struct range *range = memory_ranges; range; range = range->next) {
        CUdeviceptr base = device_address(range->host);
        if (range->kind != RESERVED && address >= base && address - base <= range->nbytes &&
            nbytes <= range->nbytes - (address - base) && address - base < range->nbytes) {
            return range;
        }
    }
    return NULL;
}

char *range_host(CUdeviceptr address, size_t nbytes, int access) {
    const struct range *range = range_covering(address, nbytes);

    return range && (range->access & access) == access ? host_address(address) : NULL;
}

char *range_map_anywhere(int fd, size_t nbytes) {
    char *host = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (host == MAP_FAILED) {
        return NULL;
    }
    madvise(host, nbytes, MADV_DONTFORK);
    return host;
}

CUresult cuPointerGetAttribute(void *ret_value, CUpointer_attribute attribute,
                               CUdeviceptr address) {
    BEGIN(HEALTH);
    pthread_rwlock_rdlock(&memory_lock);
    const struct range *range = range_covering(address, 1);
    CUdevice device = range ? range->device : -1;
    pthread_rwlock_unlock(&memory_lock);

    if (device < 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)ret_value = device;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned int *)ret_value = CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemGetInfo_v2(size_t *ret_free, size_t *ret_total) {
    BEGIN(CONTEXT);
    const struct device *device = device_find(device_current());

    *ret_total = device->nbytes;
    *ret_free = device->nbytes - ledger_used(&device->uuid);
    return CUDA_SUCCESS;
}
