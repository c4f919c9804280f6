/*
 * ticket.h - references that are on their way between two processes
 *
 * A ticket keeps its storage alive until it is redeemed. Ids are never used twice. Owned by the
 * server; knows storages, not clients or messages.
 */
#pragma once

#include <stdint.h>

#include "storage.h"
#include "table.h"

struct ticket {
    uint64_t id;
    struct storage *storage; /* one reference of ours */
};

struct tickets {
    struct storages *storages; /* borrowed: outlives us */
    struct table by_id;        /* of struct ticket, owned */
    uint64_t next_id;
};

/* `storages` is filled in by the caller. fini takes all tickets back. */
void tickets_init(struct tickets *tickets);
void tickets_fini(struct tickets *tickets);

/* A new ticket, or NULL: no memory. */
struct ticket *ticket_create(struct tickets *tickets, struct storage *storage);

/* Borrowed, or NULL. */
struct ticket *ticket_find(const struct tickets *tickets, uint64_t id);

/* Redeemed, or taken back. */
void ticket_end(struct tickets *tickets, struct ticket *ticket);
