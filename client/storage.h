/*
 * storage.h - byte ranges of segments that this process holds at the daemon
 *
 * One object per storage id and session, counted: by tensors, and by whoever looks it up. At zero
 * it is put on the session's list of released ones; session_unlock() takes them off, tells the
 * daemon and frees them. A lookup may revive one that is on the list.
 *
 * Grants: each reply that grants adds one to what the daemon counts for us; a RELEASE returns as
 * many as we have received. So a release that crosses a grant on the wire takes nothing away.
 *
 * Pins: what a received message refers to lives as long as its buffer is in use. Where we know from
 * earlier how to find it nothing need be granted: the storage just keeps the buffer. hold.h asks
 * for a grant when the daemon is to know that it is ours.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "messages.h"
#include "tensorcx.h"

struct channel_buffer;
struct device;
struct session;

struct storage {
    uint64_t id;
    uint64_t nbytes;
    char *address;              /* in `segment`; NULL when there are no bytes */
    struct session *session;    /* counted */
    struct segment *segment;    /* borrowed: mapped as long as we are in it; NULL without bytes */
    struct device *device;      /* that the bytes are on; NULL: the CPU, or there are none */
    uint16_t device_index;      /* the daemon's number of it; 0 */
    uint64_t grants;            /* received and not returned; guarded by the session's lock */
    struct channel_buffer *pin; /* counted: keeps it alive even without grants; NULL: none */
    int is_hidden;              /* from a look by address: a channel's buffers; likewise */
    uint64_t seat, ref;     /* the last that sent it, and its standing reference, or 0; likewise */
    _Atomic uint64_t state; /* count * 2 + whether it is on session::released */
    struct storage *next;   /* session::released */
};

/* Turns a grant into a storage with one more reference. Takes the grant, also on failure. May have
 * to map its segment, so may ask the daemon. As segment_map(). No lock held. */
int storage_take(struct session *session, const struct wire_grant *grant,
                 struct storage **ret_storage);

/* The same, but on failure the grant is still the caller's. */
int storage_enter(struct session *session, const struct wire_grant *grant,
                  struct storage **ret_storage);

/* One more reference to the storage with this id, which a message in `buffer` refers to; if it is
 * not here but was, it comes back and is pinned by the buffer (NULL: not to be pinned). NULL: ask
 * for a grant. Never asks. No lock held. */
struct storage *storage_pin(struct session *session, uint64_t id, struct channel_buffer *buffer);

/* Fresh storage of `nbytes` bytes on `device` with one reference. Asks the daemon. As call_run(),
 * or as device_index(), segment_map(). */
int storage_allocate(struct session *session, const struct device *device, uint64_t nbytes,
                     struct storage **ret_storage);

/* The same with a packed copy of `source`, whose packed size is `nbytes`. Also as copy_array(). */
int storage_fill(struct session *session, struct device *device, const tcx_array_t *source,
                 uint64_t nbytes, struct storage **ret_storage);

/* Gives a grant back that is not wanted. No lock held. */
void storage_decline(struct session *session, const struct wire_grant *grant);

/* Before all of it, or of a part, is written: see mapping_populate(). */
void storage_populate(struct storage *storage);
void storage_populate_part(struct storage *storage, uint64_t offset, uint64_t nbytes);

/* Its bytes are a channel's: who has them by address has local memory. Before anybody has. */
void storage_hide(struct storage *storage);

/* How much longer than usual an answer may take that commits so much memory. */
int64_t storage_commit_ns(uint64_t nbytes);

/* One more reference to the storage with this id, or to the one that has all these bytes; NULL:
 * none of ours. No lock held. */
struct storage *storage_find(struct session *session, uint64_t id);
struct storage *storage_find_bytes(struct session *session, const void *data, size_t nbytes);

/* Whether the daemon knows that we hold it. No lock held. */
int storage_is_granted(struct storage *storage);

struct storage *storage_ref(struct storage *storage);

/* Never waits. NULL is fine. */
void storage_unref(struct storage *storage);

/* Releases what is on the list and still not used. Lock held. Returns those that were pinned, to be
 * unpinned without it. Only session.c calls these two. */
struct storage *storages_drain(struct session *session);
void storages_unpin(struct storage *pinned);

/* Returns grants that were never turned into storages, one each. Lock held. */
void storages_return(struct session *session, const void *grants, size_t count);

/* Before the grant that a redeemed ticket brought is returned unused: the memory stays for another
 * attempt, as long as the lease of a new ticket. Lock held. */
void storage_put_off(struct session *session, uint64_t id);
