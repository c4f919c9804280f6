/*
 * dispatch.h - from received bytes to a handler, and back
 *
 * The one place that checks a message before a handler sees it, in the order of proto/README.md.
 * Keeps the calls that wait, and runs them again.
 */
#pragma once

#include <stddef.h>

#include "client.h"
#include "segment.h"

/* A call that waits: a copy of its message. */
struct parked {
    struct waiter waiter;
    struct list link;      /* client::parked */
    struct client *client; /* borrowed: it drops its parked calls when it is closed */
    size_t nbytes;
    _Alignas(8) char message[];
};

/* Handles one message of `nbytes` bytes, 8-aligned, which came with `nfds` descriptors; the first
 * is `fd`, borrowed, or -1: it could not be delivered. */
void dispatch_message(struct client *client, const void *message, size_t nbytes, size_t nfds,
                      int fd);

/* Runs calls on the server's list `ready` again, the first ones, and those that get ready by that.
 */
void dispatch_ready(struct server *server);

/* segments.failed: runs the calls that wait for `segment` again, to answer with this shortage. */
void dispatch_shortage(void *server, struct segment *segment, const struct shortage *shortage);

/* Answers one waiting call of `client` with STATUS_CANCELLED, if it still waits. */
void dispatch_cancel(struct client *client, uint32_t request);

/* Forgets what a closed client waits for. */
void dispatch_forget(struct client *client);
