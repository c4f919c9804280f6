#include "client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "bytes.h"
#include "closer.h"
#include "dispatch.h"
#include "log.h"
#include "poller.h"
#include "server.h"
#include "step.h"

/* A batch, so that one busy client cannot keep all others waiting. */
enum { MESSAGES_PER_EVENT = 32, BYTES_PER_EVENT = 16 * 1024 };

/* How often a kernel without memory for a reply is asked again. */
enum { STARVED_MS = 5 };

/* ---------------------------------------------------------------------------------------- close */

/* It is no longer one of those that have not said HELLO. */
static void greeted(struct client *client) {
    if (!list_is_empty(&client->silent)) {
        list_remove(&client->silent);
        client->server->silent_count--;
    }
}

static void disconnect(struct client *client, const char *reason) {
    /* Who never said HELLO only looked whether we are there. */
    log_line(client->state == CLIENT_NEW ? LOG_DEBUG : LOG_INFO,
             "event=client.close client=%" PRIu64 " pid=%d reason=\"%s\" holds=%" PRIu64,
             client->id, client->pid, reason, holds_count(&client->holds));
    poller_destroy(client->poll);
    client->poll = NULL;
    /* What lies in it unread may hold descriptors, and is closed with it. */
    shutdown(client->fd, SHUT_RDWR);
    closer_close(&client->fd, 1);
    client->fd = -1;
    output_fini(&client->output);
    dispatch_forget(client);
    greeted(client);
    client->server->connected--;
    if (client->server->acceptor.refused == client) {
        acceptor_refusal_done(&client->server->acceptor);
    }
    REACHED(CLIENT_DISCONNECTED);
}

/* Whether it may still use what it held: it has memory mapped, or work on a device running. */
static bool is_using(const struct client *client) {
    bool has_imports = client->imports.by_segment.count > 0;

    return lifepage_is_open(&client->page) || (has_imports && process_is_watched(&client->process));
}

/* Takes back some of what it had, or only its children; if there is more, the rest follows when
 * those before it are done. */
static void return_some(struct client *client) {
    struct server *server = client->server;
    bool has_more = forkpages_free_some(&client->forks);

    if (client->state == CLIENT_ENDED) {
        has_more |= catalog_drop(&server->catalog, &client->names);
        has_more |= holds_return_some(&client->holds);
    }
    if (!has_more) {
        list_remove(&client->returning);
    } else if (list_is_empty(&client->returning)) {
        list_append(&server->returning, &client->returning);
    }
}

static void return_all(struct client *client) {
    do {
        return_some(client);
    } while (!list_is_empty(&client->returning));
}

/* The process is gone. What its children may use stays. */
static void end(struct client *client) {
    client->state = CLIENT_ENDED;
    process_forget(&client->process);
    forkpages_process_gone(&client->forks);
    participants_end(&client->participants);
    return_some(client);
    imports_fini(&client->imports);
    REACHED(CLIENT_ENDED);
}

void client_close(struct client *client, const char *reason, bool gone) {
    struct server *server = client->server;

    if (client_is_connected(client)) {
        disconnect(client, reason);
    }
    if (gone) {
        lifepage_forget(&server->pages, &client->page);
        process_forget(&client->process);
        forkpages_fini(&client->forks);
    }
    if (!is_using(client) && client->state < CLIENT_ENDED) {
        end(client);
    }
    if (gone) {
        return_all(client);
    }
    if (client->state == CLIENT_ENDED && client->forks.count == 0 &&
        list_is_empty(&client->returning)) {
        client->state = CLIENT_GONE;
        participants_fini(&client->participants);
        holds_fini(&client->holds);
        account_leave(client->account);
        server->clients_count--;
        list_remove(&client->link);
        list_append(&server->gone, &client->link);
        REACHED(CLIENT_GONE);
    }
}

void client_drop(struct client *client, const char *rule) {
    log_warn("event=client.drop client=%" PRIu64 " pid=%d rule=\"%s\"", client->id, client->pid,
             rule);
    client->server->dropped++;
    client_close(client, "broke the protocol", false);
}

