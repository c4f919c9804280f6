/* Memory of a device over a store that only counts: who has it mapped, and what an unclean end
 * leaves. */
#include "commit.h"
#include "import.h"
#include "segments_fixture.h"
#include "warm.h"

enum { DEVICE = 3 };

static const struct store fake_device = {.name = "fake device",
                                         .unit = 2 * MIB,
                                         .step = UINT64_MAX,
                                         .trim_step = UINT64_MAX,
                                         .create = fake_create,
                                         .commit = fake_commit,
                                         .trim = fake_trim};

/* A client, which holds nothing yet. */
struct user {
    struct fixture f;
    struct imports imports;
};

static void setup_device(struct user *u, uint64_t capacity, uint64_t machine) {
    setup(&u->f, capacity, machine);
    u->f.segments.store = &fake_device;
    u->f.segments.device = DEVICE;
    u->f.segments.root = NULL;
    segments_init(&u->f.segments);
    imports_init(&u->imports);
}

static void teardown_device(struct user *u) {
    segments_stop(&u->f.segments);
    imports_fini(&u->imports);
    teardown(&u->f);
}

/* One of `nbytes` that this client has mapped. */
static struct range *take_mapped(struct user *u, uint64_t nbytes) {
    struct range *range = take(&u->f, nbytes);

    EXPECT_EQ(0, imports_add(&u->imports, range->segment));
    return range;
}

static void expire(struct user *u, uint64_t after_ms) {
    u->f.now_ms += after_ms;
    warm_expire(&u->f.segments, u->f.now_ms);
    commit_expire(&u->f.segments, u->f.now_ms);
    uv_run(&u->f.loop, UV_RUN_DEFAULT);
}

TEST(ids_begin_with_the_device) {
    struct user u;
    setup_device(&u, 1024 * MIB, 1024 * MIB);
    struct range *range = take(&u.f, MIB);
    uint64_t id = range->segment->id;

    EXPECT_EQ(DEVICE, segment_device(id));
    EXPECT_TRUE(segments_find(&u.f.segments, id) == range->segment);
    EXPECT_TRUE(!segments_find(&u.f.segments, id & SEGMENT_NUMBER_MASK));
    EXPECT_TRUE(!segments_find(&u.f.segments, id + 1));
    give(&u.f, range);
    teardown_device(&u);
}

TEST(it_comes_in_whole_units_at_once) {
    const uint64_t sizes[][2] = {{1, 16}, {9 * MIB, 10}, {16 * MIB + 1, 18}, {100 * MIB, 100}};
    struct user u;
    setup_device(&u, 1024 * MIB, 1024 * MIB);

    for (int i = 0; i < 4; i++) {
        struct range *range = take(&u.f, sizes[i][0]);
        EXPECT_EQ(sizes[i][1] * MIB, range->segment->nbytes);
        EXPECT_EQ(i + 1, pieces_committed);
        give(&u.f, range);
        warm_shrink(&u.f.segments, 0);
    }
    teardown_device(&u);
}

TEST(a_small_capacity_is_used_to_its_end_in_units) {
    struct user u;
    setup_device(&u, 10 * MIB, 1024 * MIB);
    struct range *ranges[5];

    for (int i = 0; i < 5; i++) {
        ranges[i] = take(&u.f, 2 * MIB);
        EXPECT_TRUE(ranges[i] != NULL);
    }
    EXPECT_TRUE(!take(&u.f, 1));
    EXPECT_EQ(10 * MIB, u.f.segments.committed);
    for (int i = 0; i < 5; i++) {
        give(&u.f, ranges[i]);
    }
    teardown_device(&u);
}

