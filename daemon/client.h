/*
 * client.h - one connected process: its socket, its life page, what it holds and waits for
 *
 * A client is connected, or disconnected with its memory still mapped (its life page is open), or
 * ended, while what it held goes back in steps, or with children that still use it (fork pages are
 * open), or gone. client_close() is the only way out, for every reason. Owned by the server. What a
 * message means is dispatch's business.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "account.h"
#include "codec.h"
#include "connection.h"
#include "forkpage.h"
#include "hold.h"
#include "import.h"
#include "lifepage.h"
#include "list.h"
#include "output.h"
#include "participant.h"
#include "process.h"

struct server;
struct uv_poll_s;

enum client_state { CLIENT_NEW = WIRE_NEW, CLIENT_READY = WIRE_READY, CLIENT_ENDED, CLIENT_GONE };

struct client {
    struct list link;      /* server::clients, by id; once gone server::gone */
    struct list silent;    /* server::silent until it says HELLO */
    struct list returning; /* server::returning while what it or children had goes back */
    struct server *server; /* borrowed: owns us */
    uint64_t id;
    uint64_t opened_ms;
    pid_t pid;
    uid_t uid;
    enum client_state state;
    char program[WIRE_PROGRAM_MAX]; /* as the client says; clean text */
    size_t program_nbytes;
    const char *refused; /* static: why HELLO will be refused; NULL: it will not */
    bool is_leaving;     /* refused: to be closed when its output is sent */

    int fd;                 /* owned; -1: disconnected */
    struct uv_poll_s *poll; /* owned until closed, then by libuv */
    struct lifepage page;   /* not open: closed, or it never had one */
    struct process process; /* watched once it has mapped memory of a device */
    struct output output;   /* replies that the socket did not take yet */
    bool is_watched_for_room;

    struct account *account; /* owned together with what it made */
    struct forkpages forks;
    struct holds holds;
    struct imports imports;
    struct participants participants;
    struct list names;  /* of struct lease: names that end with this client */
    struct list parked; /* of struct parked: calls that wait */
    uint64_t waiting;   /* their number */
};

/* It has said HELLO: it is one of the daemon's clients now. */
void client_admit(struct client *client);

/* Takes a new connection over, also on failure. */
struct client *client_open(struct server *server, int fd, const char *refused);

/* Ends the connection, for `reason`. When its life page is closed too, and its process has ended if
 * it has memory of a device mapped, everything it held goes, now or with the fork pages that need
 * it; with `gone` all that counts as done. May be called at any time and again; the memory of
 * `client` stays valid until the loop is reached. */
void client_close(struct client *client, const char *reason, bool gone);

/* The peer broke the protocol: logs that and closes. */
void client_drop(struct client *client, const char *rule);

/* Sends, or keeps for later what the socket does not take now (output.h); may close the client. */
void client_send(struct client *client, const struct frame *frame);

/* Sends again what the kernel had no memory for. Returns when to call it again. */
uint64_t clients_resend(struct server *server, uint64_t now_ms);

/* Takes back some of what the ended had, and their children. Returns whether there is more. */
bool clients_return_some(struct server *server);

/* Takes back all of it. Returns whether there was anything. */
bool clients_return_all(struct server *server);

/* From now on it is gone only when its process is, all of it, unless it maps no memory of devices
 * any more. 0 or a negative errno. */
int client_watch_process(struct client *client);

/* output_may_send_descriptor() */
bool client_may_send_descriptor(struct client *client);

static inline bool client_is_connected(const struct client *client) {
    return client->fd >= 0;
}
