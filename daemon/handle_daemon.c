/*
 * handle_daemon.c - STATS, CLIENTS, STOP
 */
#include <string.h>
#include <unistd.h>

#include "call.h"

int handle_stats(struct call *call, const struct wire_stats *request,
                 struct wire_stats_reply *reply) {
    const struct server *server = call->server;

    (void)request;
    *reply =
        (struct wire_stats_reply){.pid = (uint64_t)getpid(),
                                  .boot_id = server->boot_id,
                                  .uptime_ms = server_now(server) - server->started_ms,
                                  .backing = (uint64_t)server->segments.store->backing,
                                  .clients = server->connected,
                                  .holds = server->storages.holds,
                                  .storages = server->storages.by_id.count,
                                  .bytes = server->storages.on[0].bytes,
                                  .names = server->catalog.count,
                                  .tickets = server->tickets.by_id.count,
                                  .channels = server->channels.by_id.count,
                                  .segments = server->segments.by_id.count + server->segments.dying,
                                  .committed_bytes = server->segments.committed,
                                  .warm_bytes = server->segments.warm_nbytes,
                                  .capacity_bytes = server->segments.capacity,
                                  .waiting = server->waiting,
                                  .version = server->catalog.version,
                                  .requests = server->requests,
                                  .dropped = server->dropped,
                                  .devices = devices_count(&server->devices)};
    call->reply_tail = server->acceptor.listener.path;
    call->reply_tail_nbytes = strlen(server->acceptor.listener.path);
    return STATUS_OK;
}

/* Adds one client at `used` of the page. Returns its size, 0 when it does not fit. */
static size_t add_client(struct server *server, size_t used, const struct client *client) {
    struct wire_client entry = {.client = client->id,
                                .storages = holds_count(&client->holds),
                                .bytes = client->holds.bytes,
                                .device_bytes = client->holds.device_bytes,
                                .tickets = client->account->used[ACCOUNT_TICKETS],
                                .waiting = client->waiting,
                                .age_ms = server_now(server) - client->opened_ms,
                                .pid = (uint32_t)client->pid,
                                .uid = client->uid,
                                .connected = client_is_connected(client),
                                .program_nbytes = (uint32_t)client->program_nbytes};
    size_t nbytes = sizeof entry + client->program_nbytes;
    size_t padded = (nbytes + 7) / 8 * 8;
    char *to = server->page + used;

    if (used + padded > sizeof server->page) {
        return 0;
    }
    memcpy(to, &entry, sizeof entry);
    memcpy(to + sizeof entry, client->program, client->program_nbytes);
    memset(to + nbytes, 0, padded - nbytes);
    return padded;
}

int handle_clients(struct call *call, const struct wire_clients *request,
                   struct wire_clients_reply *reply) {
    struct server *server = call->server;
    size_t used = 0;

    list_for_each (link, &server->clients) {
        const struct client *client = container_of(link, struct client, link);
        if (client->id <= request->after) {
            continue;
        }
        size_t added = add_client(server, used, client);
        if (added == 0) {
            reply->more = 1;
            break;
        }
        used += added;
        reply->count++;
    }
    call->reply_tail = server->page;
    call->reply_tail_nbytes = used;
    return STATUS_OK;
}

int handle_stop(struct call *call, const struct wire_stop *request, struct wire_stop_reply *reply) {
    (void)request;
    reply->pid = (uint32_t)getpid();
    call->server->stop_reason = "a client asked";
    return STATUS_OK;
}
