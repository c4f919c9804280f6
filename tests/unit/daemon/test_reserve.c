/* The reserve: made when nothing else is to be done, taken at once, given up for anybody else. */
#include "reserve.h"
#include "segments_fixture.h"
#include "warm.h"

static void settle(void *owner) {
    struct fixture *f = owner;

    reserve_refill(&f->segments, f->now_ms);
}

static void setup_reserve(struct fixture *f, uint64_t capacity, uint64_t machine) {
    setup(f, capacity, machine);
    f->segments.reserve_nbytes = 80 * MIB;
    f->worker.settle = settle;
    f->worker.owner = f;
}

/* Lets it be idle until nothing changes any more. */
static void rest(struct fixture *f) {
    settle(f);
    uv_run(&f->loop, UV_RUN_DEFAULT);
}

/* All of it is there: a slab of 16 MiB and a segment of 64. */
static void expect_full(struct fixture *f) {
    EXPECT_EQ(80 * MIB, f->segments.warm_nbytes);
    EXPECT_EQ(80 * MIB, f->segments.committed);
    EXPECT_EQ(2, f->segments.by_id.count);
    EXPECT_TRUE(reserve_refill(&f->segments, UINT64_MAX - 1) == UINT64_MAX);
}

TEST(while_idle_a_slab_and_a_large_segment_are_made) {
    struct fixture f;
    setup_reserve(&f, 2048 * MIB, 4096 * MIB);

    rest(&f);
    expect_full(&f);
    EXPECT_EQ(80 / 4, pieces_committed);
    teardown(&f);
}

TEST(first_ones_need_not_wait) {
    struct fixture f;
    struct waiter waiter;
    setup_reserve(&f, 2048 * MIB, 4096 * MIB);

    rest(&f);
    struct range *large = try_take(&f, 64 * MIB, &waiter);
    struct range *small = try_take(&f, KIB, &waiter);
    EXPECT_TRUE(large && small);
    EXPECT_EQ(0, f.segments.warm_nbytes);
    give(&f, large);
    give(&f, small);
    teardown(&f);
}

TEST(it_is_made_again_a_second_after_it_was_taken) {
    struct fixture f;
    setup_reserve(&f, 2048 * MIB, 4096 * MIB);

    rest(&f);
    struct range *range = take(&f, 64 * MIB);
    EXPECT_EQ(1001, reserve_refill(&f.segments, 1000));
    EXPECT_EQ(80 * MIB, f.segments.committed);
    f.now_ms = 1001;
    rest(&f);
    EXPECT_EQ(80 * MIB, f.segments.warm_nbytes);
    EXPECT_EQ(144 * MIB, f.segments.committed);
    give(&f, range);
    teardown(&f);
}

TEST(it_is_not_made_while_something_like_it_is_warm) {
    struct fixture f;
    setup_reserve(&f, 2048 * MIB, 4096 * MIB);

    rest(&f);
    give(&f, take(&f, 64 * MIB));
    give(&f, take(&f, KIB));
    f.now_ms = 1001;
    rest(&f);
    EXPECT_EQ(80 * MIB, f.segments.committed);
    EXPECT_TRUE(warm_expire(&f.segments, 1001) == UINT64_MAX);
    EXPECT_EQ(0, f.segments.committed);
    f.now_ms = 2001;
    rest(&f);
    expect_full(&f);
    teardown(&f);
}

TEST(it_does_not_go_with_time) {
    struct fixture f;
    setup_reserve(&f, 2048 * MIB, 4096 * MIB);

    rest(&f);
    EXPECT_TRUE(warm_expire(&f.segments, UINT64_MAX - 1) == UINT64_MAX);
    expect_full(&f);
    teardown(&f);
}

