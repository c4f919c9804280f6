/*
 * listen.h - the daemon's place in the file system: its lock and its socket
 *
 * Whoever holds the lock file serves, for as long as it lives. A socket left behind by a dead
 * daemon is replaced under the lock; anything else in its place is left alone.
 */
#pragma once

#include <sys/types.h>

#include "path.h"

struct listener {
    int fd;      /* owned; -1: closed */
    int lock_fd; /* owned; -1: none */
    char path[PATH_SIZE];
    dev_t dev; /* of the socket's file, */
    ino_t ino; /* to see whether the file is still ours */
};

enum { LISTEN_TEXT_SIZE = PATH_TEXT_SIZE };

/* Takes the lock, binds and listens at `path` (NULL: the default). Waits up to ten seconds for a
 * daemon that is ending. Returns an enum status with a text: STATUS_EXISTS when another daemon
 * answers there, and those of path.h. */
int listener_open(struct listener *listener, const char *path, char ret_text[LISTEN_TEXT_SIZE]);

/* Stops listening and removes the socket's file if it is still ours; the lock stays. */
void listener_close(struct listener *listener);

/* Gives up the lock. */
void listener_unlock(struct listener *listener);
