#include "accept.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "bytes.h"
#include "client.h"
#include "log.h"
#include "poller.h"
#include "server.h"
#include "status.h"
#include "step.h"

enum { ACCEPTS_PER_EVENT = 64, REST_MS = 1000, NAP_MS = 20, RESTORE_MS = 1000, LOOK_MS = 10000 };

/* Connections that have not said HELLO: how many there may be, and how long one is safe. */
enum { SILENT_MIN = 16, SILENT_MAX = 4096, SILENT_MS = 1000 };

static void on_connection(uv_poll_t *poll, int status, int events);
static void on_folder(uv_poll_t *poll, int status, int events);

/* ------------------------------------------------------------------------------------- watching */

static uv_poll_t *watch(struct acceptor *acceptor, int fd, poller_event_t *callback) {
    return fd < 0 ? NULL : poller_create(acceptor->server->uv, fd, acceptor, callback);
}

static void unwatch(uv_poll_t **poll) {
    if (*poll) {
        poller_destroy(*poll);
        *poll = NULL;
    }
}

/* Without the folder a vanished socket is just noticed later. 0 or a negative errno. */
static int watch_all(struct acceptor *acceptor) {
    acceptor->connections = watch(acceptor, acceptor->listener.fd, on_connection);
    acceptor->folder = watch(acceptor, acceptor->listener.watch_fd, on_folder);
    return acceptor->connections ? 0 : -ENOMEM;
}

static void unwatch_all(struct acceptor *acceptor) {
    unwatch(&acceptor->connections);
    unwatch(&acceptor->folder);
}

/* Accepts nothing for a while. */
static void rest_until(struct acceptor *acceptor, uint64_t until_ms) {
    if (acceptor->connections) {
        uv_poll_stop(acceptor->connections);
    }
    acceptor->rest_until_ms = until_ms;
}

static void rest(struct acceptor *acceptor) {
    rest_until(acceptor, server_now(acceptor->server) + REST_MS);
}

static void resume(struct acceptor *acceptor) {
    acceptor->rest_until_ms = 0;
    acceptor->is_crowded = false;
    if (acceptor->connections &&
        poller_start(acceptor->connections, UV_READABLE, on_connection) < 0) {
        rest(acceptor);
    }
}

/* ------------------------------------------------------------------------------------ accepting */

