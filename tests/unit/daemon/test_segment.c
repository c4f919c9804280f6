/* Segments over a store that only counts: committing, warmth, room, cancelling, shortage. */
#include "segments_fixture.h"
#include "warm.h"

TEST(small_ones_share_a_slab_large_ones_have_their_own) {
    struct fixture f;
    setup(&f, 1024 * MIB, 1024 * MIB);
    struct range *a = take(&f, 1);
    struct range *b = take(&f, MIB);
    struct range *large = take(&f, 16 * MIB);

    EXPECT_TRUE(a->segment == b->segment);
    EXPECT_TRUE(large->segment != a->segment);
    EXPECT_EQ(16 * MIB, a->segment->nbytes);
    EXPECT_EQ(16 * MIB, large->segment->nbytes);
    EXPECT_EQ(32 * MIB, f.segments.committed);
    EXPECT_EQ(0, f.segments.warm_nbytes);
    give(&f, a);
    give(&f, b);
    give(&f, large);
    teardown(&f);
}

TEST(committing_goes_in_pieces) {
    struct fixture f;
    setup(&f, 1024 * MIB, 1024 * MIB);

    give(&f, take(&f, 64 * MIB));
    EXPECT_EQ(16, pieces_committed);
    teardown(&f);
}

TEST(what_is_freed_stays_warm_and_is_taken_next) {
    struct fixture f;
    setup(&f, 1024 * MIB, 1024 * MIB);
    struct range *first = take(&f, 64 * MIB);
    uint64_t id = first->segment->id;

    give(&f, first);
    EXPECT_EQ(64 * MIB, f.segments.warm_nbytes);
    pieces_committed = 0;
    struct range *second = take(&f, 60 * MIB);
    EXPECT_EQ(id, second->segment->id);
    EXPECT_EQ(0, pieces_committed);
    EXPECT_EQ(0, f.segments.warm_nbytes);
    give(&f, second);
    teardown(&f);
}

TEST(a_warm_segment_is_not_wasted_on_a_much_smaller_one) {
    struct fixture f;
    setup(&f, 1024 * MIB, 1024 * MIB);

    give(&f, take(&f, 128 * MIB));
    struct range *range = take(&f, 64 * MIB);
    EXPECT_EQ(64 * MIB, range->segment->nbytes);
    give(&f, range);
    teardown(&f);
}

TEST(an_empty_slab_is_warm_until_it_is_used_again) {
    struct fixture f;
    setup(&f, 1024 * MIB, 1024 * MIB);

    give(&f, take(&f, KIB));
    EXPECT_EQ(16 * MIB, f.segments.warm_nbytes);
    struct range *range = take(&f, KIB);
    EXPECT_EQ(0, f.segments.warm_nbytes);
    EXPECT_EQ(1, f.segments.by_id.count);
    give(&f, range);
    teardown(&f);
}

TEST(at_most_a_quarter_of_the_capacity_is_warm) {
    struct fixture f;
    setup(&f, 256 * MIB, 1024 * MIB);
    struct range *a = take(&f, 64 * MIB);
    struct range *b = take(&f, 100 * MIB);

    give(&f, a);
    EXPECT_EQ(64 * MIB, f.segments.warm_nbytes);
    give(&f, b); /* too large to stay, and the other one is the longest unused */
    EXPECT_EQ(0, f.segments.warm_nbytes);
    EXPECT_EQ(0, f.segments.committed);
    EXPECT_EQ(1024 * MIB, machine_left);
    EXPECT_EQ(2, f.segments.destroyed);
    teardown(&f);
}

TEST(warm_segments_are_given_back_after_their_time) {
    struct fixture f;
    setup(&f, 1024 * MIB, 1024 * MIB);

    give(&f, take(&f, 64 * MIB));
    EXPECT_EQ(1001, warm_expire(&f.segments, 1000));
    EXPECT_EQ(64 * MIB, f.segments.warm_nbytes);
    EXPECT_TRUE(warm_expire(&f.segments, 1001) == UINT64_MAX);
    EXPECT_EQ(0, f.segments.committed);
    uv_run(&f.loop, UV_RUN_DEFAULT);
    EXPECT_EQ(1024 * MIB, machine_left);
    teardown(&f);
}