static void on_page_closed(struct lifepage *page) {
    struct client *client = container_of(page, struct client, page);

    if (!client_is_connected(client)) {
        client_close(client, "", false);
    }
}

static void on_process_ended(struct process *process) {
    struct client *client = container_of(process, struct client, process);
    struct server *server = client->server;

    if (!client_is_connected(client)) {
        client_close(client, "", false);
    }
    server_settle(server);
}

int client_watch_process(struct client *client) {
    return process_is_watched(&client->process)
               ? 0
               : process_watch(&client->process, client->server->uv, client->fd, client->pid);
}

static void go_on_returning(struct client *client) {
    return_some(client);
    if (!client_is_connected(client)) {
        client_close(client, "", false);
    }
}

static void on_fork_page_closed(struct forkpages *forks) {
    go_on_returning(container_of(forks, struct client, forks));
}

static void on_freed(struct forkpages *forks, enum fork_kind kind, struct heap_node *node) {
    if (kind == FORK_BUFFER) {
        participant_freed(node);
    } else {
        hold_freed(&container_of(forks, struct client, forks)->holds, node);
    }
}

/* ----------------------------------------------------------------------------------------- send */

static void on_event(uv_poll_t *poll, int status, int events);

/* Other events than before, if it waits for room to send now or does no more. */
static void watch(struct client *client) {
    struct server *server = client->server;
    bool waits_for_room = !output_is_empty(&client->output) && !client->output.is_starved;

    if (client->output.is_starved && !server->resend_ms) {
        server->resend_ms = server_now(server) + STARVED_MS;
    }
    if (waits_for_room == client->is_watched_for_room) {
        return;
    }
    client->is_watched_for_room = waits_for_room;
    int r = poller_start(client->poll, UV_READABLE | (waits_for_room ? UV_WRITABLE : 0), on_event);
    if (r < 0) {
        client_close(client, strerror(-r), false);
    }
}

void client_send(struct client *client, const struct frame *frame) {
    if (!client_is_connected(client)) {
        return;
    }
    const char *broken = output_send(&client->output, client->fd, frame);
    if (broken) {
        client_close(client, broken, false);
    } else if (!output_is_empty(&client->output)) {
        watch(client);
    }
}

static void flush(struct client *client) {
    const char *broken = output_flush(&client->output, client->fd);

    if (broken) {
        client_close(client, broken, false);
    } else {
        watch(client);
    }
}

bool client_may_send_descriptor(struct client *client) {
    return output_may_send_descriptor(&client->output, client->fd);
}

/* Who is refused goes when it has been told. */
static void leave(struct client *client) {
    if (client_is_connected(client) && client->is_leaving && output_is_empty(&client->output)) {
        client_close(client, "refused", false);
    }
}

bool clients_return_some(struct server *server) {
    if (!list_is_empty(&server->returning)) {
        go_on_returning(container_of(server->returning.next, struct client, returning));
    }
    return !list_is_empty(&server->returning);
}

bool clients_return_all(struct server *server) {
    bool any = !list_is_empty(&server->returning);

    while (clients_return_some(server)) {
    }
    return any;
}

uint64_t clients_resend(struct server *server, uint64_t now_ms) {
    if (server->resend_ms && server->resend_ms <= now_ms) {
        server->resend_ms = 0;
        list_for_each (link, &server->clients) {
            struct client *client = container_of(link, struct client, link);
            if (client_is_connected(client) && client->output.is_starved) {
                flush(client);
                leave(client);
            }
        }
    }
    return server->resend_ms ? server->resend_ms : UINT64_MAX;
}

/* -------------------------------------------------------------------------------------- receive */

/* Receives and handles one message. Returns whether there may be another. */
static bool receive_one(struct client *client) {
    struct server *server = client->server;
    int fds[CONNECTION_FDS_MAX];
    size_t nfds;
    int dropped;
    int n = connection_receive_all(client->fd, server->message, sizeof server->message, fds, &nfds,
                                   &dropped);

    if (n > 0) {
        REACHED(REQUEST_RECEIVED);
        dispatch_message(client, server->message, (size_t)n, nfds ? nfds : (size_t)dropped,
                         nfds ? fds[0] : -1);
    } else if (n == -EMSGSIZE) {
        client_drop(client, "a message is too long");
    } else if (n != -EAGAIN && n != -ECONNRESET) {
        client_close(client, n == 0 ? "the connection ended" : strerror(-n), false);
    }
    if (nfds > 0) {
        closer_close(fds, nfds);
    }
    /* After a reset there is still what the peer had sent before. */
    return n > 0 || n == -ECONNRESET;
}

