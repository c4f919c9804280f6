/*
 * channel.h - struct tcx_channel: a handle of a queue, of a topic, or of a subscription to one
 *
 * What a call does: channel_begin() finds the seat, the ring's operation is repeated while
 * channel_goes_on(), which also words what went wrong, channel_end().
 */
#pragma once

#include <stdatomic.h>

#include "ring.h"
#include "seat.h"
#include "tensorcx.h"

struct tcx_channel {
    struct tcx_client *client; /* borrowed */
    struct seat *_Atomic seat; /* counted */
    int is_reader;             /* a subscription */
    int is_latest;             /* that wants the newest only */
    int has_device;            /* its buffers are to be on `device`, if it has none yet */
    struct device *device;     /* NULL: the CPU */
    char name[];
};

enum channel_verb { CHANNEL_LOAN, CHANNEL_SEND, CHANNEL_RECV };

/* A call that runs on a handle. */
struct channel_call {
    struct tcx_channel *channel; /* borrowed */
    struct seat *seat;           /* borrowed: lasts as long as the call */
    enum channel_verb verb;      /* what the caller wants */
    double timeout;              /* as the caller gave it */
    int has_buffer;              /* of those in use one is what it sends */
    struct ring_wait wait;
};

/* STATUS_OK: channel_end() ends it. In the child of a fork it may have to join anew, which asks the
 * daemon. STATUS_CLOSED, STATUS_LOST, STATUS_INVALID (timeout); or as seat_join(). */
int channel_begin(struct channel_call *call, struct tcx_channel *channel, enum channel_verb verb,
                  double timeout);
void channel_end(struct channel_call *call);

/* The caller has a lock of its own: nothing is asked, no text is made. */
static inline int channel_is_at_once(const struct channel_call *call) {
    return call->wait.deadline_ns == RING_AT_ONCE;
}

/* After an operation of the ring: whether it is to be repeated; if not, *ret_status is the call's.
 * May call the application, and ask the daemon who is in the way. */
int channel_goes_on(const struct channel_call *call, enum ring_result result, int *ret_status);

/* Tells the daemon, which waits for that, that what messages referred to may be free. */
void channel_tell(const struct channel_call *call, uint32_t buffer);

/* channel_report.c: STATUS_TIMEOUT, and who is in the way. `is_locked`: somebody has the lock, who
 * is not waited for any longer. */
int channel_error_timeout(const struct channel_call *call, int is_locked);

const char *channel_kind(const struct tcx_channel *channel);
