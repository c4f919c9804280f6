/*
 * processes.h - a second process, and a socket to it
 */
#pragma once

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "fixture.h"

static int peer; /* the socket */

/* Runs `child` in a process of its own; call it before the driver is used. */
static inline pid_t given_peer(void (*child)(void)) {
    int pair[2];

    EXPECT_EQ(0, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
    pid_t pid = fork();
    peer = pair[pid == 0];
    close(pair[pid != 0]);
    if (pid == 0) {
        child();
        _exit(0);
    }
    return pid;
}

static inline void expect_peer_passes(pid_t pid) {
    int status;

    close(peer);
    EXPECT_EQ(pid, waitpid(pid, &status, 0));
    EXPECT_EQ(0, status);
}

/* Bytes, and a descriptor unless it is negative. */
static inline void say(const void *bytes, size_t nbytes, int fd) {
    char control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {(void *)bytes, nbytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    if (fd >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    EXPECT_EQ(nbytes, sendmsg(peer, &message, MSG_NOSIGNAL));
}

/* The descriptor that came with it, or -1. */
static inline int hear(void *bytes, size_t nbytes) {
    int fd = -1;
    char control[CMSG_SPACE(sizeof fd)];
    struct iovec part = {bytes, nbytes};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};

    EXPECT_EQ(nbytes, recvmsg(peer, &message, MSG_CMSG_CLOEXEC));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header) {
        memcpy(&fd, CMSG_DATA(header), sizeof fd);
    }
    return fd;
}
