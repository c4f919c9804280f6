/* Life pages: whose is gone is told once, also when the kernel lost the events. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fixture.h"
#include "lifepage.h"

struct owner {
    int fd, watch;
    int closed; /* how often it was told */
};

static void on_closed(void *owner) {
    ((struct owner *)owner)->closed++;
}

static void setup(struct lifepages *pages) {
    *pages = (struct lifepages){.closed = on_closed};
    lifepages_init(pages);
    EXPECT_TRUE(pages->fd >= 0);
}

static struct owner *given_page(struct lifepages *pages, struct owner *owner) {
    *owner = (struct owner){.fd = -1};
    owner->watch = lifepage_open(pages, owner, &owner->fd);
    EXPECT_TRUE(owner->watch > 0);
    return owner;
}

TEST(who_closes_its_page_is_told_once) {
    struct lifepages pages;
    struct owner gone, alive;
    setup(&pages);
    given_page(&pages, &gone);
    given_page(&pages, &alive);

    close(gone.fd);
    lifepages_read(&pages);
    lifepages_read(&pages);
    EXPECT_EQ(1, gone.closed);
    EXPECT_EQ(0, alive.closed);
    lifepage_forget(&pages, alive.watch);
    close(alive.fd);
    lifepages_read(&pages);
    EXPECT_EQ(0, alive.closed);
    lifepages_fini(&pages);
}

/* Fills the queue with events of watches that belong to nobody. */
static void overflow(const struct lifepages *pages) {
    char text[32] = "";
    char path[2][32];
    int fd[2];
    int limit = open("/proc/sys/fs/inotify/max_queued_events", O_RDONLY | O_CLOEXEC);

    EXPECT_TRUE(read(limit, text, sizeof text - 1) > 0);
    close(limit);
    for (int i = 0; i < 2; i++) {
        fd[i] = memfd_create("test", MFD_CLOEXEC);
        snprintf(path[i], sizeof path[i], "/proc/self/fd/%d", fd[i]);
        EXPECT_TRUE(inotify_add_watch(pages->fd, path[i], IN_CLOSE) > 0);
    }
    /* In turns, for equal events in a row become one. */
    for (long i = atol(text) + 10; i >= 0; i--) {
        close(open(path[i % 2], O_RDONLY | O_CLOEXEC));
    }
    close(fd[0]);
    close(fd[1]);
}

TEST(lost_events_are_made_up_for) {
    struct lifepages pages;
    struct owner owners[40];
    setup(&pages);
    for (int i = 0; i < 40; i++) {
        given_page(&pages, &owners[i]);
    }

    overflow(&pages);
    for (int i = 0; i < 40; i += 3) {
        close(owners[i].fd);
    }
    lifepages_read(&pages);
    for (int i = 0; i < 40; i++) {
        EXPECT_EQ(i % 3 == 0, owners[i].closed);
    }
    EXPECT_EQ(40 - 14, pages.owners.count);
    for (int i = 0; i < 40; i++) {
        if (i % 3) {
            lifepage_forget(&pages, owners[i].watch);
            close(owners[i].fd);
        }
    }
    lifepages_fini(&pages);
}
