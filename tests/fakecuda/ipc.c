/* Memory of one process and its context, which others open by a handle of 64 bytes. */
#include "fake.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAGIC 0x66616b65
#define PIECE 512 /* small allocations share a block in multiples of it */

struct ipc_handle {
    uint32_t magic;
    struct identity identity;
};

_Static_assert(sizeof(struct ipc_handle) <= sizeof(CUipcMemHandle), "fits");

struct piece { /* of an ALLOCATED range */
    CUdeviceptr address;
    size_t nbytes;
    struct piece *next;
};

static struct piece *pieces; /* under memory_lock, as all below */

static struct range *allocate(CUdevice device, size_t nbytes) {
    struct range range = {.kind = ALLOCATED, .nbytes = nbytes, .device = device, .access = 3};
    int fd = ledger_create(device_find(device), nbytes, &range.identity);

    if (fd < 0) {
        return NULL;
    }
    range.host = range_map_anywhere(fd, nbytes);
    close(fd); /* the mapping holds the memory */
    return range.host ? range_add(&range) : NULL;
}

/* A block with room, or a new one. */
static struct range *room_for(CUdevice device, size_t nbytes) {
    for (struct range *range = memory_ranges; range && nbytes < BLOCK; range = range->next) {
        if (range->kind == ALLOCATED && range->device == device && range->nbytes == BLOCK &&
            nbytes <= BLOCK - range->used) {
            return range;
        }
    }
    return allocate(device, (nbytes + BLOCK - 1) / BLOCK * BLOCK);
}

CUresult cuMemAlloc_v2(CUdeviceptr *ret_address, size_t nbytes) {
    BEGIN(CONTEXT);
    struct piece *piece = malloc(sizeof *piece);

    if (!piece || nbytes == 0) {
        free(piece);
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_rwlock_wrlock(&memory_lock);
    struct range *range = room_for(device_current(), nbytes);
    if (range) {
        *piece = (struct piece){device_address(range->host) + range->used, nbytes, pieces};
        pieces = piece;
        range->used += (nbytes + PIECE - 1) / PIECE * PIECE;
        range->count++;
        *ret_address = piece->address;
    } else {
        free(piece);
    }
    pthread_rwlock_unlock(&memory_lock);
    return range ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Takes the piece that begins there out of the list; NULL: none. */
static struct piece *take_piece(CUdeviceptr address) {
    for (struct piece **link = &pieces; *link; link = &(*link)->next) {
        struct piece *piece = *link;
        if (piece->address == address) {
            *link = piece->next;
            return piece;
        }
    }
    return NULL;
}

/* False: none begins there. */
static int free_piece(CUdeviceptr address) {
    struct piece *piece = take_piece(address);

    if (!piece) {
        return 0;
    }
    struct range *range = range_covering(address, 1);
    if (--range->count == 0) {
        munmap(range->host, range->nbytes);
        ledger_free(&range->identity);
        range_remove(range);
    }
    free(piece);
    return 1;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
    BEGIN(CONTEXT);
    streams_wait(device_current()); /* as the driver does */
    pthread_rwlock_wrlock(&memory_lock);
    int was_there = free_piece(address);
    pthread_rwlock_unlock(&memory_lock);
    return was_there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void ipc_end(CUdevice device) {
    pthread_rwlock_wrlock(&memory_lock);
    struct piece *next;
    for (struct piece *piece = pieces; piece; piece = next) {
        next = piece->next;
        if (range_covering(piece->address, 1)->device == device) {
            free_piece(piece->address);
        }
    }
    pthread_rwlock_unlock(&memory_lock);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *ret_base, size_t *ret_nbytes, CUdeviceptr address) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;

    BEGIN(CONTEXT);
    pthread_rwlock_rdlock(&memory_lock);
    const struct range *range = range_covering(address, 1);
    if (range) { /* of a mapping, or of the block that pieces share */
        *ret_base = device_address(range->host);
        *ret_nbytes = range->nbytes;
        result = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&memory_lock);
    return result;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *ret_handle, CUdeviceptr address) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;

    BEGIN(CONTEXT);
    pthread_rwlock_rdlock(&memory_lock);
    const struct range *range = range_covering(address, 1);
    if (range && range->kind == ALLOCATED) {
        struct ipc_handle handle = {.magic = MAGIC, .identity = range->identity};
        *ret_handle = (CUipcMemHandle){0};
        memcpy(ret_handle, &handle, sizeof handle);
        result = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&memory_lock);
    return result;
}

static struct range *find_opened(const struct identity *identity) {
    for (struct range *range = memory_ranges; range; range = range->next) {
        if (range->kind == IMPORTED && memcmp(&range->identity, identity, sizeof *identity) == 0) {
            return range;
        }
    }
    return NULL;
}

static struct range *open_range(const struct identity *identity, CUdevice device) {
    struct range range = {.kind = IMPORTED, .device = device, .access = 3, .identity = *identity};
    CUuuid uuid;

    int fd = ledger_open(identity);
    if (fd < 0) {
        return NULL;
    }
    ledger_identify(fd, &uuid, &range.nbytes);
    range.host = range_map_anywhere(fd, range.nbytes);
    close(fd);
    return range.host ? range_add(&range) : NULL;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *ret_address, CUipcMemHandle handle,
                               unsigned int flags) {
    struct ipc_handle ours;

    BEGIN(CONTEXT);
    memcpy(&ours, &handle, sizeof ours);
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || ours.magic != MAGIC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (ours.identity.pid == getpid()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (kill(ours.identity.pid, 0) < 0 && errno == ESRCH) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUdevice device = device_of_uuid(&ours.identity.uuid);
    if (device < 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    pthread_rwlock_wrlock(&memory_lock);
    struct range *range = find_opened(&ours.identity);
    range = range ? range : open_range(&ours.identity, device);
    if (range) {
        range->count++;
        *ret_address = device_address(range->host);
    }
    pthread_rwlock_unlock(&memory_lock);
    return range ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    BEGIN(CONTEXT);
    pthread_rwlock_wrlock(&memory_lock);
    struct range *range = range_covering(address, 1);
    int found = range && range->kind == IMPORTED && device_address(range->host) == address;
    if (found && --range->count == 0) {
        munmap(range->host, range->nbytes);
        range_remove(range);
    }
    pthread_rwlock_unlock(&memory_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
