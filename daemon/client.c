#include "client.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "closer.h"
#include "dispatch.h"
#include "log.h"
#include "poller.h"
#include "server.h"

/* A batch, so that one busy client cannot keep all others waiting. */
enum { MESSAGES_PER_EVENT = 32, DESCRIPTORS_UNREAD_MAX = 64 };

/* Every message in a socket takes the kernel more than this. */
enum { UNREAD_MESSAGE_MIN = 512 };

/* How often a kernel without memory for a reply is asked again. */
enum { STARVED_MS = 5 };

/* A reply that the socket did not take yet. */
struct unsent {
    struct list link; /* client::output */
    size_t nbytes;
    int fd; /* owned; -1: none */
    char bytes[];
};

/* ---------------------------------------------------------------------------------------- close */

static void unsent_free(struct unsent *unsent) {
    list_remove(&unsent->link);
    if (unsent->fd >= 0) {
        close(unsent->fd);
    }
    free(unsent);
}

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
    while (!list_is_empty(&client->output)) {
        unsent_free(container_of(client->output.next, struct unsent, link));
    }
    dispatch_forget(client);
    greeted(client);
    client->server->connected--;
    if (client->server->acceptor.refused == client) {
        acceptor_refusal_done(&client->server->acceptor);
    }
}

/* Whether it may still use what it held: it has memory mapped, or work on a device running. */
static bool is_using(const struct client *client) {
    bool has_imports = client->imports.by_segment.count > 0;

    return lifepage_is_open(&client->page) || (has_imports && process_is_watched(&client->process));
}

