#include "call.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"
#include "outbox.h"
#include "seat.h"
#include "segment.h"
#include "step.h"
#include "storage.h"

/* How long the answer to a cancelled call is waited for. */
#define GRACE_NS NS_PER_S

/* --------------------------------------------------------------------------------- call records */

static struct call *find(struct session *session, uint32_t request) {
    struct call *call = session->calls;

    while (call && call->request != request) {
        call = call->next;
    }
    return call;
}

/* A new record with an id that no other has; 32 bits wrap around some day. */
static struct call *create(struct session *session, uint16_t opcode) {
    struct call *call = calloc(1, sizeof *call);
    pthread_condattr_t monotonic;

    if (!call) {
        return NULL;
    }
    do {
        session->last_request++;
    } while (session->last_request == 0 || find(session, session->last_request));
    call->request = session->last_request;
    call->opcode = opcode;
    call->fd = -1;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&call->answered, &monotonic);
    pthread_condattr_destroy(&monotonic);
    call->next = session->calls;
    session->calls = call;
    REACHED(CALL_ENTERED);
    return call;
}

static void close_descriptor(struct call *call) {
    if (call->fd >= 0) {
        close(call->fd);
    }
    call->fd = -1;
}

static void destroy(struct session *session, struct call *call) {
    struct call **link = &session->calls;

    while (*link != call) {
        link = &(*link)->next;
    }
    *link = call->next;
    close_descriptor(call);
    pthread_cond_destroy(&call->answered);
    free(call->body);
    free(call);
}

void call_free(struct session *session, struct call *call) {
    if (call) {
        session_lock(session);
        destroy(session, call);
        session_unlock(session);
    }
}

/* Whether a thread waits for another reply than that of `call`. */
static int others_wait(const struct session *session, const struct call *call) {
    for (const struct call *other = session->calls; other; other = other->next) {
        if (other != call && other->state == CALL_SENT) {
            return 1;
        }
    }
    return 0;
}

int calls_are_pending(const struct session *session) {
    return others_wait(session, NULL);
}

void calls_wake_all(struct session *session) {
    for (struct call *call = session->calls; call; call = call->next) {
        pthread_cond_signal(&call->answered);
    }
}

void calls_close_descriptors(struct session *session) {
    for (struct call *call = session->calls; call; call = call->next) {
        close_descriptor(call);
    }
}

void calls_destroy(struct session *session) {
    while (session->calls) {
        destroy(session, session->calls);
    }
}

const void *call_fixed(const struct call *call) {
    return call->body;
}

const void *call_tail(const struct call *call, size_t *ret_nbytes) {
    size_t fixed = wire_rule(call->opcode)->reply_size;

    *ret_nbytes = call->body_nbytes - fixed;
    return (const char *)call->body + fixed;
}

/* ------------------------------------------------------------------------------------ receiving */

/* Undoes a reply that nobody waits for. */
static void take_back(struct session *session, uint16_t opcode, const void *body, size_t nbytes) {
    size_t tail_nbytes = nbytes - wire_rule(opcode)->reply_size;
    const char *tail = (const char *)body + wire_rule(opcode)->reply_size;

    switch (opcode) {
    case MESSAGE_REDEEM:
        storage_put_off(session, ((const struct wire_redeem_reply *)body)->grant.storage);
        storages_return(session, body, 1);
        break;
    case MESSAGE_ALLOC:
    case MESSAGE_PUT:
    case MESSAGE_GET:
        storages_return(session, body, 1);
        break;
    case MESSAGE_HOLD:
    case MESSAGE_FETCH:
        storages_return(session, tail, tail_nbytes / sizeof(struct wire_grant));
        break;
    case MESSAGE_MAP:
        segment_undo_map(session, ((const struct wire_map_reply *)body)->segment);
        break;
    case MESSAGE_BUFFERS:
        seat_undo_grant(session, &((const struct wire_buffers_reply *)body)->grant);
        break;
    case MESSAGE_JOIN:
        seat_undo_join(session, body);
        break;
    case MESSAGE_ALIVE:
        segments_bury(session, tail, tail_nbytes);
        break;
    default:
        break;
    }
    REACHED(REPLY_TAKEN_BACK);
}

