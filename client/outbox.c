#include "outbox.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "codec.h"
#include "session.h"
#include "step.h"

/* A message the socket did not take. */
struct queued {
    struct queued *next; /* owned: session::outbox */
    size_t nbytes;
    size_t capacity; /* of `bytes` */
    int fd;          /* owned: comes with it; -1: none */
    _Alignas(struct wire_header) char bytes[];
};

/* A queued RELEASE has room for those that follow it. */
#define RELEASE_ROOM (256 * sizeof(struct wire_returned))

/* Appends a RELEASE to the last message, if that is one, too, and has room: so that what a program
 * frees while the daemon is slow takes few messages. */
static int merge(struct session *session, const struct frame *frame) {
    struct queued *last = session->outbox_last;
    struct wire_header *header = last ? (struct wire_header *)(void *)last->bytes : NULL;

    if (!last || frame->header.opcode != MESSAGE_RELEASE || header->opcode != MESSAGE_RELEASE ||
        frame->tail_nbytes[0] > last->capacity - last->nbytes) {
        return 0;
    }
    memcpy(last->bytes + last->nbytes, frame->tail[0], frame->tail_nbytes[0]);
    last->nbytes += frame->tail_nbytes[0];
    header->nbytes = (uint32_t)last->nbytes;
    return 1;
}

/* Whether a DONE says what the last message will say, too: that the daemon is to look. */
static int repeats(const struct session *session, const struct frame *frame) {
    const struct queued *last = session->outbox_last;
    const struct wire_header *header = last ? (const void *)last->bytes : NULL;

    return last && frame->header.opcode == MESSAGE_DONE && header->opcode == MESSAGE_DONE &&
           ((const struct wire_done *)(const void *)(header + 1))->channel ==
               ((const struct wire_done *)frame->fixed)->channel;
}

static void close_descriptor(int fd) {
    if (fd >= 0) {
        close(fd);
    }
}

static enum sent enqueue(struct session *session, const struct frame *frame) {
    size_t nbytes = frame_nbytes(frame);
    size_t capacity = nbytes + (frame->header.opcode == MESSAGE_RELEASE ? RELEASE_ROOM : 0);

    if (merge(session, frame) || repeats(session, frame)) {
        return SENT;
    }
    struct queued *queued = malloc(sizeof *queued + capacity);
    if (!queued) {
        close_descriptor(frame->fd);
        return NO_MEMORY;
    }
    queued->fd = frame->fd;
    queued->next = NULL;
    queued->nbytes = nbytes;
    queued->capacity = capacity;
    frame_flatten(frame, queued->bytes);
    *(session->outbox_last ? &session->outbox_last->next : &session->outbox) = queued;
    session->outbox_last = queued;
    REACHED(MESSAGE_QUEUED);
    return SENT;
}

static void dequeue(struct session *session) {
    struct queued *first = session->outbox;

    session->outbox = first->next;
    if (!session->outbox) {
        session->outbox_last = NULL;
    }
    close_descriptor(first->fd);
    free(first);
}

/* What a negative errno from sending means. */
static enum sent after_send(struct session *session, int r) {
    session->is_starved = r == -ENOBUFS || r == -ENOMEM || r == -ETOOMANYREFS;
    switch (r) {
    case 0:
        return SENT;
    case -EAGAIN:
    case -ENOBUFS:
    case -ENOMEM:
    case -ETOOMANYREFS: /* this user's descriptors that nobody has received yet */
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
        const struct queued *first = session->outbox;
        int socket = session_socket(session);
        if (socket < 0) {
            return;
        }
        int r = connection_send_bytes(socket, first->bytes, first->nbytes, first->fd);
        if (after_send(session, r) != SENT) {
            return;
        }
        REACHED(QUEUED_SENT);
        dequeue(session);
    }
}

enum sent outbox_send(struct session *session, const struct frame *frame) {
    enum sent sent = LATER;

    outbox_flush(session);
    int socket = session_socket(session);
    if (socket < 0) {
        sent = GONE;
    } else if (!session->outbox) {
        sent = after_send(session, connection_send(socket, frame));
    }
    if (sent == LATER) {
        return enqueue(session, frame);
    }
    close_descriptor(frame->fd);
    return sent;
}

void outbox_destroy(struct session *session) {
    while (session->outbox) {
        dequeue(session);
    }
}
