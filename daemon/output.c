#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "codec.h"

enum { DESCRIPTORS_UNREAD_MAX = 64 };

/* Every message in a socket takes the kernel more than this. */
enum { UNREAD_MESSAGE_MIN = 512 };

/* A reply that the socket did not take yet. */
struct unsent {
    struct list link; /* output::unsent */
    size_t nbytes;
    int fd; /* owned; -1: none */
    char bytes[];
};

void output_init(struct output *output, uint64_t max) {
    *output = (struct output){.max = max};
    list_init(&output->unsent);
}

static void unsent_free(struct output *output, struct unsent *unsent) {
    output->nbytes -= unsent->nbytes;
    list_remove(&unsent->link);
    if (unsent->fd >= 0) {
        close(unsent->fd);
    }
    free(unsent);
}

void output_fini(struct output *output) {
    list_for_each (link, &output->unsent) {
        unsent_free(output, container_of(link, struct unsent, link));
    }
}

static const char *keep(struct output *output, const struct frame *frame) {
    size_t nbytes = frame_nbytes(frame);
    struct unsent *unsent = NULL;

    if (output->nbytes + nbytes <= output->max) {
        unsent = malloc(sizeof *unsent + nbytes);
    }
    if (!unsent) {
        return "does not read its replies (--max-output)";
    }
    unsent->nbytes = nbytes;
    unsent->fd = frame->fd < 0 ? -1 : fcntl(frame->fd, F_DUPFD_CLOEXEC, 0);
    frame_flatten(frame, unsent->bytes);
    list_append(&output->unsent, &unsent->link);
    output->nbytes += nbytes;
    return frame->fd >= 0 && unsent->fd < 0 ? "no descriptor left for a reply" : NULL;
}

/* Answers instead of a reply whose descriptor the kernel refuses to have on its way. */
static int send_refusal(int fd, const struct wire_header *header) {
    static const char text[] =
        "too many descriptors are on their way between this user's processes (the kernel's limit "
        "is RLIMIT_NOFILE): repeat the call";
    struct frame frame = {
        .header = *header, .tail = {text}, .tail_nbytes = {sizeof text - 1}, .fd = -1};

    frame.header.status = STATUS_SYSTEM;
    return connection_send(fd, &frame);
}

/* A reply that has given its client a seat must reach it, be it without the descriptor. */
static bool is_good_without(const struct wire_header *header) {
    return header->opcode == MESSAGE_JOIN;
}

/* Whether a send that ended with `r` is to be tried again: once the socket is writable, or after a
 * while. */
static bool is_for_later(struct output *output, int r) {
    output->is_starved = r == -ENOBUFS || r == -ENOMEM;
    return output->is_starved || r == -EAGAIN;
}

/* Nobody will read this reply. That is no reason to close: what the peer has sent before it ended,
 * as that it forked, is still to be read. */
static bool is_in_vain(int r) {
    return r == -EPIPE || r == -ECONNRESET;
}

const char *output_send(struct output *output, int fd, const struct frame *frame) {
    if (!output_is_empty(output)) {
        return keep(output, frame);
    }
    int r = connection_send(fd, frame);
    if (r == -ETOOMANYREFS) {
        struct frame bare = *frame;
        bare.fd = -1;
        r = is_good_without(&frame->header) ? connection_send(fd, &bare)
                                            : send_refusal(fd, &frame->header);
    }
    if (is_for_later(output, r)) {
        return keep(output, frame);
    }
    return r < 0 && !is_in_vain(r) ? strerror(-r) : NULL;
}

static int send_unsent(int fd, struct unsent *unsent) {
    struct wire_header header;
    int r = connection_send_bytes(fd, unsent->bytes, unsent->nbytes, unsent->fd);

    if (r != -ETOOMANYREFS) {
        return r;
    }
    memcpy(&header, unsent->bytes, sizeof header);
    if (!is_good_without(&header)) {
        return send_refusal(fd, &header);
    }
    header.nfds = 0; /* from now on, should it have to wait once more */
    memcpy(unsent->bytes, &header, sizeof header);
    close(unsent->fd);
    unsent->fd = -1;
    return connection_send_bytes(fd, unsent->bytes, unsent->nbytes, unsent->fd);
}

const char *output_flush(struct output *output, int fd) {
    list_for_each (link, &output->unsent) {
        struct unsent *unsent = container_of(link, struct unsent, link);
        int r = send_unsent(fd, unsent);
        if (is_for_later(output, r)) {
            break;
        }
        if (r < 0 && !is_in_vain(r)) {
            return strerror(-r);
        }
        unsent_free(output, unsent);
    }
    return NULL;
}

bool output_may_send_descriptor(struct output *output, int fd) {
    int unread;

    /* The kernel forgets a message some time after it was received, so a client that has read all
     * may still seem to have a few unread: what counts is how many these bytes can be at most. */
    if (output->descriptors >= DESCRIPTORS_UNREAD_MAX && output_is_empty(output) &&
        ioctl(fd, SIOCOUTQ, &unread) == 0 && unread / UNREAD_MESSAGE_MIN < DESCRIPTORS_UNREAD_MAX) {
        output->descriptors = (unsigned)(unread / UNREAD_MESSAGE_MIN);
    }
    if (output->descriptors >= DESCRIPTORS_UNREAD_MAX) {
        return false;
    }
    output->descriptors++;
    return true;
}
