/*
 * handle_ticket.c - TICKET, REDEEM
 */
#include <inttypes.h>

#include "call.h"
#include "handle.h"
#include "quota.h"

/* Tickets whose sender has gone are nobody's: together they are as many as storages may be. */
static int check_room(struct call *call) {
    uint64_t max = call->server->storages.max;

    if (call->server->tickets.by_id.count >= max) {
        return call_fail(
            call, STATUS_LIMIT,
            "%" PRIu64 " tickets exist already: the limit is --max-storages: " TICKET_ADVICE, max);
    }
    return quota_check(call, ACCOUNT_TICKETS, 1);
}

int handle_ticket(struct call *call, const struct wire_ticket *request,
                  struct wire_ticket_reply *reply) {
    struct server *server = call->server;
    struct storage *storage = storage_find(&server->storages, request->storage);
    struct hold *hold = storage ? holds_find(&call->client->holds, storage) : NULL;

    if (!hold) {
        return call_fail(call, STATUS_STALE, "this client does not hold storage %" PRIu64,
                         request->storage);
    }
    int r = check_room(call);
    if (r != STATUS_OK) {
        return r;
    }
    const struct ticket *ticket =
        ticket_create(&server->tickets, storage, call->client->account, &hold->tickets);
    if (!ticket) {
        return call_no_books(call);
    }
    reply->ticket = ticket->id;
    return STATUS_OK;
}

int handle_redeem(struct call *call, const struct wire_redeem *request,
                  struct wire_redeem_reply *reply) {
    struct server *server = call->server;
    struct storage *storage = storage_find(&server->storages, request->storage);
    struct ticket *ticket = ticket_find(&server->tickets, request->ticket);

    if (!storage) {
        return call_fail(call, STATUS_STALE,
                         "storage %" PRIu64 " is gone: its ticket was redeemed, or has expired "
                         "(--ticket-lease), and nobody uses it any more",
                         request->storage);
    }
    if (ticket && ticket->storage != storage) {
        return call_fail(call, STATUS_STALE, "ticket %" PRIu64 " is none of storage %" PRIu64,
                         ticket->id, storage->id);
    }
    int r = grant(call, storage, &reply->grant);
    if (r == STATUS_OK && ticket) {
        ticket_end(&server->tickets, ticket);
    }
    return r;
}
