/*
 * channel_report.c - what a channel looks like, and who is in the way
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "channel.h"
#include "client.h"
#include "clock.h"
#include "daemon.h"
#include "device.h"
#include "error.h"
#include "storage.h"

enum { NAMED_MAX = 4 }; /* in a text */

/* A look at the ring. A seat that was the parent's takes no lock: it would be in the parent's name.
 */
static void look(const struct seat *seat, int is_locked, struct ring_holder *holders, size_t max,
                 struct ring_report *ret_report) {
    int takes_lock = !is_locked && !seat->session->is_parents;
    struct ring view = ring_view(&seat->ring, takes_lock ? seat->ring.client : 0);

    ring_report(&view, holders, max, ret_report);
}

static uint32_t count_state(const struct ring *ring, uint32_t state) {
    uint32_t count = 0;

    for (uint32_t m = 0; m < ring->shape.members; m++) {
        count += __atomic_load_n(&ring->members[m].state, __ATOMIC_ACQUIRE) == state;
    }
    return count;
}

void tcx_channel_info(tcx_channel_t *channel, tcx_channel_info_t *ret_info) {
    const struct seat *seat = atomic_load(&channel->seat);
    const struct storage *storage = seat_storage(seat);
    const struct ring *ring = &seat->ring;
    struct ring_report report;
    uint32_t readers = count_state(ring, RING_SUBSCRIBED);

    look(seat, 0, NULL, 0, &report);
    *ret_info = (tcx_channel_info_t){
        .name = channel->name,
        .flags = ring->shape.flags,
        .capacity = ring->shape.capacity,
        .buffers = ring->shape.buffers,
        .participants = ring->shape.members,
        .device = storage ? device_name(storage->device) : (tcx_device_t){0},
        .buffer_nbytes = report.buffer_nbytes,
        .nbytes = report.buffer_nbytes * ring->shape.buffers,
        .messages = report.sent,
        .depth = report.depth,
        .handles = readers + count_state(ring, RING_JOINED),
        .readers = readers,
        .missed = atomic_load(&seat->missed),
        .is_closed = report.closed != 0,
    };
}

/* -------------------------------------------------------------------------------------- holders */

/* Who a client of the daemon is. */
struct who {
    uint64_t client;
    int pid; /* 0: not found */
    char program[WIRE_PROGRAM_MAX + 1];
};

static int note_peer(void *context, const tcx_peer_t *peer) {
    struct who *who = context;

    if (peer->id != who->client) {
        return 0;
    }
    who->pid = peer->pid;
    snprintf(who->program, sizeof who->program, "%s", peer->program);
    return 1;
}

/* A daemon that does not answer at once is not waited for: the caller has waited. */
static struct who find_who(struct session *session, uint64_t client) {
    struct who who = {.client = client};

    daemon_peers(session, client - 1, NS_PER_S, note_peer, &who);
    return who;
}

/* A walk through the daemon's clients that reports their handles. */
struct walk {
    struct ring_holder *holders; /* owned; client 0: has been reported */
    size_t count;
    tcx_holder_fn fn;
    void *context;
    int stop;
};

static int report_peer(void *context, const tcx_peer_t *peer) {
    struct walk *walk = context;

    for (size_t i = 0; i < walk->count && !walk->stop; i++) {
        struct ring_holder *holder = &walk->holders[i];
        if (holder->client == peer->id) {
            tcx_holder_t known = {peer->id, peer->pid, peer->program, holder->holds,
                                  holder->behind};
            holder->client = 0;
            walk->stop = walk->fn(walk->context, &known);
        }
    }
    return walk->stop;
}

/* Those that the daemon does not name: what stands in the ring is anybody's to write. */
static void report_rest(struct walk *walk) {
    for (size_t i = 0; i < walk->count && !walk->stop; i++) {
        const struct ring_holder *holder = &walk->holders[i];
        if (holder->client > 0) {
            tcx_holder_t unknown = {holder->client, 0, "", holder->holds, holder->behind};
            walk->stop = walk->fn(walk->context, &unknown);
        }
    }
}

