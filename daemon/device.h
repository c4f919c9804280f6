/*
 * device.h - CUDA devices, and their memory
 *
 * The driver is loaded by the first who asks for a device, on a thread, since that takes a second;
 * where it cannot be had everything else goes on. Devices are numbered 1, 2, ... in the order of
 * the driver, and known to clients by their UUIDs. Each has a store and segments of its own. The
 * loop calls nothing of the driver. Owned by the server; knows neither clients nor messages.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"
#include "segment.h"
#include "store.h"
#include "waiter.h"
#include "worker.h"

struct device {
    struct store store; /* of `segments`; its operations find us by it */
    struct segments segments;
    CUdevice ordinal; /* in this process */
    CUuuid uuid;
    char name[64];
    uint64_t nbytes; /* that it has */
    bool has_vmm, has_rdma;
    CUcontext context; /* for jobs of devices::worker only; NULL: not needed yet */
};

enum devices_state { DEVICES_UNKNOWN, DEVICES_LOADING, DEVICES_KNOWN, DEVICES_FAILED };

enum { DEVICES_TEXT_SIZE = 512 };

struct devices {
    struct segments segments; /* what is the same for all: those of each begin as a copy */
    struct worker *worker;    /* borrowed: runs one job at a time, all those that call the driver */
    const char *mode;         /* borrowed: of the option --cuda */
    uint64_t capacity;        /* bytes of each; 0: most of what it has */

    enum devices_state state;
    struct job job;
    struct waitlist waiters; /* requests that wait for the driver to be loaded */
    struct device *all;      /* owned */
    unsigned count;
    char why[DEVICES_TEXT_SIZE]; /* why there are none */
    uint64_t retry_ms;           /* when to try again */
};

/* `segments` (but store, worker, device and capacity), `worker`, `mode` and `capacity` are filled
 * in by the caller. */
void devices_init(struct devices *devices);

/* As segments_stop() and segments_fini(). */
void devices_stop(struct devices *devices);
void devices_fini(struct devices *devices);

/* STATUS_OK: they are known; STATUS_DEVICE: `why` tells why there are none; -EAGAIN: wait in
 * `waiters`, and ask again. */
int devices_load(struct devices *devices);

/* The device of this number, or NULL. */
struct device *devices_find(const struct devices *devices, unsigned number);

/* How many are known. */
unsigned devices_count(const struct devices *devices);

/* Segments destroyed on all of them. */
uint64_t devices_destroyed(const struct devices *devices);

/* Gives back what has been unused for too long, and ends calls that have waited for too long.
 * Returns when to call it again, UINT64_MAX: no need. */
uint64_t devices_do_due(struct devices *devices, uint64_t now_ms);

/* The stores, made for a device. */
extern const struct store store_cuda_vmm; /* allocations that are exported as descriptors */
extern const struct store store_cuda_ipc; /* allocations in a context of ours, told by handles */
