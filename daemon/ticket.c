#include "ticket.h"

#include <inttypes.h>
#include <stdlib.h>

#include "log.h"
#include "step.h"

void tickets_init(struct tickets *tickets) {
    table_init(&tickets->by_id);
    list_init(&tickets->leased);
    tickets->next_id = 0;
}

static void ticket_free(struct tickets *tickets, struct ticket *ticket) {
    account_return(ticket->account, ACCOUNT_TICKETS, 1);
    storage_unref_sent(tickets->storages, ticket->storage);
    free(ticket);
}

void tickets_fini(struct tickets *tickets) {
    size_t cursor = 0;
    uint64_t id;
    void *ticket;

    while (table_next(&tickets->by_id, &cursor, &id, &ticket)) {
        ticket_free(tickets, ticket);
    }
    table_fini(&tickets->by_id);
}

struct ticket *ticket_create(struct tickets *tickets, struct storage *storage,
                             struct account *account, struct list *sent) {
    struct ticket *ticket = malloc(sizeof *ticket);

    if (!ticket || table_set(&tickets->by_id, tickets->next_id + 1, ticket) < 0) {
        free(ticket);
        return NULL;
    }
    *ticket = (struct ticket){.id = ++tickets->next_id, .storage = storage, .account = account};
    account_charge(account, ACCOUNT_TICKETS, 1);
    storage_ref_sent(tickets->storages, storage);
    list_append(sent, &ticket->link);
    REACHED(TICKET_CREATED);
    return ticket;
}

struct ticket *ticket_find(const struct tickets *tickets, uint64_t id) {
    return id && id <= tickets->next_id ? table_find(&tickets->by_id, id) : NULL;
}

void ticket_end(struct tickets *tickets, struct ticket *ticket) {
    table_remove(&tickets->by_id, ticket->id);
    list_remove(&ticket->link);
    ticket_free(tickets, ticket);
    REACHED(TICKET_ENDED);
}

void tickets_lease(struct tickets *tickets, struct list *sent) {
    uint64_t end_ms = tickets->now(tickets->owner) + tickets->lease_ms;

    list_for_each (link, sent) {
        container_of(link, struct ticket, link)->lease_end_ms = end_ms;
    }
    list_splice(&tickets->leased, sent);
    REACHED(TICKETS_LEASED);
}

uint64_t tickets_due(const struct tickets *tickets) {
    const struct list *first = tickets->leased.next;

    return list_is_empty(&tickets->leased) ? UINT64_MAX
                                           : container_of(first, struct ticket, link)->lease_end_ms;
}

uint64_t tickets_expire(struct tickets *tickets) {
    uint64_t now_ms = tickets->now(tickets->owner);
    uint64_t bytes = storages_bytes(tickets->storages);
    uint64_t count = 0;

    while (tickets_due(tickets) <= now_ms) {
        ticket_end(tickets, container_of(tickets->leased.next, struct ticket, link));
        count++;
    }
    if (count) {
        log_info("event=ticket.expire count=%" PRIu64 " bytes=%" PRIu64, count,
                 bytes - storages_bytes(tickets->storages));
    }
    return count;
}
