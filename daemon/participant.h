/*
 * participant.h - a client's open handle of a channel: a seat at its ring
 *
 * A participant is open, then has left but may still use buffers, then its seat is free. When its
 * client forks, the buffers that it has received are its children's as well: they are *inherited*.
 * The client returns such a one to us, and when the client is gone it stays in use, until no fork
 * page needs it. Each client has one `struct participants`. Knows neither clients nor messages.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "channel.h"
#include "forkpage.h"
#include "hold.h"
#include "list.h"

/* A buffer that was in use when the client forked. */
struct inherited {
    struct heap_node parked;         /* with the client's fork pages; the key tells since when */
    struct participant *participant; /* NULL: this buffer is not inherited */
    bool is_parked;                  /* the client is done with it, its children may not be */
};

struct participant {
    struct list link;                  /* participants::all */
    struct participants *participants; /* borrowed: owns us */
    struct channel *channel;           /* borrowed: it lasts as long as we do */
    uint32_t slot;
    bool has_left;
    struct inherited inherited[]; /* one for each buffer */
};

struct participants {
    struct forkpages *forks;   /* borrowed, as the next: outlive us */
    const struct holds *holds; /* the client's */
    uint32_t client;           /* its number in control blocks: 1 to 2^31 - 1 */
    uint64_t max;
    struct list all; /* of struct participant; owned */
    uint64_t count;
};

/* `forks`, `holds`, `client` and `max` are filled in by the caller. fini frees what is left of
 * those that a participants_end() has ended. */
void participants_init(struct participants *participants);
void participants_fini(struct participants *participants);

/* Takes a seat. 0; -EDQUOT: the client has `max` already; -EBUSY: the channel has no free one;
 * -ENOMEM. */
int participant_join(struct participants *participants, struct channel *channel,
                     struct participant **ret_participant);

/* The client's participant in that seat, also one that has left; borrowed, or NULL. */
struct participant *participant_find(const struct participants *participants,
                                     const struct channel *channel, uint32_t slot);

/* Whether the client has any open one there. */
bool participants_are_in(const struct participants *participants, const struct channel *channel);

/* Its handle is closed. */
void participant_leave(struct participant *participant);

/* Its client is done with a buffer that its children may have. */
void participant_return(struct participant *participant, uint32_t buffer);

/* A FORK note came: what is in use now is inherited. */
void participants_note(struct participants *participants);

/* The client's process is gone. */
void participants_end(struct participants *participants);

/* No fork page needs the inherited buffer any more that `node`, its `parked`, belongs to. */
void participant_freed(struct heap_node *node);

/* Frees the seats of those who have left and use nothing any more. */
void participants_reap(struct channel *channel);

/* Frees a participant and its seat, whatever it uses. */
void participant_free(struct participant *participant);
