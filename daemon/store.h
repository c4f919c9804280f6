/*
 * store.h - where the bytes of segments live: a table of operations per kind of memory
 *
 * A store makes, fills, empties and closes segments; it keeps no books. Operations return 0 or a
 * negative errno. commit() and trim() may take long and are called on threads, each with one
 * segment at a time; the others are quick and called on the loop.
 */
#pragma once

#include <stdint.h>

#include "messages.h"

/* What is behind a segment. */
struct backing {
    const struct store *store;       /* borrowed: outlives us */
    int fd;                          /* owned; what clients get; -1: none */
    uint64_t address;                /* CUDA memory that is ours to free; 0: none */
    uint8_t handle[WIRE_IPC_HANDLE]; /* what clients get of that */
    const char *call;                /* static: the driver's function that refused; NULL: none */
};

struct store {
    const char *name;
    int backing;        /* as in stats.def */
    uint16_t mapping;   /* enum wire_mapping */
    uint64_t unit;      /* segments are multiples of it */
    uint64_t step;      /* bytes that are committed at a time */
    uint64_t trim_step; /* and emptied */

    /* Makes a segment of `nbytes` without memory behind it; only `store` is filled in. */
    int (*create)(struct backing *backing, uint64_t nbytes);

    /* Puts zeroed memory behind a part, so that touching it can never fail. -ENOSPC or -ENOMEM: no
     * room, and nothing more is behind it than before. */
    int (*commit)(struct backing *backing, uint64_t offset, uint64_t nbytes);

    /* Copies `nbytes` into the segment. NULL: that cannot be done. */
    int (*write)(struct backing *backing, uint64_t offset, const void *bytes, uint64_t nbytes);

    /* Gives the memory of a part back, also if clients still map it. */
    int (*trim)(struct backing *backing, uint64_t offset, uint64_t nbytes);
};

/* Errors from here on are -(STORE_DRIVER + result) of the CUDA driver. */
enum { STORE_DRIVER = 1 << 16, STORE_TEXT_SIZE = 160 };

/* The words for a positive error of a store. */
const char *store_text(int error, char text[STORE_TEXT_SIZE]);

extern const struct store store_posix; /* files in /dev/shm that have no name */
extern const struct store store_memfd; /* memfd, sealed against any change of size */
extern const struct store store_huge;  /* the same, of huge pages where the kernel has some */

/* The store for --backing=auto|posix|memfd. auto takes memfd when the kernel gives huge pages, or
 * when /dev/shm has less room than *capacity, and the log says so; posix lowers *capacity to that
 * room. */
const struct store *store_choose(const char *backing, uint64_t *capacity);
