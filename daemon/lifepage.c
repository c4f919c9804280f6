#include "lifepage.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"
#include "messages.h"
#include "page.h"
#include "step.h"

/* So that others need not wait long while many end together. */
enum { RETRY_MS = 1000, EVENTS_AT_ONCE = 64 };

void lifepages_init(struct lifepages *pages) {
    table_init(&pages->pages);
    pages->has_lost = false;
    pages->retry_ms = 0;
    pages->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (pages->fd < 0) {
        log_warn("event=lifepage.none error=\"%s\"", strerror(errno));
    }
}

void lifepages_fini(struct lifepages *pages) {
    table_fini(&pages->pages);
    if (pages->fd >= 0) {
        close(pages->fd);
        pages->fd = -1;
    }
}

/* 0 or a negative errno. */
static int watch(struct lifepages *pages, struct lifepage *page, int fd) {
    char path[32];

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    /* Which of the events comes depends on the kernel: a memfd's last close is told by some, the
     * end of its inode (also as IN_IGNORED) by all. */
    int descriptor = inotify_add_watch(pages->fd, path, IN_CLOSE | IN_DELETE_SELF | IN_MASK_CREATE);
    if (descriptor < 0) {
        return -errno;
    }
    if (table_set(&pages->pages, (uint64_t)descriptor, page) < 0) {
        inotify_rm_watch(pages->fd, descriptor);
        return -ENOMEM;
    }
    page->watch = descriptor;
    return 0;
}

int lifepage_open(struct lifepages *pages, struct lifepage *page, int *ret_fd) {
    page->watch = 0;
    *ret_fd = -1;
    if (pages->fd < 0) {
        return 0;
    }
    int fd = page_create("tensorcx-life");
    if (fd < 0) {
        return fd;
    }
    REACHED(LIFE_PAGE_MADE);
    int r = watch(pages, page, fd);
    if (r < 0) {
        close(fd);
        if (r == -ENOMEM) {
            return r;
        }
        log_warn("event=lifepage.none error=\"%s\"", strerror(-r));
        return 0;
    }
    *ret_fd = fd;
    return 0;
}

int lifepage_adopt(struct lifepages *pages, struct lifepage *page, int fd) {
    struct stat info;

    page->watch = 0;
    /* Only shared memory has seals; anything else could make us wait for a file system. And nothing
     * that we keep open ourselves is as small as a page: that would never be closed. */
    if (fcntl(fd, F_GET_SEALS) < 0 || fstat(fd, &info) != 0 || info.st_size != WIRE_PAGE_NBYTES) {
        return -EPROTO;
    }
    if (pages->fd < 0) {
        return -ENOSYS;
    }
    int r = watch(pages, page, fd);
    return r == -EEXIST ? -EPROTO : r;
}

void lifepage_forget(struct lifepages *pages, struct lifepage *page) {
    if (page->watch) {
        table_remove(&pages->pages, (uint64_t)page->watch);
        /* Fails when the inode is gone already. */
        (void)inotify_rm_watch(pages->fd, page->watch);
        page->watch = 0;
    }
}

static void closed(struct lifepages *pages, int descriptor) {
    struct lifepage *page = table_find(&pages->pages, (uint64_t)descriptor);

    if (page) {
        lifepage_forget(pages, page);
        REACHED(PAGE_CLOSED);
        page->closed(page);
    }
}

/* Collects the watches that the kernel still has. 0, or -1: that cannot be found out. */
static int find_living(const struct lifepages *pages, struct table *living) {
    char path[48];
    char line[256];
    unsigned descriptor;
    int r = 0;

    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pages->fd);
    FILE *file = fopen(path, "re");
    if (!file) {
        return -1;
    }
    while (r == 0 && fgets(line, sizeof line, file)) {
        if (sscanf(line, "inotify wd:%x ", &descriptor) == 1 && descriptor) {
            r = table_set(living, descriptor, living);
        }
    }
    r = ferror(file) ? -1 : r;
    fclose(file);
    return r;
}

/* Events are lost: looks at every watch. Returns whether that could be done. */
static bool look_at_all(struct lifepages *pages) {
    bool is_done = false;
    size_t count = 0;
    size_t cursor = 0;
    uint64_t descriptor;
    void *page;
    struct table living = {0};
    int *dead = calloc(pages->pages.count + 1, sizeof *dead);

    if (dead && find_living(pages, &living) == 0) {
        is_done = true;
        while (table_next(&pages->pages, &cursor, &descriptor, &page)) {
            if (!table_find(&living, descriptor)) {
                dead[count++] = (int)descriptor;
            }
        }
    }
    while (count-- > 0) {
        closed(pages, dead[count]);
    }
    free(dead);
    table_fini(&living);
    return is_done;
}

bool lifepages_read(struct lifepages *pages) {
    struct inotify_event events[EVENTS_AT_ONCE]; /* a page has no name, so none follows */
    ssize_t n = read(pages->fd, events, sizeof events);

    for (ssize_t i = 0; i < n / (ssize_t)sizeof *events; i++) {
        if (events[i].mask & IN_Q_OVERFLOW) {
            log_warn("event=lifepage.overflow watches=%zu", pages->pages.count);
            pages->has_lost = !look_at_all(pages);
        } else {
            closed(pages, events[i].wd);
        }
    }
    return n == (ssize_t)sizeof events;
}

uint64_t lifepages_do_due(struct lifepages *pages, uint64_t now_ms) {
    if (pages->has_lost && pages->retry_ms <= now_ms) {
        pages->has_lost = !look_at_all(pages);
        pages->retry_ms = now_ms + RETRY_MS;
    }
    return pages->has_lost ? pages->retry_ms : UINT64_MAX;
}