TEST(over_the_capacity_there_is_no_memory) {
    struct fixture f;
    setup(&f, 64 * MIB, 1024 * MIB);
    struct range *range = take(&f, 60 * MIB);

    EXPECT_TRUE(take(&f, 5 * MIB) == NULL);
    EXPECT_EQ(0, f.shortage.error);
    EXPECT_TRUE(f.shortage.limit == NULL);
    EXPECT_TRUE(take(&f, UINT64_MAX) == NULL);
    give(&f, range);
    teardown(&f);
}

TEST(the_last_bytes_of_the_capacity_are_used_as_well) {
    struct fixture f;
    setup(&f, 64 * MIB, 1024 * MIB); /* slabs of 8 MiB */
    struct range *large = take(&f, 62 * MIB);
    struct range *small = take(&f, MIB);

    EXPECT_TRUE(large && small);
    EXPECT_EQ(2 * MIB, small->segment->nbytes);
    EXPECT_EQ(64 * MIB, f.segments.committed);
    give(&f, large);
    give(&f, small);
    teardown(&f);
}

TEST(the_warm_pool_is_emptied_before_there_is_no_memory) {
    struct fixture f;
    setup(&f, 256 * MIB, 1024 * MIB);
    struct range *range = take(&f, 190 * MIB);

    give(&f, take(&f, 60 * MIB));
    EXPECT_EQ(60 * MIB, f.segments.warm_nbytes);
    struct range *second = take(&f, 30 * MIB);
    EXPECT_TRUE(second != NULL);
    EXPECT_EQ(0, f.segments.warm_nbytes);
    give(&f, range);
    give(&f, second);
    teardown(&f);
}

TEST(a_machine_that_is_full_waits_for_what_is_being_given_back) {
    struct fixture f;
    setup(&f, 1024 * MIB, 100 * MIB);

    give(&f, take(&f, 80 * MIB)); /* warm: the machine has 20 MiB */
    struct range *range = take(&f, 40 * MIB);
    EXPECT_TRUE(range != NULL);
    EXPECT_EQ(0, f.shortages);
    EXPECT_EQ(60 * MIB, machine_left);
    give(&f, range);
    teardown(&f);
}

TEST(a_machine_without_memory_is_told_with_its_reason) {
    struct fixture f;
    setup(&f, 1024 * MIB, 10 * MIB);

    EXPECT_TRUE(take(&f, 64 * MIB) == NULL);
    EXPECT_EQ(1, f.shortages);
    EXPECT_EQ(ENOSPC, f.shortage.error);
    EXPECT_EQ(0, f.segments.committed);
    EXPECT_EQ(0, f.segments.committing);
    EXPECT_EQ(10 * MIB, machine_left); /* the pieces that were there came back */
    teardown(&f);
}

TEST(a_slab_keeps_the_pieces_it_got) {
    struct fixture f;
    setup(&f, 1024 * MIB, 10 * MIB);
    struct range *range = take(&f, MIB);

    EXPECT_TRUE(range != NULL);
    EXPECT_EQ(8 * MIB, range->segment->nbytes);
    EXPECT_EQ(8 * MIB, f.segments.committed);
    give(&f, range);
    teardown(&f);
}

TEST(nothing_is_committed_for_waiters_that_went_away) {
    struct fixture f;
    struct waiter waiter;
    setup(&f, 2048 * MIB, 2048 * MIB);

    EXPECT_TRUE(try_take(&f, 1024 * MIB, &waiter) == NULL);
    EXPECT_EQ(1024 * MIB, f.segments.committed);
    waiter_stop(&waiter);
    uv_run(&f.loop, UV_RUN_DEFAULT);
    EXPECT_EQ(1, pieces_committed);
    EXPECT_EQ(0, f.segments.committed);
    EXPECT_EQ(0, f.segments.by_id.count);
    teardown(&f);
}

TEST(many_small_ones_wait_for_one_slab) {
    struct fixture f;
    struct waiter waiters[3];
    struct range *ranges[3];
    setup(&f, 1024 * MIB, 1024 * MIB);

    for (int i = 0; i < 3; i++) {
        EXPECT_TRUE(try_take(&f, MIB, &waiters[i]) == NULL);
    }
    EXPECT_EQ(1, f.segments.by_id.count);
    uv_run(&f.loop, UV_RUN_DEFAULT);
    for (int i = 0; i < 3; i++) {
        EXPECT_TRUE(list_pop(&f.ready) == &waiters[i].link);
        ranges[i] = try_take(&f, MIB, &waiters[i]);
        EXPECT_TRUE(ranges[i] != NULL);
    }
    for (int i = 0; i < 3; i++) {
        give(&f, ranges[i]);
    }
    teardown(&f);
}

