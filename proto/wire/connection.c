#include "connection.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PIECES = 5 };

union control {
    char bytes[CMSG_SPACE(CONNECTION_FDS_MAX * sizeof(int))];
    struct cmsghdr align;
};

static int send_pieces(int socket, struct iovec *pieces, size_t count, int fd) {
    union control control;
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count};

    if (fd >= 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof fd);
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    }
    for (;;) {
        if (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
            return 0;
        }
        if (errno != EINTR) {
            return -errno;
        }
    }
}

size_t frame_nbytes(const struct frame *frame) {
    return sizeof frame->header + frame->fixed_nbytes + frame->tail_nbytes[0] +
           frame->tail_nbytes[1] + frame->tail_nbytes[2];
}

/* The header as it goes over the wire. */
static struct wire_header frame_header(const struct frame *frame) {
    struct wire_header header = frame->header;

    header.nbytes = (uint32_t)frame_nbytes(frame);
    header.nfds = frame->fd >= 0;
    return header;
}

int connection_send(int socket, const struct frame *frame) {
    struct wire_header header = frame_header(frame);
    struct iovec pieces[PIECES] = {{&header, sizeof header}};
    size_t count = 1;

    if (frame->fixed_nbytes) {
        pieces[count++] = (struct iovec){(void *)frame->fixed, frame->fixed_nbytes};
    }
    for (size_t i = 0; i < 3; i++) {
        if (frame->tail_nbytes[i]) {
            pieces[count++] = (struct iovec){(void *)frame->tail[i], frame->tail_nbytes[i]};
        }
    }
    return send_pieces(socket, pieces, count, frame->fd);
}

int connection_send_bytes(int socket, const void *bytes, size_t nbytes, int fd) {
    struct iovec piece = {(void *)bytes, nbytes};

    return send_pieces(socket, &piece, 1, fd);
}

void frame_flatten(const struct frame *frame, void *ret_bytes) {
    struct wire_header header = frame_header(frame);
    char *to = ret_bytes;

    memcpy(to, &header, sizeof header);
    to += sizeof header;
    if (frame->fixed_nbytes) {
        memcpy(to, frame->fixed, frame->fixed_nbytes);
        to += frame->fixed_nbytes;
    }
    for (size_t i = 0; i < 3; i++) {
        if (frame->tail_nbytes[i]) {
            memcpy(to, frame->tail[i], frame->tail_nbytes[i]);
            to += frame->tail_nbytes[i];
        }
    }
}

/* Collects what SCM_RIGHTS brought. Returns how many. */
static size_t take_descriptors(struct msghdr *message, int ret_fds[CONNECTION_FDS_MAX]) {
    size_t count = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
            size_t nbytes = c->cmsg_len - CMSG_LEN(0);
            memcpy(ret_fds + count, CMSG_DATA(c), nbytes);
            count += nbytes / sizeof(int);
        }
    }
    return count;
}

int connection_receive_all(int socket, void *bytes, size_t capacity,
                           int ret_fds[CONNECTION_FDS_MAX], size_t *ret_nfds, int *ret_dropped) {
    union control control;
    struct iovec piece = {bytes, capacity};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control};
    ssize_t n;

    *ret_nfds = 0;
    do {
        n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return -errno;
    }
    *ret_nfds = take_descriptors(&message, ret_fds);
    *ret_dropped = (message.msg_flags & MSG_CTRUNC) != 0;
    return message.msg_flags & MSG_TRUNC ? -EMSGSIZE : (int)n;
}

int connection_receive(int socket, void *bytes, size_t capacity, int *ret_fd) {
    int fds[CONNECTION_FDS_MAX];
    size_t nfds;
    int dropped;
    int n = connection_receive_all(socket, bytes, capacity, fds, &nfds, &dropped);

    if (n > 0 && nfds <= 1) {
        *ret_fd = nfds ? fds[0] : dropped ? FD_DROPPED : -1;
        return n;
    }
    for (size_t i = 0; i < nfds; i++) {
        close(fds[i]);
    }
    return n > 0 ? -EPROTO : n;
}
