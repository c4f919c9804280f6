/*
 * lifepage.h - notices that nobody has a page mapped any more
 *
 * A life page is a memfd of one page that only its mappings keep alive. We watch its inode by
 * inotify and hold no descriptor of it. When the last mapping is gone (exit, SIGKILL, exec, munmap)
 * the inode dies and inotify says so. Some we make, and send to the client that maps them; others a
 * client has made and mapped. Knows files only; a page lies in its owner.
 */
#pragma once

#include <stdbool.h>

#include "table.h"

struct lifepage {
    int watch;                             /* 0: closed, or not to be watched */
    void (*closed)(struct lifepage *page); /* called once when the page is gone */
};

struct lifepages {
    int fd;             /* owned: inotify; -1: not to be had, then there are no pages */
    struct table pages; /* watch -> struct lifepage, borrowed */
    bool has_lost;      /* events, and could not find out yet whose */
    uint64_t retry_ms;  /* when to try that again */
};

/* Without inotify a warning is logged, and the socket alone will decide. */
void lifepages_init(struct lifepages *pages);
void lifepages_fini(struct lifepages *pages);

/* Makes a page and watches it; `closed` is filled in. *ret_fd is the caller's, to be sent and
 * closed; -1: pages are not to be had, and `page` is not open. 0 or a negative errno (-EMFILE,
 * -ENFILE, -ENOMEM): ask again later. */
int lifepage_open(struct lifepages *pages, struct lifepage *page, int *ret_fd);

/* Watches the page that `fd`, which is borrowed, belongs to; `closed` is filled in. Close `fd`
 * afterwards: if nobody has the page mapped any more, that is what ends it. 0; -EPROTO: it is no
 * memfd of 4,096 bytes, or one that is watched already; another negative errno: it cannot be
 * watched. */
int lifepage_adopt(struct lifepages *pages, struct lifepage *page, int fd);

/* Forgets a page, if it is open: `closed` will not be called. */
void lifepage_forget(struct lifepages *pages, struct lifepage *page);

/* Reads some of what inotify has to say and calls `closed`. Returns whether there may be more. */
bool lifepages_read(struct lifepages *pages);

/* Tries again what lifepages_read() had no memory or descriptor for. Returns when next. */
uint64_t lifepages_do_due(struct lifepages *pages, uint64_t now_ms);

static inline int lifepage_is_open(const struct lifepage *page) {
    return page->watch != 0;
}
