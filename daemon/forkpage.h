/*
 * forkpage.h - what a client held when it forked stays until its children are done with it
 *
 * A client that is about to fork maps a page and sends it with its FORK note; the child inherits
 * the mapping. The page is closed when nobody has it mapped any more. What the client lets go
 * meanwhile is parked on the newest page, if it began before that one; when the page is closed,
 * what began after the next older page is free, in steps, and the rest moves on to that one, all at
 * once. Each client has one `struct forkpages`. Knows neither what it parks nor
 * messages: that is a node whose key tells after how many notes it began.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "heap.h"
#include "lifepage.h"
#include "list.h"

enum fork_kind { FORK_HOLD, FORK_BUFFER, FORK_KINDS }; /* hold.h, participant.h */

struct forkpage {
    struct lifepage page;
    struct list link;               /* forkpages::all */
    struct list closing;            /* forkpages::closing, or itself: it is open */
    struct forkpages *forks;        /* borrowed: owns us */
    uint64_t sequence;              /* of its FORK note */
    struct heap parked[FORK_KINDS]; /* those that began last come first */
};

struct forkpages {
    struct lifepages *pages; /* borrowed: outlives us */
    void (*freed)(struct forkpages *forks, enum fork_kind kind,
                  struct heap_node *node);   /* no page needs it any more */
    void (*closed)(struct forkpages *forks); /* a page is: there may be something to free */
    uint64_t max;                            /* of open pages */

    uint64_t noted;      /* FORK notes until now */
    struct list all;     /* of struct forkpage, the oldest first; owned */
    struct list closing; /* those of them that nobody has mapped any more, but that are not empty */
    uint64_t count;      /* of the open ones */

    uint64_t unwatched; /* the last note without a page, as if that were open until the process
                           ends; 0: none */
    struct heap until_end[FORK_KINDS]; /* parked for that */
    struct heap unneeded[FORK_KINDS];  /* parked for nothing any more */
};

/* `pages`, `freed`, `closed` and `max` are filled in by the caller. */
void forkpages_init(struct forkpages *forks);

/* A FORK note came, with a descriptor, which is borrowed, or -1. 0, or -EPROTO: it is not one of a
 * fork page. A page that cannot be watched, or is one too many, counts as none. */
int forkpages_note(struct forkpages *forks, int fd);

/* Parks `node`, unless no page needs it. Returns whether it is parked; heap_remove() ends that. */
int forkpages_park(struct forkpages *forks, enum fork_kind kind, struct heap_node *node);

/* Frees what nothing needs any more, some of it. Returns whether it is to be called again. */
bool forkpages_free_some(struct forkpages *forks);

/* The client's process is gone: nothing needs what waited for that, and no page did. */
void forkpages_process_gone(struct forkpages *forks);

/* Closes all pages at once. What they needed is still to be freed. */
void forkpages_fini(struct forkpages *forks);