TEST(a_dying_one_stays_until_nobody_has_it_mapped) {
    struct user u;
    setup_device(&u, 1024 * MIB, 1024 * MIB);
    struct range *range = take_mapped(&u, 64 * MIB);
    uint64_t id = range->segment->id;

    EXPECT_EQ(0, imports_add(&u.imports, range->segment)); /* twice */
    give(&u.f, range);
    expire(&u, 1000);
    EXPECT_TRUE(!segments_find(&u.f.segments, id));
    EXPECT_EQ(1, u.f.segments.destroyed);
    EXPECT_EQ(0, u.f.segments.committed);
    EXPECT_EQ(64 * MIB, u.f.segments.lingering_nbytes);
    EXPECT_EQ(64 * MIB, imports_dying_nbytes(&u.imports, DEVICE));
    EXPECT_EQ(0, imports_dying_nbytes(&u.imports, DEVICE + 1));
    EXPECT_EQ(960 * MIB, machine_left);

    EXPECT_TRUE(imports_remove(&u.imports, id));
    uv_run(&u.f.loop, UV_RUN_DEFAULT);
    EXPECT_EQ(960 * MIB, machine_left);
    EXPECT_TRUE(imports_remove(&u.imports, id));
    uv_run(&u.f.loop, UV_RUN_DEFAULT);
    EXPECT_EQ(1024 * MIB, machine_left);
    EXPECT_EQ(0, u.f.segments.lingering_nbytes);
    teardown_device(&u);
}

TEST(nothing_is_unmapped_that_was_not_mapped) {
    struct user u;
    setup_device(&u, 1024 * MIB, 1024 * MIB);
    struct range *range = take_mapped(&u, MIB);
    uint64_t id = range->segment->id;

    EXPECT_TRUE(!imports_remove(&u.imports, id + 1));
    EXPECT_TRUE(!imports_remove(&u.imports, 0));
    EXPECT_TRUE(!imports_remove(&u.imports, UINT64_MAX));
    EXPECT_TRUE(imports_remove(&u.imports, id));
    EXPECT_TRUE(!imports_remove(&u.imports, id));
    give(&u.f, range);
    teardown_device(&u);
}

TEST(who_finds_no_memory_gets_what_is_unmapped_in_time) {
    struct user u;
    setup_device(&u, 1024 * MIB, 100 * MIB);
    struct range *range = take_mapped(&u, 64 * MIB);
    uint64_t id = range->segment->id;
    struct waiter waiter = {.link = {&waiter.link, &waiter.link}};

    give(&u.f, range);
    EXPECT_TRUE(!try_take(&u.f, 90 * MIB, &waiter)); /* more than is left */
    uv_run(&u.f.loop, UV_RUN_DEFAULT);
    expire(&u, 1999);
    EXPECT_TRUE(waiter.on != NULL);
    EXPECT_EQ(0, u.f.shortages);
    EXPECT_TRUE(imports_remove(&u.imports, id));
    uv_run(&u.f.loop, UV_RUN_DEFAULT);
    EXPECT_TRUE(list_pop(&u.f.ready) != NULL);
    range = try_take(&u.f, 90 * MIB, &waiter);
    EXPECT_TRUE(range != NULL);
    give(&u.f, range);
    teardown_device(&u);
}

TEST(who_finds_no_memory_waits_for_two_seconds_at_most) {
    struct user u;
    setup_device(&u, 1024 * MIB, 100 * MIB);
    struct range *range = take_mapped(&u, 64 * MIB);
    struct waiter waiter = {.link = {&waiter.link, &waiter.link}};

    give(&u.f, range);
    EXPECT_TRUE(!try_take(&u.f, 90 * MIB, &waiter));
    uv_run(&u.f.loop, UV_RUN_DEFAULT);
    uint64_t end_ms = u.f.now_ms + 2000;
    EXPECT_EQ(end_ms, commit_expire(&u.f.segments, u.f.now_ms));
    expire(&u, 2000);
    EXPECT_EQ(1, u.f.shortages);
    EXPECT_EQ(ENOMEM, u.f.shortage.error);
    EXPECT_EQ(90 * MIB, u.f.shortage.asked);
    EXPECT_TRUE(!waiter.on);
    range = take(&u.f, 30 * MIB); /* there is some */
    EXPECT_TRUE(range != NULL);
    give(&u.f, range);
    teardown_device(&u);
}

