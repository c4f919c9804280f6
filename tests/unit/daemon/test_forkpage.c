/* Fork pages: what was held at a fork stays until the page is closed, in every order. The storages
 * have no bytes. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "log.h"
#include "storages_fixture.h"

enum { STORAGES = 24, PAGES = 12, MANY = 3000 };

struct fixture {
    struct segments segments;
    struct storages storages;
    struct account account; /* that is charged for all */
    struct tickets tickets;
    struct lifepages pages;
    struct forkpages forks;
    struct holds holds;
};

static uint64_t now(void *owner) {
    (void)owner;
    return 0;
}

static void on_freed(struct forkpages *forks, enum fork_kind kind, struct heap_node *node) {
    EXPECT_EQ(FORK_HOLD, kind);
    hold_freed(&container_of(forks, struct fixture, forks)->holds, node);
}

static void free_all(struct forkpages *forks) {
    while (forkpages_free_some(forks)) {
    }
}

static void setup(struct fixture *f) {
    *f = (struct fixture){
        .storages = {.max = 1000},
        .account.has_client = true,
        .tickets = {.storages = &f->storages, .now = now},
        .forks = {.pages = &f->pages, .freed = on_freed, .closed = free_all, .max = PAGES},
        .holds = {.storages = &f->storages, .tickets = &f->tickets, .forks = &f->forks}};
    log_set_level(LOG_ERROR);
    storages_init(&f->storages);
    tickets_init(&f->tickets);
    lifepages_init(&f->pages);
    forkpages_init(&f->forks);
    holds_init(&f->holds);
}

/* The client ends, and all its pages; asserts that nothing is left. */
static void teardown(struct fixture *f) {
    while (holds_return_some(&f->holds)) {
    }
    forkpages_fini(&f->forks);
    free_all(&f->forks);
    EXPECT_EQ(0, f->forks.count);
    EXPECT_EQ(0, f->pages.pages.count);
    holds_fini(&f->holds);
    tickets_fini(&f->tickets);
    lifepages_fini(&f->pages);
    storages_fini(&f->storages);
}

static uint64_t given_held(struct fixture *f) {
    return storage_held_by(&f->holds, &f->segments, &f->account)->id;
}

/* A fork with a page, which the test closes. */
static int given_fork(struct fixture *f) {
    int fd = memfd_create("fork", MFD_CLOEXEC);

    EXPECT_EQ(0, ftruncate(fd, 4096));
    EXPECT_EQ(0, forkpages_note(&f->forks, fd));
    return fd;
}

static void close_page(struct fixture *f, int fd) {
    close(fd);
    lifepages_read(&f->pages);
}

static void let_go(struct fixture *f, uint64_t id) {
    EXPECT_EQ(0, hold_return(&f->holds, id, 1));
}

static int lives(const struct fixture *f, uint64_t id) {
    return storage_find(&f->storages, id) != NULL;
}

TEST(a_release_waits_for_the_pages_after_its_hold_and_for_no_others) {
    struct fixture f;
    setup(&f);
    uint64_t before = given_held(&f);
    int page = given_fork(&f);
    uint64_t after = given_held(&f);

    let_go(&f, before);
    let_go(&f, after);
    EXPECT_TRUE(lives(&f, before));
    EXPECT_TRUE(!lives(&f, after));
    EXPECT_EQ(1, holds_count(&f.holds));
    close_page(&f, page);
    EXPECT_TRUE(!lives(&f, before));
    EXPECT_EQ(0, holds_count(&f.holds));
    teardown(&f);
}

TEST(pages_that_overlap_for_ever_do_not_keep_what_was_gone_before_them) {
    struct fixture f;
    setup(&f);
    uint64_t id = given_held(&f);
    int page = given_fork(&f);

    let_go(&f, id);
    int next = given_fork(&f);
    EXPECT_TRUE(lives(&f, id));
    close_page(&f, page);
    EXPECT_TRUE(!lives(&f, id));
    close_page(&f, next);
    teardown(&f);
}

TEST(a_parked_hold_has_no_grants_to_return) {
    struct fixture f;
    setup(&f);
    uint64_t id = given_held(&f);
    int page = given_fork(&f);

    let_go(&f, id);
    EXPECT_TRUE(!holds_find(&f.holds, storage_find(&f.storages, id)));
    EXPECT_EQ(-EPROTO, hold_return(&f.holds, id, 1));
    EXPECT_EQ(0, hold_grant(&f.holds, storage_find(&f.storages, id)));
    EXPECT_EQ(1, storage_find(&f.storages, id)->holders);
    close_page(&f, page);
    EXPECT_TRUE(lives(&f, id));
    teardown(&f);
    EXPECT_TRUE(!lives(&f, id));
}

