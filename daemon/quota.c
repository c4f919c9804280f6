#include "quota.h"

#include <inttypes.h>

#include "status.h"

static const struct {
    const char *what, *option, *advice;
} words[ACCOUNT_KINDS] = {
    [ACCOUNT_BYTES] = {"bytes", "--client-bytes", ""},
    [ACCOUNT_STORAGES] = {"tensors", "--client-storages", ""},
    [ACCOUNT_ATTACHMENTS] = {"references of bundles and messages to tensors", "--client-storages",
                             ""},
    [ACCOUNT_NAMES] = {"names", "--client-names", ""},
    [ACCOUNT_TICKETS] = {"tickets", "--client-tickets", ": " TICKET_ADVICE},
    [ACCOUNT_CHANNELS] = {"queues and topics", "--client-channels", ""},
};

static uint64_t limit_of(const struct options *options, enum account_kind kind) {
    switch (kind) {
    case ACCOUNT_BYTES:
        return options->client_bytes;
    case ACCOUNT_STORAGES:
    case ACCOUNT_ATTACHMENTS:
        return options->client_storages;
    case ACCOUNT_NAMES:
        return options->client_names;
    case ACCOUNT_CHANNELS:
        return options->client_channels;
    default:
        return options->client_tickets;
    }
}

int quota_check(struct call *call, enum account_kind kind, uint64_t amount) {
    const struct client *client = call->client;
    uint64_t used = client->account->used[kind];
    uint64_t limit = limit_of(call->server->options, kind);

    if (limit == 0 || (used <= limit && amount <= limit - used)) {
        return STATUS_OK;
    }
    return call_fail(
        call, kind == ACCOUNT_BYTES ? STATUS_OUT_OF_MEMORY : STATUS_LIMIT,
        "this client (pid %d) has made %" PRIu64 " %s that still exist and wants %" PRIu64
        " more: the limit is %s=%" PRIu64 "%s",
        client->pid, used, words[kind].what, amount, words[kind].option, limit, words[kind].advice);
}
