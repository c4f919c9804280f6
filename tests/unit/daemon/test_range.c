/* The allocator: ranges never overlap, are aligned, and merge again when they are given back. */
#include <stdlib.h>

#include "fixture.h"
#include "range.h"

#define MIB (1024u * 1024)

/* Segments are only an address to the allocator. */
static struct segment *segment_number(uintptr_t number) {
    return (struct segment *)(number * 64);
}

/* A number that looks random and is the same in every run. */
static uint32_t dice(void) {
    static uint32_t state = 12345;

    state = state * 1664525 + 1013904223;
    return state >> 8;
}

static struct range *add_space(struct ranges *ranges, uintptr_t number, uint64_t nbytes) {
    struct range *whole;

    EXPECT_EQ(0, ranges_add(ranges, segment_number(number), nbytes, &whole));
    return whole;
}

/* What is taken belongs to us; NULL: there is nothing. */
static struct range *take(struct ranges *ranges, uint64_t nbytes) {
    struct range *range = malloc(sizeof *range);

    if (!range_take(ranges, nbytes, range)) {
        free(range);
        return NULL;
    }
    return range;
}

static uint64_t nbytes_of(const struct range *range) {
    return (uint64_t)range->units * RANGE_UNIT;
}

TEST(without_space_there_is_nothing_to_take) {
    struct ranges ranges;

    ranges_init(&ranges);
    EXPECT_TRUE(take(&ranges, 1) == NULL);
}

TEST(a_space_can_be_taken_whole) {
    struct ranges ranges;

    ranges_init(&ranges);
    add_space(&ranges, 1, MIB);
    struct range *range = take(&ranges, MIB - RANGE_PAGE);
    EXPECT_TRUE(range && range->segment == segment_number(1));
    EXPECT_EQ(0, range_offset(range));
    EXPECT_EQ(MIB - RANGE_PAGE, nbytes_of(range));
    range_drop(&ranges, range_give(&ranges, range));
}

TEST(what_is_larger_than_any_space_is_not_found) {
    struct ranges ranges;

    ranges_init(&ranges);
    struct range *whole = add_space(&ranges, 1, MIB);
    EXPECT_TRUE(take(&ranges, MIB + 1) == NULL);
    EXPECT_TRUE(take(&ranges, UINT64_MAX) == NULL);
    range_drop(&ranges, whole);
}

TEST(small_ranges_are_aligned_to_256_bytes_large_ones_to_pages) {
    struct ranges ranges;

    ranges_init(&ranges);
    add_space(&ranges, 1, 8 * MIB);
    struct range *small = take(&ranges, 1);
    struct range *large = take(&ranges, RANGE_PAGE_FROM);
    struct range *odd = take(&ranges, RANGE_PAGE_FROM + 1);
    EXPECT_EQ(256, nbytes_of(small));
    EXPECT_EQ(0, range_offset(large) % RANGE_PAGE);
    EXPECT_EQ(0, range_offset(odd) % RANGE_PAGE);
    EXPECT_TRUE(range_give(&ranges, small) == NULL);
    EXPECT_TRUE(range_give(&ranges, odd) == NULL);
    range_drop(&ranges, range_give(&ranges, large));
}

TEST(the_gap_before_an_aligned_range_is_used_for_small_ones) {
    struct ranges ranges;

    ranges_init(&ranges);
    add_space(&ranges, 1, MIB);
    struct range *first = take(&ranges, 1);
    struct range *large = take(&ranges, RANGE_PAGE_FROM);
    struct range *second = take(&ranges, 1);
    EXPECT_TRUE(range_offset(second) < range_offset(large));
    range_give(&ranges, first);
    range_give(&ranges, second);
    range_drop(&ranges, range_give(&ranges, large));
}

TEST(a_hole_of_exactly_the_size_is_used_again) {
    static const uint64_t sizes[] = {256,    5000,  RANGE_PAGE_FROM, RANGE_PAGE_FROM + 1,
                                     300000, 999999};
    static struct range *taken[MIB / 256 + 1];

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct range *whole = NULL;
        struct ranges ranges;
        size_t count = 0;
        ranges_init(&ranges);
        add_space(&ranges, 1, MIB);
        while ((taken[count] = take(&ranges, sizes[i]))) {
            count++;
        }
        uint32_t offset = taken[count / 2]->offset;
        range_give(&ranges, taken[count / 2]);
        taken[count / 2] = take(&ranges, sizes[i]);
        EXPECT_TRUE(taken[count / 2] && taken[count / 2]->offset == offset);
        while (count-- > 0) {
            whole = range_give(&ranges, taken[count]);
        }
        EXPECT_TRUE(whole != NULL);
        range_drop(&ranges, whole);
    }
}