/* Hands a checked reply to its call. Takes `fd`. */
static void deliver(struct session *session, struct call *call, const struct wire_header *header,
                    int fd) {
    const void *body = header + 1;
    size_t nbytes = header->nbytes - sizeof *header;

    call->fd = fd;
    call->status = header->status;
    if (call->state == CALL_GIVEN_UP) {
        if (call->status == STATUS_OK) {
            take_back(session, call->opcode, body, nbytes);
        } else if (call->opcode == MESSAGE_ALIVE) {
            segments_bury(session, NULL, 0);
        }
        destroy(session, call);
        return;
    }
    call->body = malloc(nbytes + 1);
    if (call->body) {
        memcpy(call->body, body, nbytes);
        call->body_nbytes = nbytes;
    } else {
        if (call->status == STATUS_OK) {
            take_back(session, call->opcode, body, nbytes);
        }
        call->status = STATUS_OUT_OF_MEMORY;
    }
    call->state = CALL_ANSWERED;
    REACHED(REPLY_DELIVERED);
    pthread_cond_signal(&call->answered);
}

/* Looks at one received message; a daemon that breaks the protocol ends the session. */
static void accept_reply(struct session *session, size_t nbytes, int fd) {
    const struct wire_header *header = (const void *)session->received;
    const struct wire_rule *rule;
    struct call *call = NULL;
    const char *broken = wire_check_reply(header, nbytes, fd != -1, &rule);

    if (!broken) {
        call = find(session, header->request);
        if (!call || call->state == CALL_ANSWERED || call->opcode != header->opcode) {
            broken = "a reply to no call";
        }
    }
    if (broken) {
        if (fd >= 0) {
            close(fd);
        }
        session_die(session, "it broke the protocol: %s", broken);
        return;
    }
    segments_notice(session, header->destroyed);
    deliver(session, call, header, fd);
}

/* Takes in what has come, until the reply to `call` is there and nobody else waits. Lock held. */
static void receive(struct session *session, const struct call *call) {
    while (call->state == CALL_SENT || others_wait(session, call)) {
        int fd = -1;
        int n = connection_receive(session->socket, session->received, WIRE_MESSAGE_MAX, &fd);
        if (n > 0) {
            REACHED(REPLY_RECEIVED);
            accept_reply(session, (size_t)n, fd);
        } else if (n == 0 || n == -ECONNRESET) {
            session_die(session, "it has ended");
        } else if (n != -EAGAIN) {
            session_die(session, "receiving failed: %s", strerror(-n));
        }
        if (n == -EAGAIN || session->socket < 0) {
            return;
        }
    }
}

/* -------------------------------------------------------------------------------------- waiting */

/* Somebody must poll while anybody waits. */
static void wake_a_reader(struct session *session) {
    if (session->has_reader) {
        return;
    }
    for (struct call *call = session->calls; call; call = call->next) {
        if (call->state == CALL_SENT && call->sleeps) {
            pthread_cond_signal(&call->answered);
            return;
        }
    }
}

/* Polls the socket for all who wait, at most `ns`; where the kernel has no memory for a message, it
 * is asked again every millisecond. Returns false when a signal came. Lock held, given up
 * meanwhile. */
static int read_for_all(struct session *session, const struct call *call, int64_t ns) {
    int starves = session->outbox && session->is_starved;
    short events = session->outbox && !starves ? POLLIN | POLLOUT : POLLIN;
    struct pollfd poller = {.fd = session->socket, .events = events};
    struct timespec time = clock_timespec(starves && ns > NS_PER_MS ? NS_PER_MS : ns);

    session->has_reader = 1;
    session_unlock(session);
    int n = ppoll(&poller, 1, &time, NULL);
    int undisturbed = n >= 0 || errno != EINTR;
    session_lock(session);
    session->has_reader = 0;
    if (session_socket(session) >= 0 && (n > 0 || starves)) {
        receive(session, call);
        outbox_flush(session);
    }
    return undisturbed;
}

