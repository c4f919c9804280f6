#include "dispatch.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"
#include "call.h"
#include "log.h"
#include "step.h"

union reply {
#define CALL(NAME, name, opcode, state, request_tail, reply_tail, fds) \
    struct wire_##name##_reply name;
#define NOTE(NAME, name, opcode, state, tail, fds)
#include "messages.def"
#undef CALL
#undef NOTE
};

typedef int (*handler_fn)(struct call *call, union reply *reply);

#define CALL(NAME, name, opcode, state, request_tail, reply_tail, fds) \
    static int run_##name(struct call *call, union reply *reply) {     \
        return handle_##name(call, call->body, &reply->name);          \
    }
#define NOTE(NAME, name, opcode, state, tail, fds)                 \
    static int run_##name(struct call *call, union reply *reply) { \
        (void)reply;                                               \
        return handle_##name(call, call->body);                    \
    }
#include "messages.def"
#undef CALL
#undef NOTE

static const handler_fn handlers[] = {
#define CALL(NAME, name, opcode, state, request_tail, reply_tail, fds) [opcode] = run_##name,
#define NOTE(NAME, name, opcode, state, tail, fds)                     [opcode] = run_##name,
#include "messages.def"
#undef CALL
#undef NOTE
};

/* So that others need not wait long when many wait for the same. */
enum { CALLS_AT_ONCE = 512 };

/* ------------------------------------------------------------------------------- handlers' ends */

int call_fail(struct call *call, int status, const char *format, ...) {
    va_list args;

    va_start(args, format);
    vsnprintf(call->text, sizeof call->text, format, args);
    va_end(args);
    return status;
}

int call_no_books(struct call *call) {
    return call_fail(call, STATUS_INTERNAL, "the daemon has no memory for its own books");
}

int call_wait(struct call *call, struct waitlist *wait) {
    call->wait = wait;
    return CALL_WAITS;
}

void *call_add(struct call *call, size_t nbytes) {
    char *to = call->server->page + call->reply_tail_nbytes;
    size_t padded = bytes_round_up(nbytes, 8);

    if (padded > sizeof call->server->page - call->reply_tail_nbytes) {
        return NULL;
    }
    memset(to + nbytes, 0, padded - nbytes);
    call->reply_tail = call->server->page;
    call->reply_tail_nbytes += padded;
    return to;
}

int call_broken(struct call *call, const char *rule) {
    snprintf(call->text, sizeof call->text, "%s", rule);
    return CALL_BROKEN;
}

/* -------------------------------------------------------------------------------------- answers */

static struct frame frame_of(const struct call *call, int status) {
    return (struct frame){.header = {.opcode = call->rule->opcode,
                                     .request = call->request,
                                     .status = (uint32_t)status,
                                     .destroyed = server_destroyed(call->server)},
                          .fd = -1};
}

static void log_short(const struct call *call, const char *text) {
    char reason[WIRE_TEXT_MAX];

    log_warn("event=memory.short client=%llu pid=%d message=%s reason=%s",
             (unsigned long long)call->client->id, call->client->pid, call->rule->name,
             log_quote(text, strlen(text), reason, sizeof reason));
}

static void answer_error(const struct call *call, int status, const char *text) {
    struct frame frame = frame_of(call, status);

    if (status == STATUS_OUT_OF_MEMORY || status == STATUS_SYSTEM) {
        log_short(call, text);
    }
    frame.tail[0] = text;
    frame.tail_nbytes[0] = strnlen(text, WIRE_TEXT_MAX);
    client_send(call->client, &frame);
}

static void answer_ok(const struct call *call, const union reply *reply) {
    struct frame frame = frame_of(call, STATUS_OK);

    frame.fixed = reply;
    frame.fixed_nbytes = call->rule->reply_size;
    frame.tail[0] = call->reply_tail;
    frame.tail_nbytes[0] = call->reply_tail_nbytes;
    frame.fd = call->reply_fd;
    client_send(call->client, &frame);
    if (call->reply_fd_is_ours) {
        close(call->reply_fd);
    }
    REACHED(REPLY_SENT);
}

/* ---------------------------------------------------------------------------------------- calls */

static struct call call_of(struct client *client, const void *message, size_t nbytes) {
    const struct wire_header *header = message;
    const struct wire_rule *rule = wire_rule(header->opcode);
    const char *body = (const char *)message + sizeof *header;

    return (struct call){.server = client->server,
                         .client = client,
                         .rule = rule,
                         .request = header->request,
                         .body = body,
                         .tail = (const uint8_t *)body + rule->request_size,
                         .tail_nbytes = nbytes - sizeof *header - rule->request_size,
                         .request_fd = -1,
                         .reply_fd = -1};
}

static int handle(struct call *call, union reply *ret_reply) {
    memset(ret_reply, 0, sizeof *ret_reply); /* reserved fields, and nothing of ours in padding */
    return handlers[call->rule->opcode](call, ret_reply);
}

