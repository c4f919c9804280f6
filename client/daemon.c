/*
 * daemon.c - asking the daemon about itself: stats, clients, stop
 */
#include <stdio.h>
#include <string.h>

#include "call.h"
#include "client.h"
#include "daemon.h"
#include "error.h"
#include "step.h"

int tcx_stats(tcx_client_t *client, tcx_stats_t *ret_stats) {
    struct wire_stats fixed = {0};
    struct frame frame = REQUEST(STATS, &fixed);
    struct session *session;
    struct call *call;
    int r = client_session(client, &session);

    if (r != STATUS_OK) {
        return r;
    }
    r = call_run(session, &frame, 0, &call);
    if (r == STATUS_OK) {
        const struct wire_stats_reply *reply = call_fixed(call);
#define STAT(name, text) ret_stats->name = reply->name;
#include "stats.def"
#undef STAT
        call_free(session, call);
    }
    session_unref(session);
    return r;
}

/* Reports the peer at `at`. Returns how many bytes it takes; 0: cut short. */
static size_t report(const char *at, size_t left, uint64_t self, tcx_peer_fn fn, void *context,
                     uint64_t *ret_id, int *ret_stop) {
    struct wire_client wire;
    char program[WIRE_PROGRAM_MAX + 1];

    if (left < sizeof wire) {
        return 0;
    }
    memcpy(&wire, at, sizeof wire);
    if (wire.program_nbytes > WIRE_PROGRAM_MAX || wire.program_nbytes > left - sizeof wire) {
        return 0;
    }
    snprintf(program, sizeof program, "%.*s", (int)wire.program_nbytes, at + sizeof wire);
    tcx_peer_t peer = {
        .id = wire.client,
        .pid = (int)wire.pid,
        .uid = (int)wire.uid,
        .program = program,
        .storages = wire.storages,
        .bytes = wire.bytes,
        .device_bytes = wire.device_bytes,
        .tickets = wire.tickets,
        .waiting = wire.waiting,
        .age = (double)wire.age_ms / 1e3,
        .connected = wire.connected != 0,
        .is_self = wire.client == self,
    };
    *ret_id = wire.client;
    *ret_stop = fn(context, &peer);

    size_t nbytes = sizeof wire + wire.program_nbytes;
    nbytes += -nbytes & 7;
    return nbytes < left ? nbytes : left;
}

/* Asks for the clients after *after and reports them. */
static int report_page(struct session *session, uint64_t *after, int64_t answer_ns, tcx_peer_fn fn,
                       void *context, int *ret_more) {
    struct wire_clients fixed = {.after = *after};
    struct frame frame = REQUEST(CLIENTS, &fixed);
    struct call *call;
    size_t left;
    int stop = 0;
    int64_t extra_ns = answer_ns ? answer_ns - session->patience.answer_ns : 0;
    int r = call_run(session, &frame, extra_ns < 0 ? extra_ns : 0, &call);

    if (r != STATUS_OK) {
        return r;
    }
    const struct wire_clients_reply *reply = call_fixed(call);
    const char *at = call_tail(call, &left);
    for (uint32_t i = 0; r == STATUS_OK && !stop && i < reply->count; i++) {
        size_t used = report(at, left, session->id, fn, context, after, &stop);
        if (used == 0) {
            r = error(STATUS_INTERNAL, "tensorcxd sent a list that is cut short");
        }
        at += used;
        left -= used;
    }
    *ret_more = reply->more && !stop;
    if (r == STATUS_OK && *ret_more && *after <= fixed.after) {
        r = error(STATUS_INTERNAL, "tensorcxd sent a list that does not go on");
    }
    call_free(session, call);
    return r;
}

int daemon_peers(struct session *session, uint64_t after, int64_t answer_ns, tcx_peer_fn fn,
                 void *context) {
    int more = 1;
    int r = STATUS_OK;

    while (r == STATUS_OK && more) {
        r = report_page(session, &after, answer_ns, fn, context, &more);
    }
    return r;
}

int tcx_clients(tcx_client_t *client, tcx_peer_fn fn, void *context) {
    struct session *session;
    int r = client_session(client, &session);

    if (r == STATUS_OK) {
        r = daemon_peers(session, 0, 0, fn, context);
        session_unref(session);
    }
    return r;
}

int tcx_stop(tcx_client_t *client) {
    struct wire_stop fixed = {0};
    struct frame frame = REQUEST(STOP, &fixed);
    struct session *session;
    struct call *call;
    int r = client_session_running(client, &session);

    if (r != STATUS_OK) {
        return r;
    }
    r = call_run(session, &frame, 0, &call);
    if (r == STATUS_OK) {
        call_free(session, call);
        REACHED(STOP_ANSWERED);
        r = call_await_end(session);
    }
    session_unref(session);
    return r;
}