TEST(notes_without_a_page_are_one_page_that_the_end_of_the_process_closes) {
    struct fixture f;
    setup(&f);
    uint64_t first = given_held(&f);
    EXPECT_EQ(0, forkpages_note(&f.forks, -1));
    uint64_t second = given_held(&f);
    int page = given_fork(&f);
    EXPECT_EQ(0, forkpages_note(&f.forks, -1));
    uint64_t third = given_held(&f);

    let_go(&f, first);
    let_go(&f, second);
    let_go(&f, third);
    EXPECT_TRUE(lives(&f, first) && lives(&f, second) && !lives(&f, third));
    close_page(&f, page);
    EXPECT_TRUE(lives(&f, first) && lives(&f, second));
    forkpages_process_gone(&f.forks);
    free_all(&f.forks);
    EXPECT_TRUE(!lives(&f, first) && !lives(&f, second));
    teardown(&f);
}

static void leave(struct forkpages *forks) {
    (void)forks;
}

/* For so many storages; what a closed page lets go is freed when the test says so. */
static void setup_for_many(struct fixture *f, size_t max) {
    setup(f);
    f->storages.max = max;
    f->forks.closed = leave;
}

/* The first of them: the others have the numbers after it. */
static uint64_t given_many_held(struct fixture *f, int count) {
    uint64_t first = given_held(f);

    for (int i = 1; i < count; i++) {
        given_held(f);
    }
    return first;
}

static void let_go_until(struct fixture *f, uint64_t first, uint64_t end) {
    for (uint64_t id = first; id < end; id++) {
        let_go(f, id);
    }
}

/* Nearly all of MANY are to be freed. */
static void free_in_steps(struct fixture *f) {
    EXPECT_TRUE(forkpages_free_some(&f->forks));
    EXPECT_TRUE(f->storages.by_id.count > MANY / 2 && f->storages.by_id.count < MANY);
    free_all(&f->forks);
}

TEST(what_many_children_had_is_freed_in_steps) {
    struct fixture f;
    setup_for_many(&f, MANY);
    uint64_t first = given_many_held(&f, MANY);
    int page = given_fork(&f);
    let_go_until(&f, first, first + MANY);

    close_page(&f, page);
    EXPECT_EQ(MANY, f.storages.by_id.count);
    free_in_steps(&f);
    EXPECT_EQ(0, f.storages.by_id.count);
    teardown(&f);
}

TEST(what_only_the_younger_of_two_children_had_is_freed_in_steps) {
    struct fixture f;
    setup_for_many(&f, MANY);
    uint64_t first = given_held(&f);
    int older = given_fork(&f);
    given_many_held(&f, MANY - 1);
    int younger = given_fork(&f);
    let_go_until(&f, first, first + MANY);

    close_page(&f, younger);
    EXPECT_EQ(1, f.forks.count);
    EXPECT_TRUE(!f.forks.unneeded[FORK_HOLD].root); /* they are not even looked at */
    free_in_steps(&f);
    EXPECT_EQ(1, f.storages.by_id.count);
    EXPECT_TRUE(lives(&f, first));
    close_page(&f, older);
    free_all(&f.forks);
    EXPECT_EQ(0, f.storages.by_id.count);
    teardown(&f);
}

/* While a page hands on, the next older one closes, the client lets go of more, and forks. */
TEST(pages_that_close_one_after_the_other_hand_on_in_any_order) {
    enum { EACH = 1000, FORKS = 4 };
    struct fixture f;
    int pages[FORKS];
    uint64_t ids[FORKS];
    setup_for_many(&f, FORKS * EACH);
    for (int i = 0; i < FORKS; i++) {
        ids[i] = given_many_held(&f, EACH);
        pages[i] = given_fork(&f);
    }
    uint64_t kept = ids[FORKS - 1] + EACH / 2 + 100;
    let_go_until(&f, ids[0], kept);

    for (int i = FORKS - 1; i > 0; i--) {
        close_page(&f, pages[i]);
        EXPECT_TRUE(forkpages_free_some(&f.forks));
    }
    let_go_until(&f, kept, ids[FORKS - 1] + EACH);
    int last = given_fork(&f);
    EXPECT_EQ(2, f.forks.count);
    free_all(&f.forks);
    EXPECT_EQ(EACH, f.storages.by_id.count);
    EXPECT_TRUE(lives(&f, ids[0]) && !lives(&f, ids[1]));
    close_page(&f, last);
    close_page(&f, pages[0]);
    free_all(&f.forks);
    EXPECT_EQ(0, f.storages.by_id.count);
    teardown(&f);
}