int tcx_channel_holders(tcx_channel_t *channel, tcx_holder_fn fn, void *context) {
    struct walk walk = {.fn = fn, .context = context};
    struct channel_call call;
    struct ring_report report;
    int r = channel_begin(&call, channel, CHANNEL_RECV, 0);

    if (r != STATUS_OK) {
        return r;
    }
    size_t max = call.seat->ring.shape.members;
    walk.holders = calloc(max, sizeof *walk.holders);
    if (!walk.holders) {
        r = error_plain(STATUS_OUT_OF_MEMORY);
    } else {
        look(call.seat, 0, walk.holders, max, &report);
        walk.count = report.nholders < max ? report.nholders : max;
        r = daemon_peers(call.seat->session, 0, 0, report_peer, &walk);
    }
    if (r == STATUS_OK) {
        report_rest(&walk);
    }
    free(walk.holders);
    channel_end(&call);
    return r;
}

/* ------------------------------------------------------------------------------------- timeouts */

struct text {
    char bytes[1024];
    size_t length;
};

static void add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct text *text, const char *format, ...) {
    va_list arguments;
    size_t room = sizeof text->bytes - text->length;

    va_start(arguments, format);
    int n = vsnprintf(text->bytes + text->length, room, format, arguments);
    va_end(arguments);
    text->length += n < 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1;
}

/* Whoever does not want to wait does not want the daemon to be asked. */
static void add_client(struct text *text, const struct channel_call *call, uint64_t client) {
    struct who who = {0};

    if (call->timeout > 0) {
        who = find_who(call->seat->session, client);
    }
    add(text, "client %llu", (unsigned long long)client);
    if (who.pid > 0) {
        add(text, " (pid %d, %s)", who.pid, who.program);
    }
    if (client == call->seat->session->id) {
        add(text, ", which is this one,");
    }
}

static void add_holders(struct text *text, const struct channel_call *call,
                        const struct ring_holder *holders, const struct ring_report *report) {
    uint32_t n = report->nholders < NAMED_MAX ? report->nholders : NAMED_MAX;
    const char *separator = ":";

    for (uint32_t i = 0; i < n; i++) {
        struct ring_holder holder = holders[i];
        if (call->has_buffer && holder.member == call->seat->ring.member && holder.holds > 0) {
            holder.holds--; /* is not in the way */
        }
        if (holder.holds == 0 && holder.behind == 0) {
            continue;
        }
        add(text, "%s ", separator);
        separator = ";";
        add_client(text, call, holder.client);
        if (holder.holds > 0) {
            add(text, " has %u buffers", holder.holds);
        }
        if (holder.behind > 0) {
            add(text, "%s has yet to receive %u messages", holder.holds ? " and" : "",
                holder.behind);
        }
    }
    if (report->nholders > n) {
        add(text, "; and %u more", report->nholders - n);
    }
}

static void add_why(struct text *text, const struct channel_call *call,
                    const struct ring_holder *holders, const struct ring_report *report) {
    const struct ring *ring = &call->seat->ring;

    if (report->lock_owner) {
        add(text, "the channel is locked by ");
        add_client(text, call, report->lock_owner);
        add(text, ": is it stopped?");
    } else if (call->verb == CHANNEL_RECV) {
        uint32_t handles = count_state(ring, RING_SUBSCRIBED) + count_state(ring, RING_JOINED);
        add(text, "there was no message (%u other handles are open)", handles ? handles - 1 : 0);
    } else {
        int is_full = call->verb == CHANNEL_SEND && report->depth >= ring->shape.capacity;
        add(text, "%s, %u of %u messages wait to be received",
            is_full ? "it is full"
                    : "no buffer is free (let received tensors go, or make it with more buffers=)",
            report->depth, ring->shape.capacity);
        add_holders(text, call, holders, report);
    }
}

int channel_error_timeout(const struct channel_call *call, int is_locked) {
    static const char *const verbs[] = {"loan", "send", "recv"};
    struct ring_holder holders[NAMED_MAX];
    struct ring_report report;
    struct text text = {.length = 0};

    look(call->seat, is_locked, holders, NAMED_MAX, &report);
    add(&text, "%s on %s \"%s\"", verbs[call->verb], channel_kind(call->channel),
        call->channel->name);
    if (call->timeout > 0) {
        add(&text, " for %.3g s", call->timeout);
    }
    add(&text, ": ");
    add_why(&text, call, holders, &report);
    return error(STATUS_TIMEOUT, "%s", text.bytes);
}
