#include "outbox.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

/* A message the socket did not take. */
struct queued {
    struct queued *next; /* owned: session::outbox */
    size_t nbytes;
    char bytes[];
};

static enum sent enqueue(struct session *session, const struct frame *frame) {
    size_t nbytes = frame_nbytes(frame);
    struct queued *queued = malloc(sizeof *queued + nbytes);

    if (!queued) {
        return NO_MEMORY;
    }
    queued->next = NULL;
    queued->nbytes = nbytes;
    frame_flatten(frame, queued->bytes);
    *session->outbox_end = queued;
    session->outbox_end = &queued->next;
    return SENT;
}

static void dequeue(struct session *session) {
    struct queued *first = session->outbox;

    session->outbox = first->next;
    if (!session->outbox) {
        session->outbox_end = &session->outbox;
    }
    free(first);
}

/* What a negative errno from sending means. */
static enum sent after_send(struct session *session, int r) {
    switch (r) {
    case 0:
        return SENT;
    case -EAGAIN:
    case -ENOBUFS:
    case -ENOMEM:
        return LATER;
    case -EMSGSIZE:
        return TOO_LONG;
    case -EPIPE:
    case -ECONNRESET:
        session_die(session, "it has ended");
        return GONE;
    default:
        session_die(session, "sending failed: %s", strerror(-r));
        return GONE;
    }
}

void outbox_flush(struct session *session) {
    while (session->outbox) {
        int socket = session_socket(session);
        if (socket < 0) {
            return;
        }
        int r = connection_send_bytes(socket, session->outbox->bytes, session->outbox->nbytes, -1);
        if (after_send(session, r) != SENT) {
            return;
        }
        dequeue(session);
    }
}

enum sent outbox_send(struct session *session, const struct frame *frame) {
    outbox_flush(session);
    int socket = session_socket(session);
    if (socket < 0) {
        return GONE;
    }
    if (session->outbox) {
        return enqueue(session, frame);
    }
    enum sent sent = after_send(session, connection_send(socket, frame));
    return sent == LATER ? enqueue(session, frame) : sent;
}

void outbox_destroy(struct session *session) {
    while (session->outbox) {
        dequeue(session);
    }
}