/* The process is gone. What its children may use stays. */
static void end(struct client *client) {
    client->state = CLIENT_ENDED;
    process_forget(&client->process);
    catalog_drop(&client->server->catalog, &client->names);
    forkpages_process_gone(&client->forks);
    participants_end(&client->participants);
    holds_return_all(&client->holds);
    imports_fini(&client->imports);
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
    if (client->state == CLIENT_ENDED && client->forks.count == 0) {
        client->state = CLIENT_GONE;
        participants_fini(&client->participants);
        holds_fini(&client->holds);
        account_leave(client->account);
        server->clients_count--;
        list_remove(&client->link);
        list_append(&server->gone, &client->link);
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

static void on_fork_page_closed(struct forkpages *forks) {
    struct client *client = container_of(forks, struct client, forks);

    if (!client_is_connected(client)) {
        client_close(client, "", false);
    }
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

static void watch(struct client *client) {
    struct server *server = client->server;
    bool waits_for_room = !list_is_empty(&client->output) && !client->is_starved;

    if (client->is_starved && !server->resend_ms) {
        server->resend_ms = server_now(server) + STARVED_MS;
    }
    uv_poll_start(client->poll, UV_READABLE | (waits_for_room ? UV_WRITABLE : 0), on_event);
}

static void keep_for_later(struct client *client, const struct frame *frame) {
    size_t nbytes = frame_nbytes(frame);
    struct unsent *unsent = NULL;

    if (client->output_nbytes + nbytes <= client->server->options->max_output) {
        unsent = malloc(sizeof *unsent + nbytes);
    }
    if (!unsent) {
        client_close(client, "does not read its replies (--max-output)", false);
        return;
    }
    unsent->nbytes = nbytes;
    unsent->fd = frame->fd < 0 ? -1 : fcntl(frame->fd, F_DUPFD_CLOEXEC, 0);
    frame_flatten(frame, unsent->bytes);
    list_append(&client->output, &unsent->link);
    client->output_nbytes += nbytes;
    if (frame->fd >= 0 && unsent->fd < 0) {
        client_close(client, "no descriptor left for a reply", false);
        return;
    }
    watch(client);
}

/* Answers instead of a reply whose descriptor the kernel refuses to have on its way. */
static int send_refusal(const struct client *client, const struct wire_header *header) {
    static const char text[] =
        "too many descriptors are on their way between this user's processes (the kernel's limit "
        "is RLIMIT_NOFILE): repeat the call";
    struct frame frame = {
        .header = *header, .tail = {text}, .tail_nbytes = {sizeof text - 1}, .fd = -1};

    frame.header.status = STATUS_SYSTEM;
    return connection_send(client->fd, &frame);
}

/* A reply that has given its client a seat must reach it, be it without the descriptor. */
static bool is_good_without(const struct wire_header *header) {
    return header->opcode == MESSAGE_JOIN;
}

/* Whether a send that ended with `r` is to be tried again: once the socket is writable, or after a
 * while. */
static bool is_for_later(struct client *client, int r) {
    client->is_starved = r == -ENOBUFS || r == -ENOMEM;
    return client->is_starved || r == -EAGAIN;
}

/* Nobody will read this reply. That is no reason to close: what the peer has sent before it ended,
 * as that it forked, is still to be read. */
static bool is_in_vain(int r) {
    return r == -EPIPE || r == -ECONNRESET;
}

void client_send(struct client *client, const struct frame *frame) {
    if (!client_is_connected(client)) {
        return;
    }
    if (!list_is_empty(&client->output)) {
        keep_for_later(client, frame);
        return;
    }
    int r = connection_send(client->fd, frame);
    if (r == -ETOOMANYREFS) {
        struct frame bare = *frame;
        bare.fd = -1;
        r = is_good_without(&frame->header) ? connection_send(client->fd, &bare)
                                            : send_refusal(client, &frame->header);
    }
    if (is_for_later(client, r)) {
        keep_for_later(client, frame);
    } else if (r < 0 && !is_in_vain(r)) {
        client_close(client, strerror(-r), false);
    }
}

static int send_unsent(const struct client *client, struct unsent *unsent) {
    struct wire_header header;
    int r = connection_send_bytes(client->fd, unsent->bytes, unsent->nbytes, unsent->fd);

    if (r != -ETOOMANYREFS) {
        return r;
    }
    memcpy(&header, unsent->bytes, sizeof header);
    if (!is_good_without(&header)) {
        return send_refusal(client, &header);
    }
    header.nfds = 0;
    memcpy(unsent->bytes, &header, sizeof header);
    return connection_send_bytes(client->fd, unsent->bytes, unsent->nbytes, -1);
}

static void flush(struct client *client) {
    while (!list_is_empty(&client->output)) {
        struct unsent *unsent = container_of(client->output.next, struct unsent, link);
        int r = send_unsent(client, unsent);
        if (is_for_later(client, r)) {
            break;
        }
        if (r < 0 && !is_in_vain(r)) {
            client_close(client, strerror(-r), false);
            return;
        }
        client->output_nbytes -= unsent->nbytes;
        unsent_free(unsent);
    }
    watch(client);
}

/* Who is refused goes when it has been told. */
static void leave(struct client *client) {
    if (client_is_connected(client) && client->is_leaving && list_is_empty(&client->output)) {
        client_close(client, "refused", false);
    }
}

uint64_t clients_do_due(struct server *server, uint64_t now_ms) {
    if (server->resend_ms && server->resend_ms <= now_ms) {
        server->resend_ms = 0;
        list_for_each (link, &server->clients) {
            struct client *client = container_of(link, struct client, link);
            if (client_is_connected(client) && client->is_starved) {
                flush(client);
                leave(client);
            }
        }
    }
    return server->resend_ms ? server->resend_ms : UINT64_MAX;
}

bool client_may_send_descriptor(struct client *client) {
    int unread;

    /* The kernel forgets a message some time after it was received, so a client that has read all
     * may still seem to have a few unread: what counts is how many these bytes can be at most. */
    if (client->descriptors >= DESCRIPTORS_UNREAD_MAX && list_is_empty(&client->output) &&
        ioctl(client->fd, SIOCOUTQ, &unread) == 0 &&
        unread / UNREAD_MESSAGE_MIN < DESCRIPTORS_UNREAD_MAX) {
        client->descriptors = (unsigned)(unread / UNREAD_MESSAGE_MIN);
    }
    if (client->descriptors >= DESCRIPTORS_UNREAD_MAX) {
        return false;
    }
    client->descriptors++;
    return true;
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

    for (int i = 0; i < MESSAGES_PER_EVENT && client_is_connected(client); i++) {
        if (!receive_one(client) || last->request != 0) {
            return;
        }
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

    list_init(&client->output);
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
        log_error("event=client.open error=\"no memory\"");
        free(account);
        free(client);
        close(fd);
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
    return client;
}