TEST(a_smaller_large_one_gets_a_part_of_it) {
    struct fixture f;
    struct waiter waiter;
    setup_reserve(&f, 2048 * MIB, 4096 * MIB);

    rest(&f);
    struct range *range = try_take(&f, 20 * MIB - 1, &waiter);
    EXPECT_TRUE(range != NULL);
    EXPECT_EQ(20 * MIB, range->segment->nbytes);
    EXPECT_EQ(16 * MIB, f.segments.warm_nbytes);
    EXPECT_EQ(36 * MIB, f.segments.committed);
    EXPECT_EQ(1, f.segments.dying);
    uv_run(&f.loop, UV_RUN_DEFAULT);
    EXPECT_EQ(0, f.segments.dying);
    EXPECT_EQ((4096 - 36) * MIB, machine_left);
    give(&f, range);
    f.segments.reserve_nbytes = 0;
    warm_expire(&f.segments, UINT64_MAX - 1);
    uv_run(&f.loop, UV_RUN_DEFAULT);
    EXPECT_EQ((4096 - 16) * MIB, machine_left); /* the slab of the reserve is left */
    teardown(&f);
}

TEST(who_needs_more_does_not_get_it) {
    struct fixture f;
    setup_reserve(&f, 2048 * MIB, 4096 * MIB);

    rest(&f);
    struct range *range = take(&f, 100 * MIB);
    EXPECT_EQ(80 * MIB, f.segments.warm_nbytes);
    give(&f, range);
    teardown(&f);
}

/* Told when a storage of ours can be had: what is there of the reserve then. */
struct race {
    struct fixture f; /* first */
    uint64_t filled;
    bool is_over;
};

static void settle_race(void *owner) {
    struct race *race = owner;

    if (!race->is_over && !list_is_empty(&race->f.ready)) {
        race->is_over = true;
        race->filled = race->f.segments.filling->done;
    }
    settle(&race->f);
}

TEST(who_waits_for_memory_goes_first) {
    struct race race = {.is_over = false};
    struct fixture *f = &race.f;
    struct waiter waiter = {.link = {&waiter.link, &waiter.link}};
    setup_reserve(f, 2048 * MIB, 4096 * MIB);
    f->worker.settle = settle_race;

    settle(f);
    EXPECT_EQ(16 * MIB, f->segments.filling->nbytes);
    EXPECT_TRUE(try_take(f, 200 * MIB, &waiter) == NULL);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    EXPECT_TRUE(race.is_over);
    EXPECT_EQ(4 * MIB, race.filled); /* the piece that was in the worker's hands */
    EXPECT_TRUE(list_pop(&f->ready) == &waiter.link);
    EXPECT_EQ(280 * MIB, f->segments.committed);
    give(f, try_take(f, 200 * MIB, &waiter));
    teardown(f);
}

/* Takes `nbytes` while a segment of `filling` bytes is being filled. */
static void join(uint64_t filling, uint64_t nbytes) {
    struct fixture f;
    struct waiter waiter;
    setup_reserve(&f, 2048 * MIB, 4096 * MIB);

    settle(&f);
    while (f.segments.filling->nbytes != filling) {
        uv_run(&f.loop, UV_RUN_ONCE);
    }
    EXPECT_TRUE(try_take(&f, nbytes, &waiter) == NULL);
    EXPECT_TRUE(f.segments.filling == NULL);
    f.worker.settle = NULL;
    uv_run(&f.loop, UV_RUN_DEFAULT);
    EXPECT_TRUE(list_pop(&f.ready) == &waiter.link);
    struct range *range = try_take(&f, nbytes, &waiter);
    EXPECT_TRUE(range != NULL);
    EXPECT_EQ(filling, range->segment->nbytes);
    EXPECT_EQ(filling == 16 * MIB ? 16 * MIB : 80 * MIB, f.segments.committed);
    give(&f, range);
    teardown(&f);
}

TEST(a_small_one_waits_for_the_slab_that_is_just_being_made) {
    join(16 * MIB, KIB);
}

TEST(a_large_one_waits_for_the_segment_that_is_just_being_made) {
    join(64 * MIB, 64 * MIB);
}

TEST(so_does_one_that_is_not_much_smaller) {
    join(64 * MIB, 50 * MIB);
}

TEST(a_large_one_does_not_wait_for_a_slab) {
    struct fixture f;
    struct waiter waiter;
    setup_reserve(&f, 2048 * MIB, 4096 * MIB);

    settle(&f);
    EXPECT_TRUE(try_take(&f, 16 * MIB, &waiter) == NULL);
    EXPECT_EQ(32 * MIB, f.segments.committed);
    waiter_stop(&waiter);
    uv_run(&f.loop, UV_RUN_DEFAULT);
    expect_full(&f);
    teardown(&f);
}

