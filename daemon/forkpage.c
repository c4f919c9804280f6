#include "forkpage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "step.h"

/* So that others need not wait long while a child ends that had many. */
enum { FREED_AT_ONCE = 512 };

void forkpages_init(struct forkpages *forks) {
    list_init(&forks->open);
    forks->noted = forks->count = forks->unwatched = 0;
    memset(forks->until_end, 0, sizeof forks->until_end);
    memset(forks->unneeded, 0, sizeof forks->unneeded);
}

/* The page before `link` in the list of open ones, or NULL. */
static struct forkpage *older(const struct forkpages *forks, const struct list *link) {
    return link->prev == &forks->open ? NULL : container_of(link->prev, struct forkpage, link);
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
    struct forkpage *newest = older(forks, &forks->open);

    if (needs(newest, node)) {
        heap_push(&newest->parked[kind], node);
        REACHED(HOLD_PARKED);
        return 1;
    }
    return park_until_end(forks, kind, node);
}

/* ---------------------------------------------------------------------------------------- close */

static void hand_on(struct forkpage *page, struct forkpage *next, enum fork_kind kind) {
    struct forkpages *forks = page->forks;
    struct heap *parked = &page->parked[kind];

    while ((next || forks->unwatched) && parked->root && !needs(next, parked->root)) {
        struct heap_node *node = heap_pop(parked);
        if (!park_until_end(forks, kind, node)) {
            heap_push(&forks->unneeded[kind], node);
        }
    }
    heap_meld(next ? &next->parked[kind] : &forks->unneeded[kind], parked);
}

static void forkpage_close(struct forkpage *page) {
    struct forkpages *forks = page->forks;
    struct forkpage *next = older(forks, &page->link);

    for (int kind = 0; kind < FORK_KINDS; kind++) {
        hand_on(page, next, kind);
    }
    lifepage_forget(forks->pages, &page->page);
    list_remove(&page->link);
    forks->count--;
    free(page);
    REACHED(FORK_PAGE_CLOSED);
}

static void on_closed(struct lifepage *lifepage) {
    struct forkpage *page = container_of(lifepage, struct forkpage, page);
    struct forkpages *forks = page->forks;

    forkpage_close(page);
    forks->closed(forks);
}

bool forkpages_free_some(struct forkpages *forks) {
    bool has_more = false;

    for (int kind = 0; kind < FORK_KINDS; kind++) {
        struct heap *unneeded = &forks->unneeded[kind];
        for (int left = FREED_AT_ONCE; left > 0 && unneeded->root; left--) {
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
    while (!list_is_empty(&forks->open)) {
        forkpage_close(container_of(forks->open.next, struct forkpage, link));
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
    list_append(&forks->open, &page->link);
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