/* Sleeps until another thread, which polls, has our reply or gives up the role. (This unlocks
 * without a look at the released storages; the one who polls looks within a slice.) */
static void sleep_beside_reader(struct session *session, struct call *call, int64_t until) {
    struct timespec time = clock_timespec(until);

    call->sleeps = 1;
    pthread_cond_timedwait(&call->answered, &session->lock, &time);
    call->sleeps = 0;
}

static int interrupted(struct session *session) {
    const struct patience *patience = &session->patience;

    if (!patience->interrupt) {
        return 0;
    }
    wake_a_reader(session); /* the function may take its time */
    session_unlock(session);
    int stop = patience->interrupt(patience->context);
    session_lock(session);
    return stop;
}

/* The time is up. One last look: this process may have been stopped meanwhile, not the daemon. */
static int look_once_more(struct session *session, const struct call *call) {
    if (session_socket(session) >= 0) {
        receive(session, call);
    }
    return call->state == CALL_ANSWERED     ? STATUS_OK
           : atomic_load(&session->is_dead) ? STATUS_LOST
                                            : STATUS_TIMEOUT;
}

/* Waits for the reply until `deadline`. STATUS_OK (there is one), _LOST, _TIMEOUT, _INTERRUPTED.
 * Sets no error text. Lock held, given up meanwhile. */
static int await(struct session *session, struct call *call, int64_t deadline) {
    int64_t look = clock_after(SLICE_NS); /* when to look around */
    int r = STATUS_OK;

    /* Where both share a core the reply is mostly there when the send returns. */
    if (!session->has_reader && session->socket >= 0) {
        receive(session, call);
    }
    while (r == STATUS_OK && call->state == CALL_SENT) {
        int64_t now = clock_now();
        int64_t until = look < deadline ? look : deadline;
        int undisturbed = 1;
        if (atomic_load(&session->is_dead)) {
            r = STATUS_LOST;
        } else if (now >= deadline) {
            r = look_once_more(session, call);
        } else if (session->has_reader) {
            sleep_beside_reader(session, call, until);
        } else {
            undisturbed = read_for_all(session, call, until > now ? until - now : 0);
        }
        if (r == STATUS_OK && call->state == CALL_SENT && (!undisturbed || clock_now() >= look)) {
            r = interrupted(session) ? STATUS_INTERRUPTED : STATUS_OK;
            look = clock_after(SLICE_NS);
        }
    }
    wake_a_reader(session);
    return r;
}

/* ---------------------------------------------------------------------------------------- calls */

/* Turns a finished wait into the caller's result. Lock held. */
static int finish(struct session *session, struct call *call, struct call **ret_call) {
    int r = (int)call->status;

    if (call->state == CALL_SENT) {
        r = session_error_lost(session);
    } else if (!status_is_known(r)) {
        r = error(STATUS_INTERNAL, "tensorcxd answered with a status that is unknown here: %d", r);
    } else if (r == STATUS_OK) {
        *ret_call = call;
        return STATUS_OK;
    } else if (call->body_nbytes == 0) {
        error_plain(r);
    } else {
        error(r, "%.*s", (int)call->body_nbytes, (const char *)call->body);
    }
    destroy(session, call);
    return r;
}

/* Nobody wants the reply any more, whether it has come or not. Lock held. */
static int give_up(struct session *session, struct call *call, int status) {
    if (call->state == CALL_SENT) {
        call->state = CALL_GIVEN_UP;
        REACHED(CALL_GIVEN_UP);
    } else {
        if (call->status == STATUS_OK) {
            take_back(session, call->opcode, call->body, call->body_nbytes);
        }
        destroy(session, call);
    }
    return error_plain(status);
}

static int error_silent(const struct session *session, int64_t waited_ns) {
    return error(STATUS_TIMEOUT,
                 "tensorcxd (pid %d) has not answered for %.3g s: is it stopped? (TENSORCX_TIMEOUT "
                 "sets how long to wait)",
                 (int)session->pid, (double)waited_ns / 1e9);
}

