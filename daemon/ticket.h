/*
 * ticket.h - references that are on their way between two processes
 *
 * A ticket keeps its storage alive until it is redeemed. When its sender does not hold the storage
 * any more, its lease begins; after that it may be taken back, and is when memory is short or
 * nobody is left who could redeem it. Ids are never used twice. Owned by the server; knows
 * storages, not clients or messages.
 */
#pragma once

#include <stdint.h>

#include "list.h"
#include "storage.h"
#include "table.h"

/* What to do about too many. */
#define TICKET_ADVICE "take what is sent, or send less at a time (Queue(maxsize=))"

struct ticket {
    uint64_t id;
    struct storage *storage; /* one reference of ours */
    struct account *account; /* of its sender; it is charged */
    uint64_t lease_end_ms;   /* once its sender is done */
    struct list link;        /* its sender's hold::tickets, then tickets::leased */
};

struct tickets {
    struct storages *storages;    /* borrowed: outlives us */
    uint64_t (*now)(void *owner); /* milliseconds */
    void *owner;                  /* borrowed: of `now` */
    uint64_t lease_ms;
    struct table by_id; /* of struct ticket; owned */
    struct list leased; /* of them, the first to end first */
    uint64_t next_id;
};

/* What is not set here is filled in by the caller. fini takes all tickets back. */
void tickets_init(struct tickets *tickets);
void tickets_fini(struct tickets *tickets);

/* A new ticket, charged to `account` and added to its sender's list `sent`; NULL: no memory. */
struct ticket *ticket_create(struct tickets *tickets, struct storage *storage,
                             struct account *account, struct list *sent);

/* Borrowed, or NULL. */
struct ticket *ticket_find(const struct tickets *tickets, uint64_t id);

/* Redeemed, or taken back. */
void ticket_end(struct tickets *tickets, struct ticket *ticket);

/* The sender of the tickets on `sent` is done with their storage: their lease begins. */
void tickets_lease(struct tickets *tickets, struct list *sent);

/* Takes back those whose lease is over. Returns how many. */
uint64_t tickets_expire(struct tickets *tickets);

/* When the next lease is over; UINT64_MAX: none has begun. */
uint64_t tickets_due(const struct tickets *tickets);
