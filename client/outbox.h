/*
 * outbox.h - messages on their way to the daemon: sent at once, or kept in order until the socket
 * takes them
 *
 * Nothing here waits, and nothing sets an error text. Lock of the session held throughout.
 */
#pragma once

#include "connection.h"

struct session;

enum sent {
    SENT, /* or queued */
    LATER,
    TOO_LONG, /* for the socket's buffer */
    NO_MEMORY,
    GONE, /* the session is dead */
};

/* Sends a message after those that wait already, or queues a copy; a RELEASE may join one that is
 * queued, a DONE is not repeated. Takes frame->fd, also on failure. Never returns LATER. */
enum sent outbox_send(struct session *session, const struct frame *frame);

/* Sends what the socket takes by now. */
void outbox_flush(struct session *session);

void outbox_destroy(struct session *session);
