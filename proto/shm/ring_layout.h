/*
 * ring_layout.h - the control block of a channel, as participants and daemon share it
 *
 * One sealed memfd: struct ring_control, then members[P], entries[S] and descriptions[M]. Everybody
 * who maps it can write all of it, so nothing in it is believed: sizes come from the daemon's reply
 * (struct ring_shape), numbers are checked where they are used. All fields but the descriptions are
 * accessed by atomic operations only.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define RING_MAGIC  0x474e495258435431ull
#define RING_LAYOUT 1 /* version of this file */

#define RING_CAPACITY_MAX 512
#define RING_BUFFERS_MAX  896
#define RING_MEMBERS_MAX  1024
#define RING_MASK_WORDS   (RING_BUFFERS_MAX / 64)
#define RING_DESC_NBYTES  256
#define RING_ALIGN        128 /* two cache lines: they are fetched in pairs */

enum ring_flag {
    RING_TOPIC = 1,       /* each subscriber has a cursor; otherwise all readers share one */
    RING_DROP_OLDEST = 2, /* a full ring lets go of its oldest messages */
};

enum ring_state {
    RING_FREE = 0,
    RING_JOINED = 1,
    RING_SUBSCRIBED = 2, /* its cursor counts */
    RING_LEFT = 3,       /* what it holds stays held */
};

#define RING_ALIGNED __attribute__((aligned(RING_ALIGN)))

struct ring_control {
    /* This group is written by the daemon, before anybody joins; the last three also later. */
    uint64_t magic;
    uint32_t layout;
    uint32_t flags; /* enum ring_flag */
    uint32_t capacity;
    uint32_t buffers;
    uint32_t slots;
    uint32_t members;
    uint64_t buffer_nbytes;
    uint32_t members_used; /* members from here on have never been used */
    uint32_t watched;      /* the daemon waits for buffers to be released: tell it */

    uint32_t lock RING_ALIGNED; /* ring_lock.h */
    uint32_t closed;            /* anybody, without the lock; the rest its owner */
    uint64_t head;              /* number of the next message: storing it sends one */
    uint64_t floor;             /* messages below are dropped */
    uint64_t cursor;            /* a queue's: number of the next message to receive */

    uint32_t data_event RING_ALIGNED; /* ring_event.h: recv waits */
    uint32_t room_event;              /* send waits for room in the ring */
    uint32_t free_event;              /* loan waits for a free buffer */
};

/* One open handle. `client` and `state` are the daemon's but for subscribe and leave. */
struct ring_member {
    uint32_t client;
    uint32_t state;                 /* enum ring_state */
    uint64_t cursor;                /* a subscriber's; only it moves it, under the lock */
    uint64_t uses[RING_MASK_WORDS]; /* the buffers it writes or reads */
} RING_ALIGNED;

struct ring_entry {
    uint64_t number; /* of the message */
    uint32_t buffer;
    uint32_t cpu; /* 1 + where its sender ran, a hint; 0: not known */
};

_Static_assert(sizeof(struct ring_control) == 384, "layout");
_Static_assert(offsetof(struct ring_control, buffer_nbytes) == 32, "layout");
_Static_assert(offsetof(struct ring_control, members_used) == 40, "layout");
_Static_assert(offsetof(struct ring_control, watched) == 44, "layout");
_Static_assert(offsetof(struct ring_control, lock) == 128, "layout");
_Static_assert(offsetof(struct ring_control, head) == 136, "layout");
_Static_assert(offsetof(struct ring_control, floor) == 144, "layout");
_Static_assert(offsetof(struct ring_control, cursor) == 152, "layout");
_Static_assert(offsetof(struct ring_control, data_event) == 256, "layout");
_Static_assert(offsetof(struct ring_control, room_event) == 260, "layout");
_Static_assert(offsetof(struct ring_control, free_event) == 264, "layout");
_Static_assert(sizeof(struct ring_member) == 128, "layout");
_Static_assert(offsetof(struct ring_member, cursor) == 8, "layout");
_Static_assert(offsetof(struct ring_member, uses) == 16, "layout");
_Static_assert(sizeof(struct ring_entry) == 16, "layout");