TEST(who_waited_for_it_and_went_away_ends_it) {
    struct fixture f;
    struct waiter waiter;
    setup_reserve(&f, 2048 * MIB, 4096 * MIB);

    settle(&f);
    EXPECT_TRUE(try_take(&f, KIB, &waiter) == NULL);
    waiter_stop(&waiter);
    f.worker.settle = NULL;
    uv_run(&f.loop, UV_RUN_DEFAULT);
    EXPECT_EQ(0, f.segments.committed);
    EXPECT_EQ(4096 * MIB, machine_left);
    teardown(&f);
}

TEST(it_gives_way_after_the_warm_ones) {
    struct fixture f;
    setup_reserve(&f, 1536 * MIB, 4096 * MIB);

    rest(&f);
    give(&f, take(&f, 200 * MIB));
    EXPECT_EQ(280 * MIB, f.segments.warm_nbytes);
    struct range *range = take(&f, 1400 * MIB);
    EXPECT_EQ(80 * MIB, f.segments.warm_nbytes);
    give(&f, range);
    EXPECT_EQ(80 * MIB, f.segments.warm_nbytes);
    range = take(&f, 1536 * MIB);
    EXPECT_TRUE(range != NULL);
    EXPECT_EQ(0, f.segments.warm_nbytes);
    give(&f, range);
    EXPECT_EQ(0, f.shortages);
    teardown(&f);
}

TEST(it_gives_way_while_it_is_made) {
    struct fixture f;
    setup_reserve(&f, 1536 * MIB, 1536 * MIB);

    settle(&f);
    EXPECT_EQ(16 * MIB, f.segments.committed);
    struct range *range = take(&f, 1536 * MIB);
    EXPECT_TRUE(range != NULL);
    EXPECT_EQ(0, f.shortages);
    EXPECT_EQ(1536 * MIB, f.segments.committed);
    give(&f, range);
    teardown(&f);
}

TEST(it_gives_way_where_the_machine_is_full) {
    struct fixture f;
    setup_reserve(&f, 2048 * MIB, 100 * MIB);

    rest(&f);
    expect_full(&f);
    struct range *range = take(&f, 100 * MIB);
    EXPECT_TRUE(range != NULL);
    EXPECT_EQ(0, f.shortages);
    give(&f, range);
    teardown(&f);
}

TEST(where_there_is_no_memory_there_is_none_and_nobody_is_told) {
    struct fixture f;
    setup_reserve(&f, 2048 * MIB, 40 * MIB);

    rest(&f);
    EXPECT_EQ(16 * MIB, f.segments.committed); /* the slab */
    EXPECT_EQ(24 * MIB, machine_left);
    EXPECT_EQ(0, f.shortages);
    uint64_t pieces = pieces_committed;
    f.now_ms = 100000;
    rest(&f);
    EXPECT_EQ(pieces, pieces_committed); /* not tried again */
    teardown(&f);
}

TEST(it_is_a_sixteenth_of_the_capacity_at_most) {
    static const struct {
        uint64_t capacity, reserve, expected;
    } cases[] = {
        {2048 * MIB, 0, 0},         {2048 * MIB, 15 * MIB, 0},  {2048 * MIB, 16 * MIB, 16},
        {2048 * MIB, 50 * MIB, 50}, {1024 * MIB, 80 * MIB, 64}, {512 * MIB, 80 * MIB, 32},
        {256 * MIB, 80 * MIB, 16},  {128 * MIB, 80 * MIB, 0},   {4096 * MIB, 1024 * MIB, 256}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture f;
        setup_reserve(&f, cases[i].capacity, 8192 * MIB);
        f.segments.reserve_nbytes = cases[i].reserve;
        rest(&f);
        EXPECT_EQ(cases[i].expected * MIB, f.segments.warm_nbytes);
        segments_stop(&f.segments);
        uv_run(&f.loop, UV_RUN_DEFAULT);
        segments_fini(&f.segments);
        uv_loop_close(&f.loop);
    }
    uv_library_shutdown();
}

TEST(the_end_may_come_while_it_is_made) {
    struct fixture f;
    setup_reserve(&f, 2048 * MIB, 4096 * MIB);

    settle(&f);
    f.worker.settle = NULL;
    EXPECT_TRUE(f.segments.filling != NULL);
    teardown(&f);
}