TEST(neighbours_merge_whatever_the_order) {
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                    {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

    for (int i = 0; i < 6; i++) {
        struct ranges ranges;
        struct range *range[3];
        ranges_init(&ranges);
        add_space(&ranges, 1, MIB);
        for (int k = 0; k < 3; k++) {
            range[k] = take(&ranges, 1000);
        }
        EXPECT_TRUE(range_give(&ranges, range[orders[i][0]]) == NULL);
        EXPECT_TRUE(range_give(&ranges, range[orders[i][1]]) == NULL);
        struct range *whole = range_give(&ranges, range[orders[i][2]]);
        EXPECT_TRUE(whole != NULL);
        EXPECT_EQ(MIB, nbytes_of(whole));
        range_drop(&ranges, whole);
    }
}

TEST(ranges_of_two_segments_do_not_merge) {
    struct range *range[2];
    struct ranges ranges;

    ranges_init(&ranges);
    add_space(&ranges, 1, MIB);
    add_space(&ranges, 2, MIB);
    range[0] = take(&ranges, MIB - RANGE_PAGE);
    range[1] = take(&ranges, MIB - RANGE_PAGE);
    EXPECT_TRUE(range[0]->segment != range[1]->segment);
    for (int i = 0; i < 2; i++) {
        struct range *whole = range_give(&ranges, range[i]);
        EXPECT_TRUE(whole != NULL);
        EXPECT_EQ(MIB, nbytes_of(whole));
    }
    for (int i = 0; i < 2; i++) {
        range_drop(&ranges, range_give(&ranges, take(&ranges, MIB - RANGE_PAGE)));
    }
}

TEST(a_dropped_space_is_no_longer_handed_out) {
    struct ranges ranges;

    ranges_init(&ranges);
    range_drop(&ranges, add_space(&ranges, 1, MIB));
    EXPECT_TRUE(take(&ranges, 1) == NULL);
}

static void expect_apart(const struct range *a, const struct range *b) {
    EXPECT_TRUE(a->segment != b->segment || a->offset + a->units <= b->offset ||
                b->offset + b->units <= a->offset);
}

TEST(random_takes_and_gives_never_overlap_and_end_with_everything_free) {
    enum { SLOTS = 200, SPACES = 3, ROUNDS = 20000 };
    struct range *taken[SLOTS] = {0};
    struct range *whole;
    struct ranges ranges;
    int empty = SPACES;

    ranges_init(&ranges);
    for (uintptr_t i = 1; i <= SPACES; i++) {
        add_space(&ranges, i, RANGE_SPACE_MAX);
    }
    for (int round = 0; round < ROUNDS; round++) {
        struct range **slot = &taken[dice() % SLOTS];
        if (*slot) {
            range_give(&ranges, *slot);
            *slot = NULL;
            continue;
        }
        uint64_t nbytes = 1 + dice() % (dice() % 4 ? 10000 : 4 * MIB);
        *slot = take(&ranges, nbytes);
        for (int i = 0; *slot && i < SLOTS; i++) {
            EXPECT_TRUE(nbytes_of(*slot) >= nbytes);
            if (taken[i] && &taken[i] != slot) {
                expect_apart(taken[i], *slot);
            }
        }
    }
    for (int i = 0; i < SLOTS; i++) {
        if (taken[i] && (whole = range_give(&ranges, taken[i]))) {
            EXPECT_EQ(RANGE_SPACE_MAX, nbytes_of(whole));
        }
    }
    /* All space is in whole segments again, so that as many large ranges fit as at the start. */
    for (int i = 0; i < SPACES; i++) {
        taken[i] = take(&ranges, RANGE_SPACE_MAX - RANGE_PAGE);
        EXPECT_TRUE(taken[i] != NULL);
    }
    for (int i = 0; i < SPACES; i++) {
        whole = range_give(&ranges, taken[i]);
        EXPECT_TRUE(whole != NULL);
        range_drop(&ranges, whole);
        empty--;
    }
    EXPECT_EQ(0, empty);
}