/* Up to a call: its sender waits for the answer and has mostly sent nothing more, which the loop
 * finds out cheaper than an attempt to receive does. After a note there is mostly a call. */
static void receive(struct client *client) {
    const struct wire_header *last = (const void *)client->server->message;
    size_t nbytes = 0;

    for (int i = 0;
         i < MESSAGES_PER_EVENT && nbytes < BYTES_PER_EVENT && client_is_connected(client); i++) {
        if (!receive_one(client) || last->request != 0) {
            return;
        }
        nbytes += last->nbytes;
    }
}

/* The peer ended and left replies unread, which the kernel tells before anything else. */
static void receive_rest(struct client *client, int status) {
    while (client_is_connected(client) && receive_one(client)) {
    }
    client_close(client, uv_strerror(status), false);
}

static void on_event(uv_poll_t *poll, int status, int events) {
    struct client *client = poll->data;
    struct server *server = client->server;

    if (status < 0) {
        receive_rest(client, status);
    }
    if (client_is_connected(client) && (events & UV_WRITABLE)) {
        flush(client);
    }
    if (client_is_connected(client) && (events & UV_READABLE)) {
        receive(client);
    }
    leave(client);
    server_settle(server);
}

/* ----------------------------------------------------------------------------------------- open */

static int identify(struct client *client) {
    struct ucred peer;
    socklen_t size = sizeof peer;

    if (getsockopt(client->fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        return -errno;
    }
    client->pid = peer.pid;
    client->uid = peer.uid;
    return 0;
}

void client_admit(struct client *client) {
    greeted(client);
    client->state = CLIENT_READY;
}

/* What it will hold and own. */
static void init_books(struct client *client) {
    struct server *server = client->server;

    output_init(&client->output, server->options->max_output);
    list_init(&client->returning);
    list_init(&client->names);
    list_init(&client->parked);
    client->page.closed = on_page_closed;
    client->process.ended = on_process_ended;
    client->forks.pages = &server->pages;
    client->forks.freed = on_freed;
    client->forks.closed = on_fork_page_closed;
    client->forks.max = server->options->client_forks;
    forkpages_init(&client->forks);
    client->holds.storages = &server->storages;
    client->holds.tickets = &server->tickets;
    client->holds.forks = &client->forks;
    holds_init(&client->holds);
    imports_init(&client->imports);
    client->participants.forks = &client->forks;
    client->participants.holds = &client->holds;
    client->participants.client = (uint32_t)client->id;
    client->participants.max = server->options->client_channels;
    participants_init(&client->participants);
}

/* The server's from now on; it has not said HELLO. */
static void enlist(struct client *client) {
    struct server *server = client->server;

    list_append(&server->clients, &client->link);
    list_append(&server->silent, &client->silent);
    server->clients_count++;
    server->silent_count++;
    server->connected++;
}

struct client *client_open(struct server *server, int fd, const char *refused) {
    struct client *client = calloc(1, sizeof *client);
    struct account *account = account_create();

    if (client && account) {
        client->poll = poller_create(server->uv, fd, client, on_event);
    }
    if (!client || !account || !client->poll) {
        log_error("event=client.open error=\"%s\"", strerror(errno));
        free(account);
        free(client);
        closer_close(&fd, 1);
        return NULL;
    }
    client->fd = fd;
    client->server = server;
    client->account = account;
    client->refused = refused;
    client->id = ++server->next_client;
    client->opened_ms = server_now(server);
    init_books(client);
    enlist(client);
    if (identify(client) < 0) {
        client_close(client, "its user is not known", true);
        return NULL;
    }
    REACHED(CLIENT_OPENED);
    return client;
}
