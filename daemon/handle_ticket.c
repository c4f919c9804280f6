/*
 * handle_ticket.c - TICKET, REDEEM
 */
#include <inttypes.h>

#include "call.h"
#include "handle.h"

int handle_ticket(struct call *call, const struct wire_ticket *request,
                  struct wire_ticket_reply *reply) {
    struct server *server = call->server;
    struct storage *storage = storage_find(&server->storages, request->storage);

    if (!storage || !holds_have(&call->client->holds, storage)) {
        return call_fail(call, STATUS_STALE, "this client does not hold storage %" PRIu64,
                         request->storage);
    }
    const struct ticket *ticket = ticket_create(&server->tickets, storage);
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

    if (!storage || (ticket && ticket->storage != storage)) {
        return call_fail(call, STATUS_STALE, "storage %" PRIu64 " is gone: nobody uses it any more",
                         request->storage);
    }
    int r = grant(call, storage, &reply->grant);
    if (r == STATUS_OK && ticket) {
        ticket_end(&server->tickets, ticket);
    }
    return r;
}
