/* Life pages: whose is gone is told once, also when the kernel lost the events. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "fixture.h"
#include "lifepage.h"

struct owner {
    struct lifepage page;
    int fd;
    int closed; /* how often it was told */
};

static void on_closed(struct lifepage *page) {
    ((struct owner *)page)->closed++;
}

static void setup(struct lifepages *pages) {
    lifepages_init(pages);
    EXPECT_TRUE(pages->fd >= 0);
}

static struct owner *given_page(struct lifepages *pages, struct owner *owner) {
    *owner = (struct owner){.page.closed = on_closed};
    EXPECT_EQ(0, lifepage_open(pages, &owner->page, &owner->fd));
    EXPECT_TRUE(lifepage_is_open(&owner->page));
    return owner;
}

/* A memfd as a client makes one. */
static int given_memfd(off_t nbytes) {
    int fd = memfd_create("test", MFD_CLOEXEC);

    EXPECT_EQ(0, ftruncate(fd, nbytes));
    return fd;
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
    lifepage_forget(&pages, &alive.page);
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
    while (lifepages_read(&pages)) {
    }
    for (int i = 0; i < 40; i++) {
        EXPECT_EQ(i % 3 == 0, owners[i].closed);
    }
    EXPECT_EQ(40 - 14, pages.pages.count);
    for (int i = 0; i < 40; i++) {
        if (i % 3) {
            lifepage_forget(&pages, &owners[i].page);
            close(owners[i].fd);
        }
    }
    lifepages_fini(&pages);
}

TEST(without_a_descriptor_lost_events_are_made_up_for_later) {
    struct lifepages pages;
    struct owner gone, alive;
    struct rlimit before;
    setup(&pages);
    given_page(&pages, &gone);
    given_page(&pages, &alive);

    overflow(&pages);
    close(gone.fd);
    EXPECT_EQ(0, getrlimit(RLIMIT_NOFILE, &before));
    EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, before.rlim_max}));
    while (lifepages_read(&pages)) {
    }
    EXPECT_EQ(2000, lifepages_do_due(&pages, 1000));
    EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &before));
    EXPECT_EQ(2000, lifepages_do_due(&pages, 1999));
    EXPECT_EQ(0, gone.closed);
    EXPECT_EQ(UINT64_MAX, lifepages_do_due(&pages, 2000));
    EXPECT_EQ(1, gone.closed);
    EXPECT_EQ(0, alive.closed);
    lifepage_forget(&pages, &alive.page);
    close(alive.fd);
    lifepages_fini(&pages);
}

TEST(a_page_of_a_clients_own_is_told_when_nobody_has_it_mapped) {
    struct lifepages pages;
    struct owner owner = {.page.closed = on_closed, .fd = given_memfd(4096)};
    setup(&pages);

    void *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, owner.fd, 0);
    EXPECT_EQ(0, lifepage_adopt(&pages, &owner.page, owner.fd));
    close(owner.fd);
    lifepages_read(&pages);
    EXPECT_EQ(0, owner.closed);
    munmap(mapped, 4096);
    lifepages_read(&pages);
    EXPECT_EQ(1, owner.closed);
    EXPECT_TRUE(!lifepage_is_open(&owner.page));
    lifepages_fini(&pages);
}

TEST(only_a_small_memfd_that_is_not_watched_yet_is_a_page) {
    struct lifepages pages;
    struct owner ours, theirs = {.page.closed = on_closed, .fd = given_memfd(4096)}, other = theirs;
    int large = given_memfd(8192);
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    setup(&pages);
    given_page(&pages, &ours);

    EXPECT_EQ(0, lifepage_adopt(&pages, &theirs.page, theirs.fd));
    EXPECT_EQ(-EPROTO, lifepage_adopt(&pages, &other.page, theirs.fd));
    EXPECT_EQ(-EPROTO, lifepage_adopt(&pages, &other.page, ours.fd));
    EXPECT_EQ(-EPROTO, lifepage_adopt(&pages, &other.page, large));
    EXPECT_EQ(-EPROTO, lifepage_adopt(&pages, &other.page, file));
    EXPECT_TRUE(!lifepage_is_open(&other.page));
    EXPECT_EQ(2, pages.pages.count);
    close(large);
    close(file);
    close(ours.fd);
    close(theirs.fd);
    lifepages_read(&pages);
    EXPECT_EQ(1, ours.closed);
    EXPECT_EQ(1, theirs.closed);
    lifepages_fini(&pages);
}

TEST(without_inotify_there_are_no_pages) {
    struct lifepages pages = {.fd = -1};
    struct lifepage page;
    int memfd = given_memfd(4096);
    int fd;

    EXPECT_EQ(0, lifepage_open(&pages, &page, &fd));
    EXPECT_EQ(-1, fd);
    EXPECT_TRUE(!lifepage_is_open(&page));
    EXPECT_EQ(-ENOSYS, lifepage_adopt(&pages, &page, memfd));
    close(memfd);
}
