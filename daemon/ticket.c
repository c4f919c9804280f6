#include "ticket.h"

#include <stdlib.h>

void tickets_init(struct tickets *tickets) {
    table_init(&tickets->by_id);
    tickets->next_id = 0;
}

void tickets_fini(struct tickets *tickets) {
    size_t cursor = 0;
    uint64_t id;
    void *ticket;

    while (table_next(&tickets->by_id, &cursor, &id, &ticket)) {
        storage_unref(tickets->storages, ((struct ticket *)ticket)->storage);
        free(ticket);
    }
    table_fini(&tickets->by_id);
}

struct ticket *ticket_create(struct tickets *tickets, struct storage *storage) {
    struct ticket *ticket = malloc(sizeof *ticket);

    if (!ticket || table_set(&tickets->by_id, tickets->next_id + 1, ticket) < 0) {
        free(ticket);
        return NULL;
    }
    ticket->id = ++tickets->next_id;
    ticket->storage = storage;
    storage_ref(storage);
    return ticket;
}

struct ticket *ticket_find(const struct tickets *tickets, uint64_t id) {
    return id && id <= tickets->next_id ? table_find(&tickets->by_id, id) : NULL;
}

void ticket_end(struct tickets *tickets, struct ticket *ticket) {
    table_remove(&tickets->by_id, ticket->id);
    storage_unref(tickets->storages, ticket->storage);
    free(ticket);
}
