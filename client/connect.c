#include "connect.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "autostart.h"
#include "call.h"
#include "clock.h"
#include "error.h"
#include "log.h"
#include "name.h"
#include "step.h"
#include "tensorcx.h"

#define SOCKET_BUFFER (256 * 1024) /* a message must fit, whatever the system's default is */

#define CLOSED_RETRIES 10 /* with pauses of 1, 2, 4 ... ms, so about a second */
#define START_RETRIES  3  /* daemons that went away right after they were started */

/* How one attempt ended; failures set the error text. */
enum outcome { CONNECTED, NOBODY, BUSY, CLOSED, FAILED };

/* ----------------------------------------------------------------------------------- the socket */

static enum outcome after_connect(int number, const char *path, int *ret_status) {
    switch (number) {
    case ENOENT:
    case ECONNREFUSED:
        return NOBODY;
    case EAGAIN:
    case EINTR:
        return BUSY;
    case EACCES:
    case EPERM:
        *ret_status = error(STATUS_DENIED, "%s: %s (a daemon with --allow-uid lets other users in)",
                            path, strerror(number));
        return FAILED;
    case EPROTOTYPE:
        *ret_status = error(STATUS_UNAVAILABLE, "%s is the socket of another program", path);
        return FAILED;
    default:
        *ret_status = error_system(number, "%s", path);
        return FAILED;
    }
}

/* Makes the socket and connects it. Lock held: a fork must not find a socket without owner. */
static enum outcome open_socket(struct session *session, int *ret_status) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer = {0};
    socklen_t size = sizeof peer;
    int wanted = SOCKET_BUFFER;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0) {
        *ret_status = error_system(errno, "a socket cannot be made");
        return FAILED;
    }
    session_attach(session, fd);
    REACHED(SOCKET_MADE);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &wanted, sizeof wanted);
    memcpy(address.sun_path, session->path, sizeof address.sun_path);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        return after_connect(errno, session->path, ret_status);
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || !path_trusts(peer.uid)) {
        *ret_status =
            error(STATUS_DENIED,
                  "the daemon at %s runs as user %u, this process as user %u: it is not to be "
                  "trusted (TENSORCX_SOCKET can name another socket, TENSORCX_TRUST_UID=%u trusts "
                  "that user)",
                  session->path, (unsigned)peer.uid, (unsigned)geteuid(), (unsigned)peer.uid);
        return FAILED;
    }
    session->pid = peer.pid;
    REACHED(CONNECTED);
    return CONNECTED;
}

/* ---------------------------------------------------------------------------------------- HELLO */

/* Maps the life page: the daemon sees it go when this process ends, and not before. A child of a
 * fork must not keep it. Lock held. */
static int adopt_life_page(struct session *session, const struct call *call) {
    if (call->fd == FD_DROPPED) {
        return error_system(EMFILE, "tensorcxd's greeting cannot be received");
    }
    if (call->fd < 0) {
        return STATUS_OK; /* the daemon watches the socket alone */
    }
    void *address = mmap(NULL, WIRE_PAGE_NBYTES, PROT_READ, MAP_SHARED, call->fd, 0);
    if (address == MAP_FAILED) {
        return error_system(errno, "the life page cannot be mapped");
    }
    if (madvise(address, WIRE_PAGE_NBYTES, MADV_DONTFORK) != 0) {
        int number = errno;
        munmap(address, WIRE_PAGE_NBYTES);
        return error_system(number, "the life page cannot be kept from children");
    }
    session->life_page = address;
    REACHED(LIFE_PAGE_MAPPED);
    return STATUS_OK;
}

static int adopt_greeting(struct session *session, const struct call *call) {
    const struct wire_hello_reply *reply = call_fixed(call);
    size_t length;
    const char *version = call_tail(call, &length);

    if (reply->version < WIRE_VERSION_MIN || reply->version > WIRE_VERSION_MAX ||
        reply->layout != WIRE_LAYOUT) {
        return error(STATUS_VERSION,
                     "tensorcxd %.*s speaks protocol %u with layout %u, this library (%s) speaks "
                     "%d to %d with layout %d: upgrade the older one",
                     (int)length, version, reply->version, reply->layout, TCX_VERSION,
                     WIRE_VERSION_MIN, WIRE_VERSION_MAX, WIRE_LAYOUT);
    }
    session_lock(session);
    int r = adopt_life_page(session, call);
    session->id = reply->client;
    session->boot_id = reply->boot_id;
    if (session->pid == 0) { /* it lives in another pid namespace */
        session->pid = (pid_t)reply->pid;
    }
    snprintf(session->version, sizeof session->version, "%.*s", (int)length, version);
    REACHED(GREETED);
    session_unlock(session);
    return r;
}

