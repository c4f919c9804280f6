/*
 * storage.h - byte ranges of segments, handed out and counted
 *
 * A storage lives while it has references: one per client that holds it, one per name, one per
 * ticket, one per storage it is attached to. All counts are in this process. Ids are never used
 * twice. Owned by the server; knows segments, not clients, names or messages.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "account.h"
#include "range.h"
#include "segment.h"
#include "table.h"

struct storage {
    struct range range; /* first: giving it back frees the storage. segment NULL: it has no bytes */
    union {
        uint64_t id;
        struct storage *next; /* once dead: another dead one */
    };
    uint64_t nbytes;
    struct account *account;   /* of whoever made it; it is charged */
    struct attached *attached; /* owned; NULL: none */
    uint32_t references;
    uint32_t holders; /* clients among the references */
    uint32_t tickets; /* tickets among them */
    uint16_t device;  /* 0: the CPU */
    bool is_spoilt;   /* a client that used it has ended uncleanly */
};

/* Older storages that a storage keeps alive. */
struct attached {
    uint64_t nbytes; /* of all of them */
    uint32_t count;
    struct storage *storages[]; /* one reference to each */
};

/* What there is on one device. */
struct stored {
    uint64_t count, bytes;
    uint64_t sent_bytes; /* of those that only tickets keep */
};

struct storages {
    struct table by_id; /* borrowed values: whoever has a reference owns them together */
    uint64_t max, attachments;
    uint64_t holds; /* of all clients */
    struct stored on[1 + WIRE_DEVICES_MAX];
    uint64_t next_id;
};

/* `max` is filled in by the caller. fini asserts that nothing is left. */
void storages_init(struct storages *storages);
void storages_fini(struct storages *storages);

/* Makes a storage in `segments`, which outlive it, and charges it to `account`; the reference in
 * *ret_storage is the caller's. STATUS_LIMIT (`max`), STATUS_INTERNAL (no memory for the books),
 * else as segments_take(). */
int storage_create(struct storages *storages, struct segments *segments, struct account *account,
                   uint64_t nbytes, struct storage **ret_storage, struct waitlist **ret_wait,
                   struct shortage *ret_shortage);

/* Of all live ones, wherever they are. */
uint64_t storages_bytes(const struct storages *storages);

/* Borrowed, or NULL. */
struct storage *storage_find(const struct storages *storages, uint64_t id);

void storage_ref(struct storages *storages, struct storage *storage);
void storage_unref(struct storages *storages, struct storage *storage);

/* The same for a ticket's reference. */
void storage_ref_sent(struct storages *storages, struct storage *storage);
void storage_unref_sent(struct storages *storages, struct storage *storage);

/* Writes into the storage, which is on the CPU; `nbytes` at most its size. 0 or a negative errno.
 */
int storage_write(struct storage *storage, const void *bytes, uint64_t nbytes);

/* Bytes of `storage` and of those attached to it: what a bundle's name keeps alive. */
uint64_t storage_reach(const struct storage *storage);

/* Makes room to attach `more` to `storage`. STATUS_OK; STATUS_LIMIT: all together would have more
 * than `max` attachments; STATUS_INTERNAL. */
int storage_reserve(struct storages *storages, struct storage *storage, uint32_t more);

/* From now on `storage` keeps `other`, an older storage, alive. There is room. */
void storage_attach(struct storages *storages, struct storage *storage, struct storage *other);
