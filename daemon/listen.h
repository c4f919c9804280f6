/*
 * listen.h - the daemon's place in the file system: its lock and its socket
 *
 * Whoever holds the lock file serves, for as long as it lives. A socket left behind by a dead
 * daemon is replaced under the lock; anything else in its place is left alone.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "path.h"

struct listener {
    int fd;       /* owned; -1: closed */
    int lock_fd;  /* owned; -1: none */
    int watch_fd; /* owned: inotify on the socket's folder; -1: not to be had */
    char path[PATH_SIZE];
    dev_t dev;         /* of the socket's file, */
    ino_t ino;         /* to see whether the file is still ours */
    bool others;       /* other users may connect, too */
    bool is_inherited; /* the socket's file is another's, who keeps it: no lock, no watch */
};

enum { LISTEN_TEXT_SIZE = PATH_TEXT_SIZE };

/* Takes the lock, binds and listens at `path` (NULL: the default), where `others` than this user
 * can reach it if they are to. Waits up to ten seconds for a daemon that is ending. Returns an enum
 * status with a text: STATUS_EXISTS when another daemon answers there, and those of path.h. */
int listener_open(struct listener *listener, const char *path, bool others,
                  char ret_text[LISTEN_TEXT_SIZE]);

/* Serves the listening socket `fd` that a service manager has bound, and keeps: a second daemon
 * finds it served, so there is no lock. `fd` is taken over, also when it fails: STATUS_INVALID when
 * it is no listening SOCK_SEQPACKET Unix socket with a path. */
int listener_inherit(struct listener *listener, int fd, char ret_text[LISTEN_TEXT_SIZE]);

/* Stops listening and removes the socket's file if it is still ours; the lock stays. */
void listener_close(struct listener *listener);

/* Gives up the lock, and all that is left. */
void listener_unlock(struct listener *listener);

/* Whether the socket's file is still there; `watch_fd` becomes readable when it may not be, and
 * this reads it. */
int listener_is_whole(struct listener *listener);

/* The file has vanished (a cleaner, a logout): makes folder, lock and socket anew; `fd` and
 * `watch_fd` are new descriptors then. As listener_open(), without waiting; with STATUS_EXISTS
 * another daemon has taken the place. */
int listener_restore(struct listener *listener, char ret_text[LISTEN_TEXT_SIZE]);
