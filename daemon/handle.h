/*
 * handle.h - what handlers of several nouns need
 */
#pragma once

#include "call.h"

enum { DEVICE_CPU = 1, DEVICE_CUDA = 2 }; /* as in DLPack */

/* What kind a device of this number is. */
static inline unsigned device_type_of(unsigned device) {
    return device ? DEVICE_CUDA : DEVICE_CPU;
}

/* The memory of a device (0: the CPU). STATUS_OK, or what the handler returns: it may wait until
 * the driver is loaded. */
int find_memory(struct call *call, unsigned device, struct segments **ret_segments);

/* Gives the client one grant on `storage`. STATUS_OK, or what call_fail() returned. */
int grant(struct call *call, struct storage *storage, struct wire_grant *ret_grant);

/* The same for several, all or nothing: the grants are the tail of the reply. */
int grant_all(struct call *call, struct storage *const *storages, uint32_t count);

/* The ids in the tail: how many; -1: it is no list of them. */
int count_ids(const struct call *call);
uint64_t id_at(const struct call *call, int i);

/* STATUS_OK, unless the name is a channel's: then it answers so, with `status`. */
int channel_is_named(struct call *call, int status, const char *name, size_t nbytes);

/* Makes a storage on a device; the reference is the caller's. STATUS_OK, or what the handler
 * returns. */
int new_storage(struct call *call, unsigned device, uint64_t nbytes, struct storage **ret_storage);
