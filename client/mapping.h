/*
 * mapping.h - which segments this process has mapped: each once, at one address, for all sessions;
 * segments on CUDA devices, too
 *
 * Several sessions with one daemon can be in a process: several clients, or a forked child's own
 * one beside the one it inherited. What they all map has one address, because two addresses of the
 * same bytes would make consumers' checks for overlap wrong. A mapping is counted by the segments
 * of the sessions that use it.
 *
 * The lock in here comes after all others and is held while mapping, not while unmapping. What is
 * on a device has another one, which comes first and is held for both, as the driver takes its
 * time: only threads without any lock of ours call for it.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "messages.h"

struct device;

struct mapping {
    uint64_t boot_id; /* of the daemon, and its segment: together never used twice */
    uint64_t segment;
    char *address; /* owned; on a device not to be followed here */
    uint64_t nbytes;
    struct device *device;      /* NULL: the CPU */
    enum wire_mapping kind;     /* how it is mapped */
    size_t users;               /* guarded by the lock in here */
    _Atomic uint64_t populated; /* bytes from the start that have page table entries */
};

/* One more user of a segment that is mapped; NULL: it is not. */
struct mapping *mapping_find(uint64_t boot_id, uint64_t segment);

/* The same, after mapping `nbytes` of the file `fd` (borrowed) if need be. STATUS_OK, STATUS_SYSTEM
 * (out of address space), STATUS_OUT_OF_MEMORY. */
int mapping_open(uint64_t boot_id, uint64_t segment, int fd, uint64_t nbytes,
                 struct mapping **ret_mapping);

/* How the memory of a device comes. */
struct device_memory {
    struct device *device;
    uint64_t nbytes;
    enum wire_mapping kind;
    int fd;             /* borrowed: with MAPPING_VMM */
    const void *handle; /* WIRE_IPC_HANDLE bytes, with MAPPING_IPC */
};

/* The same for a segment on a device. No lock held. STATUS_DEVICE, STATUS_OUT_OF_MEMORY. */
int mapping_open_device(uint64_t boot_id, uint64_t segment, const struct device_memory *memory,
                        struct mapping **ret_mapping);

/* One user less; the last one unmaps. Of a device: no lock held, nothing runs there any more that
 * uses it; returns 0 if the driver does not let it go. */
int mapping_close(struct mapping *mapping);

#define MAPPING_POPULATE_MIN (1 << 20) /* smaller ranges are left to page faults */

/* Before the first copy into a large range: gets all its pages mapped in one go, instead of one
 * fault for each. No lock. */
void mapping_populate(struct mapping *mapping, uint64_t offset, uint64_t nbytes);

/* For fork.c. The child begins without page table entries. */
void mappings_lock(void);
void mappings_unlock(void);
void mappings_start_over(void);
