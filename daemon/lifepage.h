/*
 * lifepage.h - notices that a process is gone, by a page that only its mapping keeps alive
 *
 * A life page is a memfd of one page. We watch its inode by inotify, send its descriptor to the
 * client, which maps it, and close our own. When the last mapping is gone (exit, SIGKILL, exec) the
 * inode dies and inotify says so. Knows files only; the owner of a page is an opaque pointer.
 */
#pragma once

#include "table.h"

struct lifepages {
    int fd;                      /* owned: inotify; -1: not to be had, then there are no pages */
    struct table owners;         /* watch -> owner, borrowed */
    void (*closed)(void *owner); /* called once per page that is gone */
};

/* `closed` is filled in by the caller. Without inotify a warning is logged, and the socket alone
 * will decide. */
void lifepages_init(struct lifepages *pages);
void lifepages_fini(struct lifepages *pages);

/* Makes a page. *ret_fd is the caller's, to be sent and closed. Returns the watch (above 0), 0 when
 * pages are not to be had, or a negative errno (-EMFILE, -ENFILE, -ENOMEM): ask again later. */
int lifepage_open(struct lifepages *pages, void *owner, int *ret_fd);

/* Forgets a page: its owner will not be called. */
void lifepage_forget(struct lifepages *pages, int watch);

/* Reads what inotify has to say and calls `closed`. */
void lifepages_read(struct lifepages *pages);
