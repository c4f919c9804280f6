/*
 * store.h - where the bytes of segments live: a table of operations per kind of memory
 *
 * A store makes, fills, empties and closes segments; it keeps no books. Operations return 0 or a
 * negative errno. commit() and trim() may take long and are called on threads, each with one
 * segment at a time; the others are quick and called on the loop.
 */
#pragma once

#include <stdint.h>

struct store {
    const char *name;
    int backing; /* as in stats.def */

    /* Makes a segment of `nbytes` without memory behind it. *ret_fd is the caller's to close, and
     * what clients get. */
    int (*create)(uint64_t nbytes, int *ret_fd);

    /* Puts zeroed memory behind a part, so that touching it can never fail. -ENOSPC or -ENOMEM: no
     * room, and nothing more is behind it than before. */
    int (*commit)(int fd, uint64_t offset, uint64_t nbytes);

    /* Copies `nbytes` into the segment. */
    int (*write)(int fd, uint64_t offset, const void *bytes, uint64_t nbytes);

    /* Gives the memory of a part back, also if clients still map it. */
    int (*trim)(int fd, uint64_t offset, uint64_t nbytes);
};

extern const struct store store_posix; /* shm_open(), unlinked at once */
extern const struct store store_memfd; /* memfd, sealed against any change of size */
extern const struct store store_huge;  /* the same, of huge pages where the kernel has some */

/* The store for --backing=auto|posix|memfd. auto takes memfd when the kernel gives huge pages, or
 * when /dev/shm has less room than *capacity, and the log says so; posix lowers *capacity to that
 * room. */
const struct store *store_choose(const char *backing, uint64_t *capacity);