static int error_unsent(const struct session *session, const struct frame *frame, enum sent sent) {
    switch (sent) {
    case GONE:
        return session_error_lost(session);
    case TOO_LONG:
        return error(STATUS_SYSTEM,
                     "a message of %zu bytes does not fit the socket: raise net.core.wmem_max",
                     frame_nbytes(frame));
    default:
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
}

/* Sends the request of `frame` under a new id. Lock held. */
static int start(struct session *session, const struct frame *frame, struct call **ret_call) {
    struct frame numbered = *frame;
    struct call *call = create(session, frame->header.opcode);

    if (!call) {
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    numbered.header.request = call->request;
    enum sent sent = outbox_send(session, &numbered);
    if (sent != SENT) {
        destroy(session, call);
        return error_unsent(session, frame, sent);
    }
    REACHED(CALL_SENT);
    *ret_call = call;
    return STATUS_OK;
}

int call_run(struct session *session, const struct frame *frame, int64_t extra_ns,
             struct call **ret_call) {
    int64_t patience = session->patience.answer_ns;
    struct call *call;

    if (__builtin_add_overflow(patience, extra_ns, &patience)) {
        patience = FOREVER;
    }
    session_lock(session);
    int r = start(session, frame, &call);
    if (r == STATUS_OK) {
        r = await(session, call, clock_after(patience));
        if (r == STATUS_TIMEOUT) {
            give_up(session, call, r);
            error_silent(session, patience);
        } else if (r == STATUS_INTERRUPTED) {
            give_up(session, call, r);
        } else {
            r = finish(session, call, ret_call);
        }
    }
    session_unlock(session);
    return r;
}

static void cancel(struct session *session, const struct call *call) {
    struct wire_cancel fixed = {.request = call->request};
    struct frame frame = REQUEST(CANCEL, &fixed);

    call_note(session, &frame);
    REACHED(CANCEL_SENT);
}

int call_run_until(struct session *session, const struct frame *frame, int64_t timeout_ns,
                   struct call **ret_call) {
    struct call *call;

    session_lock(session);
    int r = start(session, frame, &call);
    if (r == STATUS_OK) {
        r = await(session, call, clock_after(timeout_ns));
        if (r == STATUS_TIMEOUT || r == STATUS_INTERRUPTED) {
            cancel(session, call);
        }
        if (r == STATUS_TIMEOUT) {
            r = await(session, call, clock_after(GRACE_NS));
        }
        if (r == STATUS_TIMEOUT || r == STATUS_INTERRUPTED) {
            give_up(session, call, r);
        } else {
            r = finish(session, call, ret_call);
        }
    }
    session_unlock(session);
    return r == STATUS_CANCELLED ? error_plain(STATUS_TIMEOUT) : r;
}

int call_await_end(struct session *session) {
    session_lock(session);
    struct call *call = create(session, 0); /* no reply can fit it */
    int r = call ? await(session, call, clock_after(session->patience.answer_ns))
                 : error_plain(STATUS_OUT_OF_MEMORY);
    if (call) {
        destroy(session, call);
    }
    if (r == STATUS_TIMEOUT) {
        error_silent(session, session->patience.answer_ns);
    } else if (r == STATUS_INTERRUPTED) {
        error_plain(r);
    }
    session_unlock(session);
    return r == STATUS_LOST ? STATUS_OK : r;
}

void call_note(struct session *session, const struct frame *frame) {
    outbox_send(session, frame);
}

int call_detach(struct session *session, const struct frame *frame) {
    struct frame numbered = *frame;
    struct call *call = create(session, frame->header.opcode);

    if (!call) {
        return 0;
    }
    call->state = CALL_GIVEN_UP;
    numbered.header.request = call->request;
    if (outbox_send(session, &numbered) != SENT) {
        destroy(session, call);
        return 0;
    }
    return 1;
}
