/*
 * account.h - what one client has made and still exists
 *
 * Each client has an account; what it makes (storages, names, tickets, channels) points to it and
 * is counted there until it ends, also when the client has ended long before. Readers are not
 * charged for what others made. An account lives while its client or anything charged to it does.
 * Knows no limits: quota.h does.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum account_kind {
    ACCOUNT_BYTES,       /* of storages */
    ACCOUNT_STORAGES,    /* while there are any the account stays: returned after the two around */
    ACCOUNT_ATTACHMENTS, /* storages that these, or messages, keep */
    ACCOUNT_NAMES,
    ACCOUNT_TICKETS,
    ACCOUNT_CHANNELS,
    ACCOUNT_KINDS
};

struct account {
    bool has_client;
    unsigned user; /* as in segments_take(): whom its client runs for */
    uint64_t used[ACCOUNT_KINDS];
};

/* For a client. NULL: no memory. */
struct account *account_create(void);

/* The client is gone. */
void account_leave(struct account *account);

/* `amount` more exist. */
void account_charge(struct account *account, enum account_kind kind, uint64_t amount);

/* They have ended; `account` may be gone now. */
void account_return(struct account *account, enum account_kind kind, uint64_t amount);