TEST(large_memory_of_one_user_is_never_given_to_another) {
    struct fixture f;
    setup(&f, 512 * MIB, UINT64_MAX);
    struct range *range = take(&f, 20 * MIB);
    uint64_t id = range->segment->id;
    give(&f, range);

    f.user = 1;
    range = take(&f, 20 * MIB);
    EXPECT_TRUE(range->segment->id != id);
    give(&f, range);
    f.user = 0;
    range = take(&f, 20 * MIB);
    EXPECT_EQ(id, range->segment->id);
    give(&f, range);
    teardown(&f);
}

TEST(small_memory_of_one_user_is_never_given_to_another) {
    struct fixture f;
    setup(&f, 512 * MIB, UINT64_MAX);
    struct range *kept = take(&f, 100);
    give(&f, take(&f, 100));

    f.user = 1;
    struct range *other = take(&f, 100);
    struct range *another = take(&f, 100);
    EXPECT_TRUE(other->segment != kept->segment && another->segment == other->segment);
    give(&f, kept);
    give(&f, take(&f, 100));
    EXPECT_EQ(f.segments.slab_nbytes, f.segments.warm_nbytes); /* that of user 0, still */
    give(&f, other);
    give(&f, another);
    teardown(&f);
}

TEST(a_slab_that_nobody_used_is_anybodys) {
    struct fixture f;
    struct waiter gone = {.link = {&gone.link, &gone.link}};
    setup(&f, 512 * MIB, UINT64_MAX);
    EXPECT_TRUE(try_take(&f, 100, &gone) == NULL);
    uv_run(&f.loop, UV_RUN_DEFAULT);
    waiter_stop(&gone);

    f.user = 1;
    struct range *range = take(&f, 100);
    EXPECT_EQ(1, f.segments.by_id.count);
    give(&f, range);
    teardown(&f);
}

TEST(a_segment_is_found_only_while_it_can_be_mapped) {
    struct fixture f;
    struct waiter waiter;
    setup(&f, 1024 * MIB, 1024 * MIB);

    EXPECT_TRUE(try_take(&f, KIB, &waiter) == NULL);
    EXPECT_TRUE(segments_find(&f.segments, 1) == NULL); /* not yet */
    uv_run(&f.loop, UV_RUN_DEFAULT);
    list_pop(&f.ready);
    EXPECT_TRUE(segments_find(&f.segments, 1) != NULL);
    warm_expire(&f.segments, UINT64_MAX - 1);
    EXPECT_TRUE(segments_find(&f.segments, 1) == NULL); /* no more */
    EXPECT_TRUE(segments_find(&f.segments, 2) == NULL);
    uv_run(&f.loop, UV_RUN_DEFAULT);
    teardown(&f);
}

TEST(what_clients_have_mapped_is_not_emptied_at_the_end) {
    struct fixture f;
    setup(&f, 1024 * MIB, 1024 * MIB);
    struct range *range = take(&f, 64 * MIB);

    segments_stop(&f.segments);
    give(&f, range);
    EXPECT_EQ(1024 * MIB - 64 * MIB, machine_left);
    teardown(&f);
}

TEST(every_size_near_a_border_can_be_had) {
    static const uint64_t sizes[] = {1,        255,          256,         257,     64 * KIB - 1,
                                     64 * KIB, 64 * KIB + 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1,
                                     8 * MIB,  33 * MIB};

    for (uint64_t capacity = 36 * MIB; capacity <= 64 * MIB; capacity += 7 * MIB + 4 * KIB) {
        struct fixture f;
        setup(&f, capacity, 1024 * MIB);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            struct range *range = take(&f, sizes[i]);
            EXPECT_TRUE(range != NULL);
            EXPECT_TRUE(range_offset(range) + sizes[i] <= range->segment->nbytes);
            give(&f, range);
        }
        segments_stop(&f.segments);
        uv_run(&f.loop, UV_RUN_DEFAULT);
        segments_fini(&f.segments);
        uv_loop_close(&f.loop);
    }
    uv_library_shutdown();
}
