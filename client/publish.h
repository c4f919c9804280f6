/*
 * publish.h - putting storages under names
 */
#pragma once

#include "desc.h"
#include "storage.h"
#include "tensorcx.h"

struct device;

/* A checked name and what put options mean on the wire. */
struct publication {
    const char *name; /* borrowed; NULL: none */
    size_t name_nbytes;
    uint64_t ttl_ms;
    uint32_t flags;      /* PUT_EPHEMERAL, PUT_EXCLUSIVE */
    uint32_t desc_flags; /* DESC_READONLY */
    int copies;          /* also what is shared */
    int refuses_to_copy;
    int moves;             /* to `device`; else everything stays where it is */
    struct device *device; /* NULL: the CPU */
};

/* STATUS_OK, STATUS_INVALID, STATUS_DEVICE. */
int publication_init(const char *name, const tcx_put_options_t *options,
                     struct publication *ret_publication);

/* Where a checked array is to be. STATUS_DEVICE. */
int publication_device(const struct publication *publication, const tcx_array_t *source,
                       struct device **ret_device);

/* The storage, held by `session`, that has the array's bytes and can be put as it is: on `device`,
 * and complete by now. *ret_storage is NULL if they must be copied. As hold_array(), device_wait();
 * STATUS_EXCHANGE: they may not be copied. */
int publication_hold(const struct publication *publication, struct session *session,
                     const tcx_array_t *source, uint64_t nbytes, const struct device *device,
                     struct storage **ret_storage);

/* Puts a storage that we hold under the name. Asks the daemon. */
int publish_storage(struct session *session, const struct publication *publication,
                    const struct storage *storage, const struct desc *desc, uint64_t *ret_version);

/* Sends at most WIRE_PUT_MAX bytes to be put under the name; the grant is the caller's. Asks the
 * daemon. */
int publish_bytes(struct session *session, const struct publication *publication,
                  const struct desc *desc, const void *bytes, size_t nbytes,
                  struct wire_grant *ret_grant, uint64_t *ret_version);
