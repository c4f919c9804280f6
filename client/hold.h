/*
 * hold.h - storages that exist already, held once more: by id, or because their bytes are here
 *
 * Memory may be in this process through another session with the same daemon: that of another
 * client, or the parent's from before fork(). It is recognised by its address and held anew by its
 * id, for the session that is to use it: no copy, same address.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "storage.h"
#include "tensorcx.h"

/* Fills `ret_storages` with references, NULL where it failed. Asks the daemon for those that the
 * session does not hold. As call_run(), or as storage_take(); STATUS_STALE: one is gone. */
int hold_ids(struct session *session, const uint64_t *ids, size_t count,
             struct storage **ret_storages);

/* One more reference to the storage, of any session with this one's daemon, that has all these
 * bytes; NULL: they are private. Never asks. */
struct storage *hold_find(struct session *session, const void *data, size_t nbytes);

/* The same storage, held by `session`; *ret_storage is NULL if it belongs to another daemon or to a
 * lost connection, and so is private memory here. May ask the daemon. As hold_ids(). */
int hold_again(struct session *session, struct storage *storage, struct storage **ret_storage);

/* The storage that has all `nbytes` of a contiguous array, held by `session`; *ret_storage is NULL
 * if they are private. As hold_again(); STATUS_INVALID: it is on another device than the array
 * says. */
int hold_array(struct session *session, const tcx_array_t *array, size_t nbytes,
               struct storage **ret_storage);

/* STATUS_INVALID: the storage, which has the array's bytes, is on another device than the array
 * says. Addresses of all devices differ, so who says so has mistaken it. */
int hold_check_device(const struct storage *storage, const tcx_array_t *array);
