/*
 * output.h - replies on their way to a client: sent, or kept until its socket takes them
 *
 * In order; a reply that is kept is copied, and its descriptor duplicated. Knows the socket, not
 * the client: who owns the output watches the socket while something is kept, and closes the
 * connection when it is told that a reply cannot be sent.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "connection.h"
#include "list.h"

struct output {
    struct list unsent;   /* owned, the oldest first */
    uint64_t nbytes, max; /* of these; how many may be kept */
    bool is_starved; /* the kernel has no memory for the next of them, whatever the socket says */
    unsigned descriptors; /* sent, and perhaps not received yet */
};

void output_init(struct output *output, uint64_t max);
void output_fini(struct output *output);

/* Sends on the socket `fd`, or keeps for later. A reply whose descriptor the kernel refuses to have
 * on its way becomes one with STATUS_SYSTEM, but for that of JOIN, which goes without. Returns why
 * the connection is to be closed; NULL: it is not. */
const char *output_send(struct output *output, int fd, const struct frame *frame);

/* Sends what was kept, as far as the socket takes it. Returns as output_send(). */
const char *output_flush(struct output *output, int fd);

/* Whether another descriptor may be sent, which then counts as sent: few of those before are still
 * unread. */
bool output_may_send_descriptor(struct output *output, int fd);

static inline bool output_is_empty(const struct output *output) {
    return list_is_empty(&output->unsent);
}