/* Nobody is refused for what is only waiting to be given back. */
static bool may_be_enough_now(const struct call *call, int status) {
    bool is_short =
        status == STATUS_LIMIT || status == STATUS_OUT_OF_MEMORY || status == STATUS_SYSTEM;

    return is_short && call->client->state == CLIENT_READY && server_make_room(call->server);
}

/* Runs the handler and answers. Returns CALL_WAITS, or anything else when the call is over. */
static int run(struct call *call) {
    union reply reply;
    int status = handle(call, &reply);

    if (may_be_enough_now(call, status)) {
        call->shortage = NULL;
        status = handle(call, &reply);
    }
    REACHED(REQUEST_HANDLED);
    if (status == CALL_BROKEN) {
        client_drop(call->client, call->text);
    } else if (status == STATUS_OK && call->rule->is_call) {
        answer_ok(call, &reply);
    } else if (status != CALL_WAITS && call->rule->is_call) {
        answer_error(call, status, call->text);
    }
    return status;
}

static void park(struct call *call, const void *message, size_t nbytes) {
    struct client *client = call->client;
    struct server *server = call->server;
    bool is_full = client->waiting >= server->options->max_waiting;
    struct parked *parked = is_full ? NULL : malloc(sizeof *parked + nbytes);

    if (!parked) {
        waitlist_check(call->wait);
        int status = is_full ? call_fail(call, STATUS_LIMIT,
                                         "%llu calls of this client wait already: the limit is "
                                         "--max-waiting",
                                         (unsigned long long)client->waiting)
                             : call_no_books(call);
        answer_error(call, status, call->text);
        return;
    }
    parked->client = client;
    parked->nbytes = nbytes;
    memcpy(parked->message, message, nbytes);
    list_append(&client->parked, &parked->link);
    waiter_wait(&parked->waiter, call->wait);
    client->waiting++;
    server->waiting++;
    REACHED(CALL_PARKED);
}

static void parked_free(struct parked *parked) {
    waiter_stop(&parked->waiter);
    list_remove(&parked->link);
    parked->client->waiting--;
    parked->client->server->waiting--;
    free(parked);
}

void dispatch_message(struct client *client, const void *message, size_t nbytes, size_t nfds,
                      int fd) {
    const struct wire_rule *rule = NULL;
    const char *broken = wire_check_request(message, nbytes, nfds, &rule);

    client->server->requests++;
    if (!broken && rule->state != (unsigned)client->state) {
        broken = client->state == CLIENT_NEW ? "the first message must be HELLO" : "HELLO again";
    }
    if (broken) {
        client_drop(client, broken);
        return;
    }
    struct call call = call_of(client, message, nbytes);
    call.request_fd = fd;
    log_debug("event=client.message client=%llu message=%s request=%u bytes=%zu",
              (unsigned long long)client->id, rule->name, call.request, nbytes);
    if (run(&call) == CALL_WAITS) {
        park(&call, message, nbytes);
    }
}

/* Runs a call again that has been taken out of the list it waited in. */
static void run_again(struct parked *parked, const struct shortage *shortage) {
    struct call call = call_of(parked->client, parked->message, parked->nbytes);

    /* Not among its client's calls meanwhile, so that it is freed once if its answer closes the
     * client. */
    list_remove(&parked->link);
    REACHED(CALL_RESUMED);
    call.shortage = shortage;
    if (run(&call) == CALL_WAITS) {
        list_append(&parked->client->parked, &parked->link);
        waiter_wait(&parked->waiter, call.wait);
    } else {
        parked_free(parked);
    }
}

void dispatch_ready(struct server *server) {
    struct list *link;

    if (server->ready_ms != server_now(server)) {
        server->ready_ms = server_now(server);
        server->ready_left = CALLS_AT_ONCE;
    }
    for (; server->ready_left > 0 && (link = list_pop(&server->ready)); server->ready_left--) {
        struct waiter *waiter = container_of(link, struct waiter, link);
        run_again(container_of(waiter, struct parked, waiter), NULL);
    }
}

void dispatch_shortage(void *server, struct segment *segment, const struct shortage *shortage) {
    struct list *waiters = &segment->waiters.waiters;

    (void)server;
    while (!list_is_empty(waiters)) {
        struct waiter *waiter = container_of(waiters->next, struct waiter, link);
        waiter_stop(waiter);
        run_again(container_of(waiter, struct parked, waiter), shortage);
    }
}

void dispatch_cancel(struct client *client, uint32_t request) {
    list_for_each (link, &client->parked) {
        struct parked *parked = container_of(link, struct parked, link);
        const struct wire_header *header = (const struct wire_header *)parked->message;
        if (header->request == request) {
            struct call call = call_of(client, parked->message, parked->nbytes);
            list_remove(&parked->link); /* as in run_again() */
            answer_error(&call, STATUS_CANCELLED, "the call was cancelled");
            parked_free(parked);
            REACHED(CALL_CANCELLED);
            return;
        }
    }
}

void dispatch_forget(struct client *client) {
    struct list *link;

    while ((link = list_pop(&client->parked))) {
        parked_free(container_of(link, struct parked, link));
    }
}
