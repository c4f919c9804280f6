/*
 * connection.h - one message to or from a SOCK_SEQPACKET socket, descriptors included
 *
 * The only file that knows cmsg. Never blocks and never raises SIGPIPE; the caller polls. Received
 * descriptors are close-on-exec.
 */
#pragma once

#include <stddef.h>

#include "messages.h"

/* A message about to be sent; everything is borrowed for the call. connection_send() fills in
 * header.nbytes and header.nfds. */
struct frame {
    struct wire_header header;
    const void *fixed;
    size_t fixed_nbytes;
    const void *tail[3]; /* concatenated; unused ones have size 0 */
    size_t tail_nbytes[3];
    int fd; /* -1: none */
};

/* Sends one message. 0 or a negative errno; -EAGAIN: the socket is full, nothing was sent. */
int connection_send(int socket, const struct frame *frame);

/* Sends one message that lies in one piece, header included. */
int connection_send_bytes(int socket, const void *bytes, size_t nbytes, int fd);

/* Copies the message of `frame` into one piece of exactly frame_nbytes(). */
size_t frame_nbytes(const struct frame *frame);
void frame_flatten(const struct frame *frame, void *ret_bytes);

#define FD_DROPPED (-2)

/* Receives one message into `bytes`, and at most one descriptor into *ret_fd, which the caller
 * owns; -1: none came; FD_DROPPED: one came and the kernel could not deliver it (this process or
 * the system has no free descriptor, or a security module refused). Returns the size, 0 at the end
 * of the connection (or for an empty message), or a negative errno: -EAGAIN nothing there,
 * -EMSGSIZE longer than `capacity`, -EPROTO more than one descriptor. Whatever arrived with
 * anything but a message is closed. */
int connection_receive(int socket, void *bytes, size_t capacity, int *ret_fd);

enum { CONNECTION_FDS_MAX = 253 }; /* the kernel sends no more in one message */

/* The same for who cannot risk to close a stranger's descriptors (that may block): hands all of
 * them over, whatever it returns. *ret_dropped: there were some that could not be delivered. */
int connection_receive_all(int socket, void *bytes, size_t capacity,
                           int ret_fds[CONNECTION_FDS_MAX], size_t *ret_nfds, int *ret_dropped);
