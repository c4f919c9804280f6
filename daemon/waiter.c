#include "waiter.h"

void waitlist_init(struct waitlist *waitlist, void (*emptied)(struct waitlist *)) {
    list_init(&waitlist->waiters);
    waitlist->emptied = emptied;
}

void waitlist_check(struct waitlist *waitlist) {
    if (list_is_empty(&waitlist->waiters) && waitlist->emptied) {
        waitlist->emptied(waitlist);
    }
}

void waitlist_wake(struct waitlist *waitlist, struct list *ready) {
    struct list *link;

    while ((link = list_pop(&waitlist->waiters))) {
        container_of(link, struct waiter, link)->on = NULL;
        list_append(ready, link);
    }
}

void waiter_wait(struct waiter *waiter, struct waitlist *on) {
    waiter->on = on;
    list_append(&on->waiters, &waiter->link);
}

void waiter_stop(struct waiter *waiter) {
    struct waitlist *on = waiter->on;

    list_remove(&waiter->link);
    waiter->on = NULL;
    if (on) {
        waitlist_check(on);
    }
}
