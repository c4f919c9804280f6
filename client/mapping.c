#include "mapping.h"

#include <errno.h>
#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"
#include "error.h"
#include "mapping_cuda.h"
#include "step.h"

#ifndef MADV_POPULATE_READ
#    define MADV_POPULATE_READ 22
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *mappings; /* tree of struct mapping; guarded by `lock` */

/* Around mapping and unmapping on devices, so that a segment is never mapped twice. */
static pthread_mutex_t device_lock = PTHREAD_MUTEX_INITIALIZER;

void mappings_lock(void) {
    pthread_mutex_lock(&lock);
}

void mappings_unlock(void) {
    pthread_mutex_unlock(&lock);
}

static int compare(const void *a, const void *b) {
    const struct mapping *left = a;
    const struct mapping *right = b;

    if (left->boot_id != right->boot_id) {
        return left->boot_id > right->boot_id ? 1 : -1;
    }
    return (left->segment > right->segment) - (left->segment < right->segment);
}

/* Lock held. */
static struct mapping *find(uint64_t boot_id, uint64_t segment) {
    struct mapping key = {.boot_id = boot_id, .segment = segment};
    struct mapping **node = tfind(&key, &mappings, compare);

    if (!node) {
        return NULL;
    }
    (*node)->users++;
    return *node;
}

struct mapping *mapping_find(uint64_t boot_id, uint64_t segment) {
    mappings_lock();
    struct mapping *mapping = find(boot_id, segment);
    mappings_unlock();
    return mapping;
}

/* Enters a mapping of one user; on failure it is the caller's to undo. Lock held. */
static int enter(uint64_t boot_id, uint64_t segment, const struct mapping *what,
                 struct mapping **ret_mapping) {
    struct mapping *mapping = malloc(sizeof *mapping);

    if (!mapping) {
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    *mapping = *what;
    mapping->boot_id = boot_id;
    mapping->segment = segment;
    mapping->users = 1;
    if (!tsearch(mapping, &mappings, compare)) {
        free(mapping);
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    *ret_mapping = mapping;
    return STATUS_OK;
}

/* Lock held. */
static int create(uint64_t boot_id, uint64_t segment, int fd, uint64_t nbytes,
                  struct mapping **ret_mapping) {
    struct mapping what = {.nbytes = nbytes, .kind = MAPPING_MMAP};

    what.address = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (what.address == MAP_FAILED) {
        return error_system(errno, "%llu bytes of the daemon's memory cannot be mapped",
                            (unsigned long long)nbytes);
    }
    REACHED(MEMORY_MAPPED);
    madvise(what.address, nbytes, MADV_DONTDUMP);
    int r = enter(boot_id, segment, &what, ret_mapping);
    if (r != STATUS_OK) {
        munmap(what.address, nbytes);
    }
    return r;
}

int mapping_open(uint64_t boot_id, uint64_t segment, int fd, uint64_t nbytes,
                 struct mapping **ret_mapping) {
    int r = STATUS_OK;

    mappings_lock();
    struct mapping *mapping = find(boot_id, segment);
    if (mapping) {
        *ret_mapping = mapping;
    } else {
        r = create(boot_id, segment, fd, nbytes, ret_mapping);
    }
    mappings_unlock();
    return r;
}

/* Lock of devices held. */
static int create_on_device(uint64_t boot_id, uint64_t segment, const struct device_memory *memory,
                            struct mapping **ret_mapping) {
    struct mapping what = {
        .nbytes = memory->nbytes, .device = memory->device, .kind = memory->kind};
    int r = mapping_cuda_map(memory, &what.address);

    if (r == STATUS_OK) {
        mappings_lock();
        r = enter(boot_id, segment, &what, ret_mapping);
        mappings_unlock();
        if (r != STATUS_OK) {
            mapping_cuda_unmap(&what);
        }
    }
    return r;
}

int mapping_open_device(uint64_t boot_id, uint64_t segment, const struct device_memory *memory,
                        struct mapping **ret_mapping) {
    int r = STATUS_OK;

    pthread_mutex_lock(&device_lock);
    struct mapping *mapping = mapping_find(boot_id, segment);
    if (mapping) {
        *ret_mapping = mapping;
    } else {
        r = create_on_device(boot_id, segment, memory, ret_mapping);
    }
    pthread_mutex_unlock(&device_lock);
    return r;
}

/* Whether that was the last user, and nobody finds it any more. */
static int leave(struct mapping *mapping) {
    mappings_lock();
    int is_last = --mapping->users == 0;
    if (is_last) {
        tdelete(mapping, &mappings, compare);
    }
    mappings_unlock();
    return is_last;
}

static int close_on_device(struct mapping *mapping) {
    int is_unmapped = 1;

    pthread_mutex_lock(&device_lock);
    if (leave(mapping)) {
        is_unmapped = mapping_cuda_unmap(mapping);
        free(mapping);
    }
    pthread_mutex_unlock(&device_lock);
    return is_unmapped;
}

int mapping_close(struct mapping *mapping) {
    if (mapping->device && cuda_driver_is_loaded()) {
        return close_on_device(mapping);
    }
    if (leave(mapping)) {
        if (!mapping->device) { /* else it is the parent's: in a child of fork() there is no CUDA */
            munmap(mapping->address, mapping->nbytes);
            REACHED(MEMORY_UNMAPPED);
        }
        free(mapping);
    }
    return 1;
}

void mapping_populate(struct mapping *mapping, uint64_t offset, uint64_t nbytes) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t done = atomic_load(&mapping->populated);
    uint64_t end = offset + nbytes;

    if (nbytes < MAPPING_POPULATE_MIN || end <= done || mapping->device) {
        return;
    }
    offset &= ~(page - 1);
    /* Advice: if it fails, the copy faults page by page. */
    if (madvise(mapping->address + offset, end - offset, MADV_POPULATE_READ) == 0 &&
        offset <= done) {
        while (done < end && !atomic_compare_exchange_weak(&mapping->populated, &done, end)) {
        }
    }
}

static void forget_populated(const void *node, VISIT visit, int depth) {
    (void)depth;
    if (visit == postorder || visit == leaf) {
        atomic_store(&(*(struct mapping *const *)node)->populated, 0);
    }
}

void mappings_start_over(void) {
    twalk(mappings, forget_populated);
}
