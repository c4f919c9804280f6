/*
 * handle_connection.c - HELLO, CANCEL, FORK
 *
 * HELLO is where a connection is refused, with a reason the user can act on.
 */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "call.h"
#include "dispatch.h"
#include "log.h"
#include "name.h"
#include "step.h"
#include "version.h"

/* Refuses a connection: its reply is the last thing it gets. */
#define turn_away(call, status, ...) \
    ((call)->client->is_leaving = true, call_fail((call), (status), __VA_ARGS__))

static int check_versions(struct call *call, const struct wire_hello *request) {
    if (request->version_min > WIRE_VERSION_MAX || request->version_max < WIRE_VERSION_MIN ||
        request->layout != WIRE_LAYOUT) {
        bool client_is_newer =
            request->version_min > WIRE_VERSION_MAX || request->layout > WIRE_LAYOUT;
        return turn_away(
            call, STATUS_VERSION,
            "this daemon (tensorcxd %s, pid %d) speaks protocol versions %d to %d with "
            "layout %d, the client %u to %u with layout %u: upgrade the %s",
            TENSORCX_VERSION, (int)getpid(), WIRE_VERSION_MIN, WIRE_VERSION_MAX, WIRE_LAYOUT,
            request->version_min, request->version_max, request->layout,
            client_is_newer ? "daemon (tensorcx stop ends the old one)" : "client");
    }
    return STATUS_OK;
}

_Static_assert((int)SEGMENT_USERS > (int)UIDS_MAX, "one for each, and one for our own user");

static int check_admission(struct call *call) {
    struct client *client = call->client;
    struct server *server = call->server;
    uint64_t max = server->options->max_clients;
    int place = uids_find(&server->options->allow_uid, client->uid);
    bool is_ours = client->uid == geteuid();

    if (!is_ours && place < 0) {
        return turn_away(call, STATUS_DENIED,
                         "this daemon serves user %u, and the client runs as user %u (its option "
                         "--allow-uid=%u would let it in)",
                         (unsigned)geteuid(), (unsigned)client->uid, (unsigned)client->uid);
    }
    if (client->refused) {
        return turn_away(call, STATUS_LIMIT, "%s", client->refused);
    }
    if (server->clients_count - server->silent_count >= max) {
        clients_return_all(server);
    }
    if (server->clients_count - server->silent_count >= max) {
        log_warn("event=client.refused reason=\"as many clients as --max-clients allows\"");
        return turn_away(call, STATUS_LIMIT,
                         "the daemon has %" PRIu64 " clients already: the limit is --max-clients",
                         max);
    }
    client->account->user = is_ours ? 0 : (unsigned)place + 1;
    return STATUS_OK;
}

static void set_program(struct client *client, const void *name, size_t nbytes) {
    if (!text_is_clean(name, nbytes)) {
        name = "?";
        nbytes = 1;
    }
    memcpy(client->program, name, nbytes);
    client->program_nbytes = nbytes;
}

/* The client is one of ours from now on. */
static void admit(struct call *call) {
    struct client *client = call->client;
    char program[4 * WIRE_PROGRAM_MAX + 8];

    client_admit(client);
    set_program(client, call->tail, call->tail_nbytes);
    log_info("event=client.open client=%" PRIu64 " pid=%d uid=%u program=%s", client->id,
             client->pid, (unsigned)client->uid,
             log_quote(client->program, client->program_nbytes, program, sizeof program));
}

int handle_hello(struct call *call, const struct wire_hello *request,
                 struct wire_hello_reply *reply) {
    struct server *server = call->server;
    int fd;

    if (request->magic != WIRE_MAGIC) {
        return call_broken(call, "not a client of tensorcx");
    }
    int status = check_versions(call, request);
    if (status == STATUS_OK) {
        status = check_admission(call);
    }
    if (status != STATUS_OK) {
        return status;
    }
    int r = lifepage_open(&server->pages, &call->client->page, &fd);
    if (r < 0) {
        return turn_away(call, STATUS_LIMIT,
                         "the daemon cannot make a life page for this client: %s (its limit of "
                         "descriptors is RLIMIT_NOFILE)",
                         strerror(-r));
    }
    REACHED(LIFE_PAGE_WATCHED);
    admit(call);
    REACHED(CLIENT_ADMITTED);
    reply->version =
        WIRE_VERSION_MAX < request->version_max ? WIRE_VERSION_MAX : request->version_max;
    reply->layout = WIRE_LAYOUT;
    reply->boot_id = server->boot_id;
    reply->client = call->client->id;
    reply->pid = (uint32_t)getpid();
    call->reply_tail = TENSORCX_VERSION;
    call->reply_tail_nbytes = strlen(TENSORCX_VERSION);
    call->reply_fd = fd;
    call->reply_fd_is_ours = true;
    return STATUS_OK;
}

int handle_fork(struct call *call, const struct wire_fork *request) {
    (void)request;
    if (forkpages_note(&call->client->forks, call->request_fd) < 0) {
        return call_broken(call, "FORK: the descriptor is none of a fork page");
    }
    participants_note(&call->client->participants);
    return STATUS_OK;
}

int handle_cancel(struct call *call, const struct wire_cancel *request) {
    dispatch_cancel(call->client, request->request);
    return STATUS_OK;
}
