#include "account.h"

#include <assert.h>
#include <stdlib.h>

struct account *account_create(void) {
    struct account *account = calloc(1, sizeof *account);

    if (account) {
        account->has_client = true;
    }
    return account;
}

static void free_if_unused(struct account *account) {
    for (int kind = 0; kind < ACCOUNT_KINDS; kind++) {
        if (account->used[kind] > 0) {
            return;
        }
    }
    free(account);
}

void account_leave(struct account *account) {
    account->has_client = false;
    free_if_unused(account);
}

void account_charge(struct account *account, enum account_kind kind, uint64_t amount) {
    account->used[kind] += amount;
}

void account_return(struct account *account, enum account_kind kind, uint64_t amount) {
    assert(account->used[kind] >= amount);
    account->used[kind] -= amount;
    if (!account->has_client) {
        free_if_unused(account);
    }
}