static int greet(struct session *session) {
    const char *program = program_invocation_short_name;
    size_t length = strnlen(program, WIRE_PROGRAM_MAX);
    struct wire_hello fixed = {
        .magic = WIRE_MAGIC,
        .version_min = WIRE_VERSION_MIN,
        .version_max = WIRE_VERSION_MAX,
        .layout = WIRE_LAYOUT,
    };
    struct frame frame = REQUEST(HELLO, &fixed);
    struct call *call;

    frame.tail[0] = program;
    frame.tail_nbytes[0] = text_is_clean(program, length) ? length : 0;
    int r = call_run(session, &frame, 0, &call);
    if (r == STATUS_OK) {
        r = adopt_greeting(session, call);
        call_free(session, call);
    }
    return r;
}

/* ------------------------------------------------------------------------------------- attempts */

static enum outcome try_once(const char *path, const struct patience *patience,
                             struct session **ret_session, int *ret_status) {
    char text[PATH_TEXT_SIZE];
    int r = path_check(path, text);

    if (r == STATUS_NOT_FOUND) {
        return NOBODY;
    }
    if (r != STATUS_OK) {
        *ret_status = error(r, "%s", text);
        return FAILED;
    }
    struct session *session = session_create(patience, path);
    if (!session) {
        *ret_status = error_plain(STATUS_OUT_OF_MEMORY);
        return FAILED;
    }
    session_lock(session);
    enum outcome outcome = open_socket(session, ret_status);
    session_unlock(session);
    if (outcome == CONNECTED) {
        r = greet(session);
        *ret_status = r;
        outcome = r == STATUS_OK ? CONNECTED : r == STATUS_LOST ? CLOSED : FAILED;
    }
    if (outcome == CONNECTED) {
        *ret_session = session;
    } else {
        session_unref(session);
    }
    return outcome;
}

/* Sleeps a little. STATUS_OK or STATUS_INTERRUPTED. */
static int pause_for(const struct patience *patience, int ms) {
    poll(NULL, 0, ms);
    if (patience->interrupt && patience->interrupt(patience->context)) {
        return error_plain(STATUS_INTERRUPTED);
    }
    return STATUS_OK;
}

static int start_daemon(const char *path, const struct patience *patience, int autostarts,
                        int starts) {
    if (!autostarts) {
        return error(STATUS_UNAVAILABLE,
                     "no tensorcxd answers at %s, and this call does not start one (autostart is "
                     "off, or TENSORCX_AUTOSTART=0): tensorcxd --socket %s does",
                     path, path);
    }
    if (starts >= START_RETRIES) {
        return error(STATUS_UNAVAILABLE, "tensorcxd was started at %s %d times and is gone again",
                     path, starts);
    }
    return autostart_run(path, patience);
}

static int error_closed(const char *path) {
    char log[AUTOSTART_LOG_SIZE];

    autostart_print_log(path, log);
    return error(STATUS_UNAVAILABLE,
                 "tensorcxd at %s closes every connection before it greets: is it out of "
                 "descriptors? (its log says more: %s, if a client has started it)",
                 path, log);
}

int connect_session(const char *path, const struct patience *patience, int autostarts,
                    struct session **ret_session) {
    int64_t deadline = clock_after(patience->answer_ns);
    int starts = 0;
    int closed = 0;
    int r = STATUS_OK;

    while (r == STATUS_OK) {
        switch (try_once(path, patience, ret_session, &r)) {
        case CONNECTED:
            log_line("event=connection.open socket=%s pid=%d", path, (int)(*ret_session)->pid);
            return STATUS_OK;
        case NOBODY:
            r = start_daemon(path, patience, autostarts, starts++);
            break;
        case BUSY: /* its queue of new connections is full */
            r = clock_now() < deadline
                    ? pause_for(patience, 10)
                    : error(
                          STATUS_TIMEOUT,
                          "tensorcxd at %s has taken no new connection for %.3g s: is it stopped?",
                          path, (double)patience->answer_ns / 1e9);
            break;
        case CLOSED: /* a daemon that goes away; the next attempt finds another or none */
            r = closed < CLOSED_RETRIES ? pause_for(patience, 1 << closed++) : error_closed(path);
            break;
        case FAILED:
            break;
        }
    }
    return r;
}
