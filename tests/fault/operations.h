/*
 * operations.h - what the files of operations share
 *
 * operations.c is the program and has the operations on names, tickets and forks;
 * operations_channel.c those on queues and topics, operations_cuda.c those on a CUDA device;
 * operations_stall.c those on a daemon that does not answer;
 * operations_late.c is somebody else, who does something while an operation waits for it.
 * repertoire.py says what a new one needs.
 */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <tensorcx.h>

#define SMALL      3
#define LARGE      (2 << 20) /* a segment of its own, with the capacity that the tests give */
#define CHILD_DIED 100       /* beside tcx_status */
#define CHANNEL    "channel"

struct operation {
    const char *name;      /* NULL: the end of a list */
    void (*prepare)(void); /* may be NULL */
    int (*act)(void);
};

extern const struct operation stall_operations[];
extern const struct operation channel_operations[];
extern const struct operation cuda_operations[];

extern tcx_client_t *client; /* does the operation */
extern tcx_client_t *other;  /* sets the scene, and is gone: it would share its mappings */
extern tcx_tensor_t *kept;   /* mapped before, by `client`; stays readable whatever happens */
extern tcx_tensor_t *tensor; /* these two: what came of the operation */
extern tcx_bundle_t *bundle;
extern tcx_channel_t *channel;
extern char ticket[TCX_TICKET_MAX];
extern size_t ticket_nbytes;

extern int is_interrupted; /* whatever waits is to be given up */

extern const tcx_array_t large;
extern const tcx_array_t small;

/* What a preparation does must work, if not with a connection to a daemon that is gone. */
#define MUST(call)                                                       \
    do {                                                                 \
        int status_ = (call);                                            \
        if (status_ == TCX_LOST) {                                       \
            status_ = (call);                                            \
        }                                                                \
        if (status_ != TCX_OK) {                                         \
            fprintf(stderr, "%s: %d %s\n", #call, status_, tcx_error()); \
            exit(1);                                                     \
        }                                                                \
    } while (0)

tcx_client_t *open_client(void);
int is_intact(const tcx_tensor_t *large_one);

/* The channel CHANNEL, made anew, with the handle `channel` of `client`. */
void channel_have(const tcx_channel_options_t *wanted);
void channels_drop(void); /* closes all handles */

/* Somebody with a client of its own, who soon after late_begin() does `what` until it succeeds. */
void late_prepare(int (*what)(tcx_client_t *late));
void late_begin(void);
void late_end(void);
void late_clean(void);
