/*
 * uids.h - a short list of users, written as numbers with commas between
 *
 * Whom the daemon admits (--allow-uid), and whom a client trusts (TENSORCX_TRUST_UID).
 */
#pragma once

#include <stddef.h>
#include <sys/types.h>

enum { UIDS_MAX = 32 };

struct uids {
    size_t count;
    uid_t uid[UIDS_MAX];
};

/* Adds those in `text`. 0, or -1: it is no such list, or has too many; then some may be added. */
int uids_add(struct uids *uids, const char *text);

/* Its place in the list, or -1. */
int uids_find(const struct uids *uids, uid_t uid);
