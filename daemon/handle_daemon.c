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

/* Returns whether there was room. */
static bool add_client(struct call *call, const struct client *client) {
    struct wire_client entry = {.client = client->id,
                                .storages = holds_count(&client->holds),
                                .bytes = client->holds.bytes,
                                .device_bytes = client->holds.device_bytes,
                                .tickets = client->account->used[ACCOUNT_TICKETS],
                                .waiting = client->waiting,
                                .age_ms = server_now(call->server) - client->opened_ms,
                                .pid = (uint32_t)client->pid,
                                .uid = client->uid,
                                .connected = client_is_connected(client),
                                .program_nbytes = (uint32_t)client->program_nbytes};
    char *to = call_add(call, sizeof entry + client->program_nbytes);

    if (to) {
        memcpy(to, &entry, sizeof entry);
        memcpy(to + sizeof entry, client->program, client->program_nbytes);
    }
    return to != NULL;
}

int handle_clients(struct call *call, const struct wire_clients *request,
                   struct wire_clients_reply *reply) {
    list_for_each (link, &call->server->clients) {
        const struct client *client = container_of(link, struct client, link);
        if (client->id <= request->after) {
            continue;
        }
        if (!add_client(call, client)) {
            reply->more = 1;
            break;
        }
        reply->count++;
    }
    return STATUS_OK;
}

int handle_stop(struct call *call, const struct wire_stop *request, struct wire_stop_reply *reply) {
    (void)request;
    reply->pid = (uint32_t)getpid();
    call->server->stop_reason = "a client asked";
    return STATUS_OK;
}
