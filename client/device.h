/*
 * device.h - CUDA devices as this process sees them, and waiting for the work on them
 *
 * A device is known by its UUID: this process numbers those that it sees (CUDA_VISIBLE_DEVICES)
 * from 0, a daemon numbers its own from 1 (device_list.h). Objects live as long as the process;
 * NULL stands for the CPU everywhere. The driver is loaded by the first call that is about a
 * device.
 *
 * The context is the primary one of the device, as everybody's: it is retained once, at the first
 * use, and pushed around each, so whatever the caller's thread has current stays so. No lock of
 * ours is held while the driver works, but those in here and in mapping.c that are about CUDA
 * alone.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "driver.h"
#include "tensorcx.h"

struct device {
    int ordinal; /* in this process */
    CUdevice handle;
    CUuuid uuid;
    _Atomic(CUcontext) context; /* retained; NULL: not yet */
    CUdeviceptr token;          /* device_settle()'s: memory that is yet to be freed; 0: none */
};

/* The device that users name; *ret_device is NULL for the CPU. STATUS_DEVICE (no driver, not so
 * many devices), STATUS_INVALID (no such kind). */
int device_look_up(tcx_device_t name, struct device **ret_device);

static inline int device_find(tcx_device_t name, struct device **ret_device) {
    if ((uint32_t)name.type <= TCX_CPU && name.id == 0) { /* no call for the CPU */
        *ret_device = NULL;
        return 0;
    }
    return device_look_up(name, ret_device);
}

/* The same by UUID, of memory that is there. STATUS_DEVICE: this process does not see it. */
int device_find_uuid(const unsigned char uuid[16], struct device **ret_device);

/* What users call it. */
tcx_device_t device_name(const struct device *device);

#define DEVICE_TEXT_SIZE 16
const char *device_text(tcx_device_t device, char text[DEVICE_TEXT_SIZE]);

/* Its context is this thread's current one until device_leave(), and graphs that other threads
 * record are left in peace (relaxed capture mode). Not twice at a time. Returns the driver, or
 * NULL: error set, *ret_status is STATUS_DEVICE or STATUS_OUT_OF_MEMORY. */
const struct cuda_driver *device_enter(struct device *device, int *ret_status);
void device_leave(const struct cuda_driver *driver);

/* Sets this thread's error for a call of the driver that failed: "cuda:0: <what>: <the driver's
 * words>". Returns STATUS_OUT_OF_MEMORY or STATUS_DEVICE. */
int device_error(const struct device *device, CUresult result, const char *what);

/* Waits on the host for the work in a stream, numbered as in tcx_array_t; 0: for all of this
 * process. NULL: nothing to wait for. STATUS_DEVICE, STATUS_INVALID. */
int device_wait(struct device *device, intptr_t stream);

/* Waits for all work of this process, on the one thread that reclaims;
 * also in a lost context or an ending process, where there is none any more. 0: the driver does not
 * let us, try again later. */
int device_settle(struct device *device);
