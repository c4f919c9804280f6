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

#include "dispatch.h"
#include "log.h"
#include "server.h"

/* A batch, so that one busy client cannot keep all others waiting. */
enum { MESSAGES_PER_EVENT = 32, DESCRIPTORS_UNREAD_MAX = 64 };

/* Every message in a socket takes the kernel more than this. */
enum { UNREAD_MESSAGE_MIN = 512 };

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

static void free_poll(uv_handle_t *poll) {
    free(poll);
}

static void disconnect(struct client *client, const char *reason) {
    /* Who never said HELLO only looked whether we are there. */
    log_line(client->state == CLIENT_NEW ? LOG_DEBUG : LOG_INFO,
             "event=client.close client=%" PRIu64 " pid=%d reason=\"%s\" holds=%" PRIu64,
             client->id, client->pid, reason, holds_count(&client->holds));
    uv_close((uv_handle_t *)client->poll, free_poll);
    client->poll = NULL;
    close(client->fd);
    client->fd = -1;
    while (!list_is_empty(&client->output)) {
        unsent_free(container_of(client->output.next, struct unsent, link));
    }
    dispatch_forget(client);
    client->server->connected--;
    if (client->server->acceptor.refused == client) {
        acceptor_refusal_done(&client->server->acceptor);
    }
}

void client_close(struct client *client, const char *reason, bool gone) {
    struct server *server = client->server;

    if (client_is_connected(client)) {
        disconnect(client, reason);
    }
    if (gone && client->page) {
        lifepage_forget(&server->pages, client->page);
        client->page = 0;
    }
    if (client->page || client->state == CLIENT_GONE) {
        return;
    }
    client->state = CLIENT_GONE;
    catalog_drop(&server->catalog, &client->names);
    holds_fini(&client->holds, &server->storages);
    server->clients_count--;
    list_remove(&client->link);
    list_append(&server->gone, &client->link);
}

void client_drop(struct client *client, const char *rule) {
    log_warn("event=client.drop client=%" PRIu64 " pid=%d rule=\"%s\"", client->id, client->pid,
             rule);
    client->server->dropped++;
    client_close(client, "broke the protocol", false);
}

void client_page_closed(void *owner) {
    struct client *client = owner;

    client->page = 0;
    if (!client_is_connected(client)) {
        client_close(client, "", false);
    }
}

/* ----------------------------------------------------------------------------------------- send */

static void on_event(uv_poll_t *poll, int status, int events);

static void watch(struct client *client) {
    int events = UV_READABLE | (list_is_empty(&client->output) ? 0 : UV_WRITABLE);

    uv_poll_start(client->poll, events, on_event);
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

int client_send(struct client *client, const struct frame *frame) {
    if (!client_is_connected(client)) {
        return 0;
    }
    int r = list_is_empty(&client->output) ? connection_send(client->fd, frame) : -EAGAIN;
    if (r == -EAGAIN) {
        keep_for_later(client, frame);
    } else if (r < 0 && r != -ETOOMANYREFS) {
        client_close(client, strerror(-r), false);
    }
    return r == -ETOOMANYREFS ? r : 0;
}

static void flush(struct client *client) {
    while (!list_is_empty(&client->output)) {
        struct unsent *unsent = container_of(client->output.next, struct unsent, link);
        int r = connection_send_bytes(client->fd, unsent->bytes, unsent->nbytes, unsent->fd);
        if (r == -EAGAIN) {
            return;
        }
        if (r < 0) {
            client_close(client, strerror(-r), false);
            return;
        }
        client->output_nbytes -= unsent->nbytes;
        unsent_free(unsent);
    }
    watch(client);
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

static void receive(struct client *client) {
    struct server *server = client->server;

    for (int i = 0; i < MESSAGES_PER_EVENT && client_is_connected(client); i++) {
        int fd;
        int n = connection_receive(client->fd, server->message, sizeof server->message, &fd);
        if (n == -EAGAIN) {
            return;
        }
        if (n == -EMSGSIZE || n == -EPROTO) {
            client_drop(client, n == -EMSGSIZE ? "a message is too long" : "too many descriptors");
            return;
        }
        if (n <= 0) {
            client_close(client, n == 0 ? "the connection ended" : strerror(-n), false);
            return;
        }
        if (fd >= 0) {
            close(fd);
        }
        dispatch_message(client, server->message, (size_t)n, fd != -1);
    }
}

static void on_event(uv_poll_t *poll, int status, int events) {
    struct client *client = poll->data;
    struct server *server = client->server;

    if (status < 0) {
        client_close(client, uv_strerror(status), false);
    }
    if (client_is_connected(client) && (events & UV_WRITABLE)) {
        flush(client);
    }
    if (client_is_connected(client) && (events & UV_READABLE)) {
        receive(client);
    }
    if (client_is_connected(client) && client->is_leaving && list_is_empty(&client->output)) {
        client_close(client, "refused", false);
    }
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

struct client *client_open(struct server *server, int fd, const char *refused) {
    struct client *client = calloc(1, sizeof *client);
    uv_poll_t *poll = malloc(sizeof *poll);

    if (!client || !poll || uv_poll_init(server->worker.loop, poll, fd) != 0) {
        log_error("event=client.open error=\"no memory\"");
        free(client);
        free(poll);
        close(fd);
        return NULL;
    }
    poll->data = client;
    client->poll = poll;
    client->fd = fd;
    client->server = server;
    client->refused = refused;
    client->id = ++server->next_client;
    client->opened_ms = server_now(server);
    list_init(&client->output);
    list_init(&client->names);
    list_init(&client->parked);
    holds_init(&client->holds);
    list_append(&server->clients, &client->link);
    server->clients_count++;
    server->connected++;
    if (identify(client) < 0) {
        client_close(client, "its user is not known", true);
        return NULL;
    }
    watch(client);
    return client;
}
