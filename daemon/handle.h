/*
 * handle.h - what handlers of several nouns need
 */
#pragma once

#include "call.h"

enum { DEVICE_CPU = 1 }; /* as in DLPack */

/* Gives the client one grant on `storage`. STATUS_OK, or what call_fail() returned. */
int grant(struct call *call, struct storage *storage, struct wire_grant *ret_grant);

/* Makes a storage; the reference is the caller's. STATUS_OK, or what the handler returns. */
int new_storage(struct call *call, uint64_t nbytes, struct storage **ret_storage);
