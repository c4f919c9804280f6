/*
 * channel_list.c - the channels that the daemon has
 */
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "client.h"
#include "device_list.h"
#include "error.h"

/* The rest of a page. */
struct rest {
    const char *at;
    size_t nbytes;
};

/* The next `nbytes`; NULL: there are not so many. */
static const char *take(struct rest *rest, size_t nbytes) {
    const char *at = rest->at;

    if (nbytes > rest->nbytes) {
        return NULL;
    }
    rest->at += nbytes;
    rest->nbytes -= nbytes;
    return at;
}

static int error_short(void) {
    return error(STATUS_INTERNAL, "tensorcxd sent a list that is cut short");
}

/* *ret_participants is the caller's. */
static int take_participants(struct rest *rest, uint32_t count,
                             tcx_participant_t **ret_participants) {
    const char *from = take(rest, count * sizeof(struct wire_participant));

    if (!from) {
        return error_short();
    }
    tcx_participant_t *participants = calloc(count + 1, sizeof *participants);
    if (!participants) {
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    for (uint32_t i = 0; i < count; i++) {
        struct wire_participant wire;
        memcpy(&wire, from + i * sizeof wire, sizeof wire);
        participants[i] = (tcx_participant_t){
            .client = wire.client,
            .is_open = !wire.left,
            .buffers = wire.holds,
            .behind = wire.behind,
        };
    }
    *ret_participants = participants;
    return STATUS_OK;
}

/* Reports the channel at the beginning of `rest`. *ret_stop: what `fn` returned. */
static int report(struct session *session, struct rest *rest, tcx_channel_fn fn, void *context,
                  uint64_t *ret_id, int *ret_stop) {
    tcx_participant_t *participants = NULL;
    struct wire_channel wire;
    char name[WIRE_NAME_MAX + 1];
    const char *from = take(rest, sizeof wire);

    if (!from) {
        return error_short();
    }
    memcpy(&wire, from, sizeof wire);
    if (wire.name_nbytes > WIRE_NAME_MAX ||
        !(from = take(rest, wire.name_nbytes + (-wire.name_nbytes & 7)))) {
        return error_short();
    }
    memcpy(name, from, wire.name_nbytes);
    name[wire.name_nbytes] = '\0';
    int r = take_participants(rest, wire.count, &participants);
    if (r != STATUS_OK) {
        return r;
    }
    tcx_channel_entry_t entry = {
        .name = name,
        .flags = wire.flags,
        .capacity = wire.capacity,
        .buffers = wire.buffers,
        .participants = wire.participants,
        .device = device_name_of_index(session, wire.device),
        .buffer_nbytes = wire.buffer_nbytes,
        .messages = wire.messages,
        .depth = wire.depth,
        .is_closed = wire.closed != 0,
        .seated = participants,
        .seated_count = wire.count,
    };
    *ret_id = wire.channel;
    *ret_stop = fn(context, &entry);
    free(participants);
    return STATUS_OK;
}

/* Asks for the channels after *after and reports them. */
static int report_page(struct session *session, uint64_t *after, tcx_channel_fn fn, void *context,
                       int *ret_more) {
    struct wire_channels fixed = {.after = *after};
    struct frame frame = REQUEST(CHANNELS, &fixed);
    struct call *call;
    struct rest rest;
    int stop = 0;
    int r = call_run(session, &frame, 0, &call);

    if (r != STATUS_OK) {
        return r;
    }
    const struct wire_channels_reply *reply = call_fixed(call);
    rest.at = call_tail(call, &rest.nbytes);
    for (uint32_t i = 0; r == STATUS_OK && !stop && i < reply->count; i++) {
        r = report(session, &rest, fn, context, after, &stop);
    }
    *ret_more = reply->more && !stop;
    if (r == STATUS_OK && *ret_more && *after <= fixed.after) {
        r = error(STATUS_INTERNAL, "tensorcxd sent a list that does not go on");
    }
    call_free(session, call);
    return r;
}

int tcx_channels(tcx_client_t *client, tcx_channel_fn fn, void *context) {
    struct session *session;
    uint64_t after = 0;
    int more = 1;
    int r = client_session(client, &session);

    if (r != STATUS_OK) {
        return r;
    }
    while (r == STATUS_OK && more) {
        r = report_page(session, &after, fn, context, &more);
    }
    session_unref(session);
    return r;
}