TEST(a_hold_that_is_to_be_freed_may_be_granted_again) {
    struct fixture f;
    setup(&f);
    f.forks.closed = leave;
    uint64_t id = given_held(&f);
    int page = given_fork(&f);
    let_go(&f, id);
    close_page(&f, page);

    EXPECT_EQ(0, hold_grant(&f.holds, storage_find(&f.storages, id)));
    free_all(&f.forks);
    EXPECT_TRUE(lives(&f, id));
    let_go(&f, id);
    EXPECT_TRUE(!lives(&f, id));
    teardown(&f);
}

TEST(none_is_left_when_children_end_while_holds_go_back) {
    enum { EACH = 333 };
    struct fixture f;
    int pages[PAGES];
    setup(&f);
    f.storages.max = PAGES * EACH;
    for (int i = 0; i < PAGES; i++) {
        given_many_held(&f, EACH);
        pages[i] = given_fork(&f);
    }

    for (int i = 0; i < PAGES; i++) {
        holds_return_some(&f.holds);
        close_page(&f, pages[i]);
    }
    while (holds_return_some(&f.holds)) {
    }
    EXPECT_EQ(0, holds_count(&f.holds));
    EXPECT_EQ(0, f.storages.by_id.count);
    teardown(&f);
}

TEST(a_page_too_many_counts_as_none) {
    struct fixture f;
    int fds[PAGES + 1];
    setup(&f);

    for (int i = 0; i <= PAGES; i++) {
        fds[i] = given_fork(&f);
    }
    EXPECT_EQ(PAGES, f.forks.count);
    uint64_t id = given_held(&f);
    let_go(&f, id);
    EXPECT_TRUE(!lives(&f, id));
    for (int i = 0; i <= PAGES; i++) {
        close_page(&f, fds[i]);
    }
    EXPECT_EQ(0, f.forks.count);
    int page = given_fork(&f);
    EXPECT_EQ(1, f.forks.count);
    close_page(&f, page);
    EXPECT_TRUE(f.forks.unwatched);
    teardown(&f);
}

TEST(what_is_no_page_is_a_breach) {
    struct fixture f;
    int pipes[2];
    setup(&f);

    EXPECT_EQ(0, pipe(pipes));
    EXPECT_EQ(-EPROTO, forkpages_note(&f.forks, pipes[0]));
    EXPECT_EQ(0, f.forks.count);
    close(pipes[0]);
    close(pipes[1]);
    teardown(&f);
}

/* ---------------------------------------------------------------------- against the definition */

/* What the definition says: storage s lives while it is held, or was held at a fork whose page is
 * open. Page PAGES stands for the life of the process, for notes without a page; these also keep
 * what is parked at that time. */
struct model {
    uint64_t ids[STORAGES]; /* 0: not made yet */
    int held[STORAGES];
    int fds[PAGES]; /* -1: no page */
    int pinned[PAGES + 1][STORAGES];
};

static void expect_as_defined(const struct fixture *f, const struct model *m) {
    for (int s = 0; s < STORAGES; s++) {
        int wanted = m->held[s];
        for (int p = 0; p <= PAGES; p++) {
            wanted |= m->pinned[p][s];
        }
        EXPECT_EQ(wanted, m->ids[s] && lives(f, m->ids[s]));
    }
}

static void step(struct fixture *f, struct model *m) {
    int s = rand() % STORAGES;
    int p = rand() % PAGES;

    if (!m->ids[s]) {
        m->ids[s] = given_held(f);
        m->held[s] = 1;
    } else if (m->held[s] && rand() % 2) {
        let_go(f, m->ids[s]);
        m->held[s] = 0;
    } else if (m->fds[p] < 0) {
        m->fds[p] = given_fork(f);
        memcpy(m->pinned[p], m->held, sizeof m->held);
    } else if (rand() % 20 == 0) {
        EXPECT_EQ(0, forkpages_note(&f->forks, -1));
        for (int i = 0; i < STORAGES; i++) {
            m->pinned[PAGES][i] |= m->ids[i] && lives(f, m->ids[i]);
        }
    } else {
        close_page(f, m->fds[p]);
        m->fds[p] = -1;
        memset(m->pinned[p], 0, sizeof m->pinned[p]);
    }
}

TEST(random_forks_releases_and_closed_pages_do_what_is_defined) {
    for (unsigned seed = 0; seed < 200; seed++) {
        struct fixture f;
        struct model m = {0};
        setup(&f);
        srand(seed);
        memset(m.fds, -1, sizeof m.fds);

        for (int i = 0; i < 120; i++) {
            step(&f, &m);
            expect_as_defined(&f, &m);
        }
        for (int p = 0; p < PAGES; p++) {
            if (m.fds[p] >= 0) {
                close(m.fds[p]);
            }
        }
        teardown(&f);
    }
}