TEST(the_last_memory_of_a_device_is_used_as_well) {
    struct user u;
    setup_device(&u, 1024 * MIB, 5 * MIB); /* not enough for a slab */
    struct range *ranges[4];

    for (int i = 0; i < 4; i++) {
        ranges[i] = take(&u.f, i ? MIB : 1000);
    }

    EXPECT_EQ(4 * MIB, u.f.segments.committed);
    EXPECT_TRUE(!take(&u.f, MIB));
    EXPECT_EQ(1, u.f.shortages);
    for (int i = 0; i < 4; i++) {
        give(&u.f, ranges[i]);
    }
    teardown_device(&u);
}

TEST(who_gives_up_waiting_leaves_nothing) {
    struct user u;
    setup_device(&u, 1024 * MIB, 100 * MIB);
    struct range *range = take_mapped(&u, 64 * MIB);
    struct waiter waiter = {.link = {&waiter.link, &waiter.link}};

    give(&u.f, range);
    EXPECT_TRUE(!try_take(&u.f, 90 * MIB, &waiter));
    uv_run(&u.f.loop, UV_RUN_DEFAULT);
    waiter_stop(&waiter);
    expire(&u, 2000);
    EXPECT_EQ(0, u.f.segments.committed);
    EXPECT_TRUE(list_is_empty(&u.f.segments.stalled));
    teardown_device(&u);
}

TEST(a_spoilt_range_is_not_handed_out_again) {
    struct user u;
    setup_device(&u, 1024 * MIB, 1024 * MIB);
    struct range *spoilt = take(&u.f, MIB);
    struct range *other = take(&u.f, MIB);
    uint64_t id = spoilt->segment->id;
    uint64_t offset = range_offset(spoilt);

    segments_abandon(spoilt);
    for (int i = 0; i < 100; i++) {
        struct range *range = take(&u.f, MIB);
        EXPECT_TRUE(range->segment->id != id || range_offset(range) != offset);
        give(&u.f, range);
    }
    give(&u.f, other); /* now nobody uses it: it is destroyed, not kept warm */
    EXPECT_EQ(1, u.f.segments.destroyed);
    EXPECT_EQ(0, u.f.segments.warm_nbytes);
    EXPECT_EQ(1024 * MIB, machine_left);
    teardown_device(&u);
}

TEST(a_slab_of_which_all_is_spoilt_goes_with_the_last) {
    struct user u;
    setup_device(&u, 1024 * MIB, 1024 * MIB);
    struct range *ranges[] = {take(&u.f, MIB), take(&u.f, 1), take(&u.f, 2 * MIB)};

    give(&u.f, take(&u.f, 5 * MIB)); /* free in between */
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(0, u.f.segments.destroyed);
        segments_abandon(ranges[i]);
    }
    uv_run(&u.f.loop, UV_RUN_DEFAULT);
    EXPECT_EQ(1, u.f.segments.destroyed);
    EXPECT_EQ(1024 * MIB, machine_left);
    teardown_device(&u);
}

TEST(a_spoilt_large_one_is_destroyed_and_waits_for_its_importers) {
    struct user u;
    setup_device(&u, 1024 * MIB, 1024 * MIB);
    struct range *range = take_mapped(&u, 64 * MIB);

    segments_abandon(range);
    uv_run(&u.f.loop, UV_RUN_DEFAULT);
    EXPECT_EQ(0, u.f.segments.warm_nbytes);
    EXPECT_EQ(960 * MIB, machine_left);
    imports_fini(&u.imports);
    uv_run(&u.f.loop, UV_RUN_DEFAULT);
    EXPECT_EQ(1024 * MIB, machine_left);
    teardown_device(&u);
}

TEST(at_the_end_nothing_is_emptied_that_is_mapped) {
    struct user u;
    setup_device(&u, 1024 * MIB, 1024 * MIB);
    struct range *held = take_mapped(&u, 64 * MIB);
    struct range *dying = take_mapped(&u, 32 * MIB);

    give(&u.f, dying);
    expire(&u, 1000);
    segments_stop(&u.f.segments);
    segments_give(held);
    uv_run(&u.f.loop, UV_RUN_DEFAULT);
    EXPECT_EQ(928 * MIB, machine_left);
    teardown_device(&u);
}