static void open_reserve(struct acceptor *acceptor) {
    if (acceptor->reserve_fd < 0) {
        acceptor->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
}

/* Takes a connection in order to tell it why it cannot stay: one at a time, and while it is being
 * told (or until it has been silent for too long) no others are accepted. */
static void refuse(struct acceptor *acceptor, int fd, const char *reason) {
    log_warn("event=client.refused reason=\"%s\"", reason);
    rest(acceptor);
    acceptor->refused = client_open(acceptor->server, fd, reason);
}

void acceptor_refusal_done(struct acceptor *acceptor) {
    acceptor->refused = NULL;
    open_reserve(acceptor);
    resume(acceptor);
}

static int accept_one(struct acceptor *acceptor) {
    return accept4(acceptor->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

/* No descriptor is left: the reserve makes room for one connection. Returns whether there was one.
 */
static bool accept_with_reserve(struct acceptor *acceptor) {
    if (acceptor->reserve_fd >= 0) {
        close(acceptor->reserve_fd);
        acceptor->reserve_fd = -1;
    }
    int fd = accept_one(acceptor);
    if (fd >= 0) {
        refuse(acceptor, fd, "the daemon has no descriptor left: raise its RLIMIT_NOFILE");
        return true;
    }
    /* accept() wants a descriptor before it looks whether anybody is there. The one before may not
     * be closed yet. */
    if (errno != EAGAIN) {
        rest_until(acceptor, server_now(acceptor->server) + NAP_MS);
    }
    open_reserve(acceptor);
    return false;
}

/* Returns whether another connection may be accepted. If too many say nothing, the oldest gives
 * way; if that one is new, too, nothing is accepted until it has had its time. */
static bool make_room(struct acceptor *acceptor) {
    struct server *server = acceptor->server;

    if (server->silent_count < acceptor->silent_max) {
        return true;
    }
    struct client *oldest = container_of(server->silent.next, struct client, silent);
    uint64_t end_ms = oldest->opened_ms + SILENT_MS;
    if (end_ms > server_now(server)) {
        rest_until(acceptor, end_ms);
        acceptor->is_crowded = true;
        return false;
    }
    client_close(oldest, "says nothing", true);
    return true;
}

/* Returns whether there may be another connection to accept now. */
static bool accept_next(struct acceptor *acceptor) {
    int fd = accept_one(acceptor);

    if (fd >= 0) {
        REACHED(CONNECTION_ACCEPTED);
        client_open(acceptor->server, fd, NULL);
        return true;
    }
    switch (errno) {
    case EAGAIN:
        return false;
    case EINTR:
    case ECONNABORTED:
        return true;
    case EMFILE:
    case ENFILE:
        return accept_with_reserve(acceptor);
    default:
        log_error("event=server.accept error=\"%s\"", strerror(errno));
        rest(acceptor);
        return false;
    }
}

static void on_connection(uv_poll_t *poll, int status, int events) {
    struct acceptor *acceptor = poll->data;
    int left = ACCEPTS_PER_EVENT;

    (void)status;
    (void)events;
    while (left-- > 0 && !acceptor->rest_until_ms && make_room(acceptor) && accept_next(acceptor)) {
    }
    server_settle(acceptor->server);
}

/* ------------------------------------------------------------------------------------ restoring */

static void restore(struct acceptor *acceptor) {
    char text[LISTEN_TEXT_SIZE];

    unwatch_all(acceptor);
    int status = listener_restore(&acceptor->listener, text);
    if (status == STATUS_OK && watch_all(acceptor) < 0) {
        snprintf(text, sizeof text, "cannot watch %s: %s", acceptor->listener.path,
                 strerror(errno));
        status = STATUS_SYSTEM;
    }
    if (status == STATUS_OK) {
        log_warn("event=server.restore socket=%s", acceptor->listener.path);
        acceptor->restore_ms = 0;
        if (acceptor->rest_until_ms) {
            rest(acceptor);
        }
    } else if (status == STATUS_EXISTS) {
        log_warn("event=server.replaced socket=%s", acceptor->listener.path);
        acceptor->restore_ms = 0;
        acceptor->is_replaced = true;
    } else {
        if (!acceptor->restore_ms) {
            log_error("event=server.restore error=\"%s\"", text);
        }
        acceptor->restore_ms = server_now(acceptor->server) + RESTORE_MS;
    }
}

static void on_folder(uv_poll_t *poll, int status, int events) {
    struct acceptor *acceptor = poll->data;

    (void)status;
    (void)events;
    if (!listener_is_whole(&acceptor->listener)) {
        restore(acceptor);
    }
    server_settle(acceptor->server);
}

/* Looks at the socket's file from time to time while somebody may come for what is here: that its
 * file system was taken off, or a folder further up was moved, nobody tells. Returns when next. */
static uint64_t look(struct acceptor *acceptor, uint64_t now_ms) {
    if (server_is_idle(acceptor->server) || acceptor->restore_ms || acceptor->is_replaced ||
        acceptor->listener.is_inherited) {
        acceptor->look_ms = 0;
        return UINT64_MAX;
    }
    if (acceptor->look_ms && acceptor->look_ms <= now_ms &&
        !listener_is_whole(&acceptor->listener)) {
        restore(acceptor);
    }
    if (acceptor->look_ms <= now_ms) {
        acceptor->look_ms = now_ms + LOOK_MS;
    }
    return acceptor->look_ms;
}

uint64_t acceptor_do_due(struct acceptor *acceptor, uint64_t now_ms) {
    bool has_room = acceptor->is_crowded && acceptor->server->silent_count < acceptor->silent_max;

    if (acceptor->rest_until_ms && (acceptor->rest_until_ms <= now_ms || has_room)) {
        if (acceptor->refused) {
            client_close(acceptor->refused, "refused, and said nothing", true);
        } else {
            resume(acceptor);
        }
    }
    if (acceptor->restore_ms && acceptor->restore_ms <= now_ms) {
        restore(acceptor);
    }
    uint64_t rest_ms = acceptor->rest_until_ms ? acceptor->rest_until_ms : UINT64_MAX;
    uint64_t look_ms = look(acceptor, now_ms);
    uint64_t restore_ms = acceptor->restore_ms ? acceptor->restore_ms : UINT64_MAX;
    return bytes_least(rest_ms, bytes_least(look_ms, restore_ms));
}

int acceptor_start(struct acceptor *acceptor, struct server *server,
                   const struct listener *listener) {
    struct rlimit files;

    *acceptor = (struct acceptor){
        .server = server, .listener = *listener, .reserve_fd = -1, .silent_max = SILENT_MAX};
    /* Most descriptors are for clients and memory. */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur / 4 < SILENT_MAX) {
        acceptor->silent_max = files.rlim_cur / 4 > SILENT_MIN ? files.rlim_cur / 4 : SILENT_MIN;
    }
    open_reserve(acceptor);
    return watch_all(acceptor);
}

void acceptor_stop(struct acceptor *acceptor) {
    unwatch_all(acceptor);
    listener_close(&acceptor->listener);
}

void acceptor_fini(struct acceptor *acceptor) {
    if (acceptor->reserve_fd >= 0) {
        close(acceptor->reserve_fd);
    }
    listener_unlock(&acceptor->listener);
}
