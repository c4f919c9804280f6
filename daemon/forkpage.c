#include "forkpage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "step.h"

/* So that others need not wait long while a child ends that had many. */
enum { FREED_AT_ONCE = 512 };

void forkpages_init(struct forkpages *forks) {
    list_init(&forks->all);
    list_init(&forks->closing);
    forks->noted = forks->count = forks->unwatched = 0;
    memset(forks->until_end, 0, sizeof forks->until_end);
    memset(forks->unneeded, 0, sizeof forks->unneeded);
}

/* The page before `link` in the list of all, or NULL. */
static struct forkpage *older(const struct forkpages *forks, const struct list *link) {
    return link->prev == &forks->all ? NULL : container_of(link->prev, struct forkpage, link);
}

/* Whether it began before this page, if there is one. */
static int needs(const struct forkpage *page, const struct heap_node *node) {
    return page && node->key < page->sequence;
}

static int park_until_end(struct forkpages *forks, enum fork_kind kind, struct heap_node *node) {
    if (node->key >= forks->unwatched) {
        return 0;
    }
    heap_push(&forks->until_end[kind], node);
    return 1;
}

int forkpages_park(struct forkpages *forks, enum fork_kind kind, struct heap_node *node) {
    struct forkpage *newest = older(forks, &forks->all);

    if (needs(newest, node)) {
        heap_push(&newest->parked[kind], node);
        REACHED(HOLD_PARKED);
        return 1;
    }
    return park_until_end(forks, kind, node);
}

/* ---------------------------------------------------------------------------------------- close */

static void forkpage_close(struct forkpage *page) {
    struct forkpages *forks = page->forks;

    lifepage_forget(forks->pages, &page->page);
    list_append(&forks->closing, &page->closing);
    forks->count--;
    REACHED(FORK_PAGE_CLOSED);
}

static void on_closed(struct lifepage *lifepage) {
    struct forkpage *page = container_of(lifepage, struct forkpage, page);

    forkpage_close(page);
    page->forks->closed(page->forks);
}

static void forkpage_free(struct forkpage *page) {
    list_remove(&page->link);
    list_remove(&page->closing);
    free(page);
}

/* Frees what no older page needs, at most *left of it, and counts that down; then moves the rest to
 * the next older page. Returns whether it is done. */
static bool hand_on(struct forkpage *page, enum fork_kind kind, int *left) {
    struct forkpages *forks = page->forks;
    struct forkpage *next = older(forks, &page->link);
    struct heap *parked = &page->parked[kind];

    while ((next || forks->unwatched) && parked->root && !needs(next, parked->root)) {
        if (--*left < 0) {
            return false;
        }
        struct heap_node *node = heap_pop(parked);
        if (!park_until_end(forks, kind, node)) {
            forks->freed(forks, kind, node);
        }
    }
    heap_meld(next ? &next->parked[kind] : &forks->unneeded[kind], parked);
    return true;
}

/* In whatever order they closed: what one of them hands on to another goes on from there. */
static void hand_on_some(struct forkpages *forks, int *left) {
    list_for_each (link, &forks->closing) {
        struct forkpage *page = container_of(link, struct forkpage, closing);
        if (hand_on(page, FORK_HOLD, left) && hand_on(page, FORK_BUFFER, left)) {
            forkpage_free(page);
        }
    }
}

bool forkpages_free_some(struct forkpages *forks) {
    int left = FREED_AT_ONCE;

    hand_on_some(forks, &left);
    bool has_more = !list_is_empty(&forks->closing);
    for (int kind = 0; kind < FORK_KINDS; kind++) {
        struct heap *unneeded = &forks->unneeded[kind];
        for (; left > 0 && unneeded->root; left--) {
            forks->freed(forks, kind, heap_pop(unneeded));
        }
        has_more |= unneeded->root != NULL;
    }
    return has_more;
}

void forkpages_process_gone(struct forkpages *forks) {
    forks->unwatched = 0;
    for (int kind = 0; kind < FORK_KINDS; kind++) {
        heap_meld(&forks->unneeded[kind], &forks->until_end[kind]);
    }
}

void forkpages_fini(struct forkpages *forks) {
    forkpages_process_gone(forks);
    while (!list_is_empty(&forks->all)) {
        struct forkpage *page = container_of(forks->all.next, struct forkpage, link);
        if (list_is_empty(&page->closing)) {
            forkpage_close(page);
        }
        for (int kind = 0; kind < FORK_KINDS; kind++) {
            heap_meld(&forks->unneeded[kind], &page->parked[kind]);
        }
        forkpage_free(page);
    }
}

/* ----------------------------------------------------------------------------------------- open */

static int forkpage_open(struct forkpages *forks, int fd) {
    if (forks->count >= forks->max) {
        return -EDQUOT;
    }
    struct forkpage *page = calloc(1, sizeof *page);
    if (!page) {
        return -ENOMEM;
    }
    page->page.closed = on_closed;
    int r = lifepage_adopt(forks->pages, &page->page, fd);
    if (r < 0) {
        free(page);
        return r;
    }
    page->forks = forks;
    page->sequence = forks->noted;
    list_init(&page->closing);
    list_append(&forks->all, &page->link);
    forks->count++;
    REACHED(FORK_PAGE_ADOPTED);
    return 0;
}

int forkpages_note(struct forkpages *forks, int fd) {
    const char *reason = "the note came without a page";

    forks->noted++;
    if (fd >= 0) {
        int r = forkpage_open(forks, fd);
        if (r == 0 || r == -EPROTO) {
            return r;
        }
        reason = r == -EDQUOT ? "as many as --client-forks allows" : strerror(-r);
    }
    if (!forks->unwatched) {
        log_warn("event=fork.unwatched reason=\"%s\"", reason);
    }
    forks->unwatched = forks->noted;
    REACHED(FORK_UNWATCHED);
    return 0;
}
