/*
 * channel.h - a ring of messages in shared memory, its buffers, who participates, what its messages
 * refer to
 *
 * A channel is what its first JOIN made: a control block that all participants map (ring.h), and,
 * from its first message on, one storage that all buffers lie in. The block can be written by
 * everybody: what is known here for sure (shape, storage, seats, attachments) is in our own memory.
 * A queue lasts while it has an open handle or a message that nobody has received, a topic while it
 * has a handle; without its name also while somebody uses what a message referred to. What changes
 * a channel only marks it; channels_settle() sees what follows from that. Owned by the server;
 * knows storages, not clients or messages of the socket.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "list.h"
#include "ring.h"
#include "storage.h"
#include "table.h"
#include "tree.h"

struct participant;
struct attachment;

struct channel {
    struct tree_node by_name;  /* channels::names, while it has a name */
    struct list link;          /* channels::all, by id */
    struct list unsettled;     /* channels::unsettled, or itself */
    struct channels *channels; /* borrowed: owns us */
    struct account *account;   /* of whoever made it; it is charged */
    uint64_t id;
    struct ring ring;                /* our view of the control block, which is mapped */
    size_t nbytes;                   /* of it */
    int fd;                          /* owned: of it */
    struct storage *storage;         /* of the buffers: one reference of ours; NULL: no size yet */
    struct participant **seats;      /* owned: one for each member of the ring; borrowed or NULL */
    uint32_t seated;                 /* participants, */
    uint32_t open;                   /* and those of them that have not left */
    struct attachment **attachments; /* owned: one or NULL for each buffer; NULL: none yet */
    uint32_t attached;               /* how many there are */
    struct table standings;          /* of struct standing, by ref; owned */
    struct table by_sender;          /* those of them that may be sent, by sender and storage; */
    struct list held;                /* the same in a list, */
    struct list loose;               /* and the others: messages alone keep them */
    size_t name_nbytes;              /* 0: it was deleted */
    char name[];
};

struct channels {
    struct storages *storages; /* borrowed: outlives us */
    uint64_t max;
    struct tree names;     /* of struct channel */
    struct table by_id;    /* of struct channel; owned */
    struct list all;       /* the same, in order */
    struct list unsettled; /* of struct channel */
    uint64_t references;   /* of all messages to storages; at most storages::max */
    uint64_t next_id, next_ref;
};

/* `storages` and `max` are filled in by the caller. fini ends all channels: nobody participates any
 * more, and what clients use in the control blocks stays as it is. */
void channels_init(struct channels *channels);
void channels_fini(struct channels *channels);

/* Borrowed, until channels_settle(); NULL: there is none. */
struct channel *channels_find(const struct channels *channels, uint64_t id);
struct channel *channels_find_name(struct channels *channels, const char *name, size_t nbytes);

/* A new channel of a right shape, charged to `account`; it ends when it is settled, unless somebody
 * has joined. 0; -EDQUOT: there are `max` already; another negative errno: no control block is to
 * be had. */
int channel_create(struct channels *channels, struct account *account,
                   const struct ring_shape *shape, const char *name, size_t nbytes,
                   struct channel **ret_channel);

/* The bytes that a buffer of at least `nbytes` has. */
uint64_t channel_buffer_nbytes(uint64_t nbytes);

/* Gives a channel without buffers its storage, of which it takes a reference. */
void channel_size(struct channel *channel, struct storage *storage, uint64_t buffer_nbytes);

/* The device that its buffers are on; 0: the CPU, or there are none yet. */
static inline unsigned channel_device(const struct channel *channel) {
    return channel->storage ? channel->storage->device : 0;
}

/* Nobody is in, and nobody can join: it only keeps what messages referred to, for who has received
 * it. */
bool channel_is_over(const struct channel *channel);

/* Closes the channel, and takes its name. */
void channel_delete(struct channel *channel);

/* Messages that are not received yet, by the slowest; what the control block says, made sane. */
uint32_t channel_depth(const struct channel *channel);

/* Something has changed. */
void channel_touch(struct channel *channel);

/* Drops what messages referred to and nobody needs, frees seats, ends channels that nobody needs.
 */
void channels_settle(struct channels *channels);

/* Drops everywhere what nobody needs. Returns how many storages it was. */
uint64_t channels_sweep(struct channels *channels);
