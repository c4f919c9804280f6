/*
 * waiter.h - who waits for a name or for memory
 *
 * A waiter is in one waitlist; when what it waits for happens it moves to the server's list
 * `ready`, and dispatch runs its request again. Knows neither requests nor clients.
 */
#pragma once

#include "list.h"

struct waitlist {
    struct list waiters;
    void (*emptied)(
        struct waitlist *); /* the last waiter gave up; may free the waitlist. NULL: - */
};

struct waiter {
    struct list link;    /* waitlist::waiters, or the list `ready` */
    struct waitlist *on; /* borrowed; NULL when ready */
};

void waitlist_init(struct waitlist *waitlist, void (*emptied)(struct waitlist *));

/* Tells a waitlist that may have been made in vain that nobody waits. */
void waitlist_check(struct waitlist *waitlist);

/* Moves all waiters to the end of `ready`. */
void waitlist_wake(struct waitlist *waitlist, struct list *ready);

void waiter_wait(struct waiter *waiter, struct waitlist *on);

/* Takes the waiter out of whatever list it is in. */
void waiter_stop(struct waiter *waiter);
