#include "mapping.h"

#include <errno.h>
#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "error.h"

#ifndef MADV_POPULATE_READ
#    define MADV_POPULATE_READ 22
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *mappings; /* tree of struct mapping; guarded by `lock` */

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

/* Lock held. */
static int create(uint64_t boot_id, uint64_t segment, int fd, uint64_t nbytes,
                  struct mapping **ret_mapping) {
    struct mapping *mapping = calloc(1, sizeof *mapping);

    if (!mapping) {
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    void *address = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) {
        int number = errno;
        free(mapping);
        return error_system(number, "%llu bytes of the daemon's memory cannot be mapped",
                            (unsigned long long)nbytes);
    }
    madvise(address, nbytes, MADV_DONTDUMP);
    mapping->boot_id = boot_id;
    mapping->segment = segment;
    mapping->address = address;
    mapping->nbytes = nbytes;
    mapping->users = 1;
    if (!tsearch(mapping, &mappings, compare)) {
        munmap(address, nbytes);
        free(mapping);
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    *ret_mapping = mapping;
    return STATUS_OK;
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

void mapping_close(struct mapping *mapping) {
    mappings_lock();
    int is_last = --mapping->users == 0;
    if (is_last) {
        tdelete(mapping, &mappings, compare);
    }
    mappings_unlock();
    if (is_last) {
        munmap(mapping->address, mapping->nbytes);
        free(mapping);
    }
}

void mapping_populate(struct mapping *mapping, uint64_t offset, uint64_t nbytes) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t done = atomic_load(&mapping->populated);
    uint64_t end = offset + nbytes;

    if (nbytes < MAPPING_POPULATE_MIN || end <= done) {
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
