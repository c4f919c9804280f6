/*
 * session.h - one connection to one daemon, and all memory that came through it
 *
 * Made by connect.c. Counted: by the client whose current one it is, by every storage that came
 * through it, and by every call that runs on it; so it outlives the client while tensors live. It
 * dies (once, for good) when the connection is lost, when the daemon breaks the protocol, when the
 * descriptor turns out not to be our socket any more, and in the child of a fork. What is mapped
 * stays mapped; in a child the fork page keeps it at the daemon.
 *
 * Lock rules. `lock` guards everything that is not constant or atomic. Nobody holds it while
 * waiting, copying, unmapping or calling a function of the application; sends do not block. Order:
 * README.md. Only session_unlock() unlocks: it is where storages that were let go meanwhile are
 * released.
 */
#pragma once

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "messages.h"
#include "path.h"

#define VERSION_TEXT_SIZE 64
#define KNOWN_STORAGES    64

/* How a call may be waited for. */
struct patience {
    int64_t answer_ns;
    int (*interrupt)(void *context); /* may be NULL */
    void *context;                   /* borrowed: the application's */
};

struct session {
    atomic_int refs;
    struct session *next; /* fork.c's list */
    uint64_t serial;      /* in that list */
    int forks;            /* references that fork() has at the moment; guarded by fork.c's lock */
    pthread_mutex_t lock;
    sem_t joins; /* how many more threads may join a channel at the moment */

    /* Constant once connected. */
    struct patience patience;
    char path[PATH_SIZE];
    char version[VERSION_TEXT_SIZE]; /* of the daemon */
    uint64_t id;                     /* ours at the daemon */
    _Atomic uint64_t boot_id;        /* the daemon's, one per life; 0: not greeted yet */
    pid_t pid;                       /* the daemon's, as this process sees it; 0 when unknown */

    /* The connection. */
    int socket; /* owned; -1 when dead */
    dev_t device;
    ino_t inode;        /* which file the descriptor must be */
    atomic_int is_dead; /* set under the lock, never reset */
    int is_parents;     /* from before fork(), living or dead; set in a fork's child, alone */
    int is_inherited;   /* likewise, and it was living then: may live on in the parent */
    int is_unreported;  /* died; the log does not know yet */
    char why[160];      /* it died */
    void *life_page;    /* owned mapping, one page; NULL: none */
    int lends_page;     /* life_page, to the child of the fork under way */
    void *fork_page;    /* owned mapping: of the fork under way, or the one that keeps what we have
                           inherited; NULL: none */

    /* outbox.c */
    struct queued *outbox;      /* owned: messages the socket did not take, oldest first */
    struct queued *outbox_last; /* borrowed; NULL: none */
    int is_starved;             /* the last send failed for want of the kernel's memory, not room:
                                   the socket is called writable all the same */
    int has_flusher;            /* flusher.c: a thread, with a reference, sends them */

    /* call.c */
    struct call *calls; /* owned */
    uint32_t last_request;
    int has_reader; /* a thread polls the socket */
    char *received; /* owned: WIRE_MESSAGE_MAX bytes */

    /* device_list.c */
    struct device_list *_Atomic devices; /* owned; NULL: not asked yet */

    /* reclaim.c */
    atomic_int is_watched; /* has segments on devices: reclaim.c has a reference */
    struct session *next_watched;

    /* segment.c */
    void *segments;         /* owned: tree of struct segment by id */
    struct segment *mapped; /* the same ones as a list */
    struct segment *doomed; /* owned: to be unmapped after the next unlock */
    uint64_t destroyed;     /* the daemon's counter, as last seen */
    uint64_t *asked;        /* owned: ids of the ALIVE under way, NULL: none is */
    size_t asked_count;
    int asks_again; /* the counter moved meanwhile */

    /* storage.c */
    void *by_id;                             /* tree of struct storage, not owned */
    void *by_address;                        /* the same ones that have bytes */
    struct storage *_Atomic released;        /* those whose count fell to 0, newest first */
    struct wire_grant known[KNOWN_STORAGES]; /* where the last ones are or were, by id */

    /* channel_buffer.c */
    struct channel_buffer *_Atomic spent; /* owned: those the daemon is yet to be told of */
    _Atomic uint64_t forked;              /* how often fork() has told the daemon */
};

/* A session without a socket, count 1. NULL: out of memory. */
struct session *session_create(const struct patience *patience, const char *path);

struct session *session_ref(struct session *session);
void session_unref(struct session *session); /* NULL is fine */

/* One more reference unless the last one is gone. */
int session_ref_if_alive(struct session *session);

void session_lock(struct session *session);

/* Caller holds a reference of its own. */
void session_unlock(struct session *session);

/* If the lock is free: releases what was let go. Never waits. */
void session_tidy(struct session *session);

/* Gives the session its connected socket. Takes it. Lock held. */
void session_attach(struct session *session, int socket);

/* The socket if it still is ours, else -1 and the session is dead. Lock held. */
int session_socket(struct session *session);

/* Ends the session: closes the socket and wakes everybody who waits. Lock held. */
void session_die(struct session *session, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* In the child of a fork: the parent's connection is not ours. Touches the parent's descriptors
 * only by closing our copies. Lock held. */
void session_leave_to_parent(struct session *session);

/* Unmaps the fork page, if there is one. Lock held. */
void session_drop_fork_page(struct session *session);

/* Whether its storages count as shared memory: not those of a connection that is lost, but those
 * that were inherited. */
int session_shares(const struct session *session);

/* The same after a look whether the daemon is still there, as far as can be told without asking it.
 * Never waits. */
int session_is_alive(struct session *session);

/* Sets this thread's error for a dead session. STATUS_LOST. */
int session_error_lost(const struct session *session);
