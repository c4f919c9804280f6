/*
 * publish.h - putting storages under names
 */
#pragma once

#include "desc.h"
#include "storage.h"
#include "tensorcx.h"

/* A checked name and what put options mean on the wire. */
struct publication {
    const char *name; /* borrowed; NULL: none */
    size_t name_nbytes;
    uint64_t ttl_ms;
    uint32_t flags;      /* PUT_EPHEMERAL, PUT_EXCLUSIVE */
    uint32_t desc_flags; /* DESC_READONLY */
    int copies;          /* also what is shared */
    int refuses_to_copy;
};

/* STATUS_OK, STATUS_INVALID. */
int publication_init(const char *name, const tcx_put_options_t *options,
                     struct publication *ret_publication);

/* Puts a storage that we hold under the name. Asks the daemon. */
int publish_storage(struct session *session, const struct publication *publication,
                    const struct storage *storage, const struct desc *desc, uint64_t *ret_version);

/* Sends at most WIRE_PUT_MAX bytes to be put under the name; the grant is the caller's. Asks the
 * daemon. */
int publish_bytes(struct session *session, const struct publication *publication,
                  const struct desc *desc, const void *bytes, size_t nbytes,
                  struct wire_grant *ret_grant, uint64_t *ret_version);
