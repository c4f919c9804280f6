/* The hash table: nothing is lost while it grows, and gaps do not hide anybody. */
#include "fixture.h"
#include "table.h"

enum { MANY = 100000 };

static void *value_of(uint64_t key) {
    return (void *)(uintptr_t)(key * 3 + 1);
}

static void add(struct table *table, uint64_t key) {
    EXPECT_EQ(0, table_set(table, key, value_of(key)));
}

static void expect_exactly(const struct table *table, uint64_t first, uint64_t step,
                           uint64_t last) {
    for (uint64_t key = 1; key <= last; key++) {
        void *wanted = key >= first && (key - first) % step == 0 ? value_of(key) : NULL;
        EXPECT_TRUE(table_find(table, key) == wanted);
    }
}

TEST(an_empty_table_finds_and_removes_nothing) {
    struct table table = {0};
    size_t cursor = 0;
    uint64_t key;
    void *value;

    EXPECT_TRUE(table_find(&table, 1) == NULL);
    EXPECT_TRUE(table_remove(&table, 1) == NULL);
    EXPECT_TRUE(!table_next(&table, &cursor, &key, &value));
    table_fini(&table);
}

TEST(setting_a_key_again_replaces_its_value) {
    struct table table = {0};

    add(&table, 7);
    EXPECT_EQ(0, table_set(&table, 7, &table));
    EXPECT_EQ(1, table.count);
    EXPECT_TRUE(table_find(&table, 7) == &table);
    table_fini(&table);
}

TEST(every_key_is_found_at_every_moment_of_growing) {
    struct table table = {0};

    for (uint64_t key = 1; key <= 3000; key++) {
        add(&table, key);
        for (uint64_t seen = 1; seen <= key; seen += 1 + key / 50) {
            EXPECT_TRUE(table_find(&table, seen) == value_of(seen));
        }
        EXPECT_TRUE(table_find(&table, key + 1) == NULL);
    }
    table_fini(&table);
}

TEST(keys_removed_while_it_grows_stay_removed) {
    struct table table = {0};

    for (uint64_t key = 1; key <= MANY; key++) {
        add(&table, key);
        if (key % 2 == 0) {
            EXPECT_TRUE(table_remove(&table, key / 2) == value_of(key / 2));
            EXPECT_TRUE(table_remove(&table, key / 2) == NULL);
        }
    }
    EXPECT_EQ(MANY / 2, table.count);
    for (uint64_t key = 1; key <= MANY; key++) {
        EXPECT_TRUE((table_find(&table, key) != NULL) == (key > MANY / 2));
    }
    table_fini(&table);
}

TEST(a_gap_does_not_hide_those_behind_it) {
    struct table table = {0};

    for (uint64_t key = 1; key <= MANY; key++) {
        add(&table, key);
    }
    for (uint64_t key = 1; key <= MANY; key++) {
        if (key % 3 != 1) {
            EXPECT_TRUE(table_remove(&table, key) == value_of(key));
        }
    }
    expect_exactly(&table, 1, 3, MANY);
    table_fini(&table);
}

TEST(stepping_visits_every_entry_once_also_while_it_grows) {
    for (uint64_t count = 1; count < 200; count++) {
        struct table table = {0};
        unsigned char seen[200] = {0};
        size_t cursor = 0;
        uint64_t visited = 0;
        uint64_t key;
        void *value;
        for (uint64_t i = 1; i <= count; i++) {
            add(&table, i);
        }
        while (table_next(&table, &cursor, &key, &value)) {
            EXPECT_TRUE(key <= count && !seen[key] && value == value_of(key));
            seen[key] = 1;
            visited++;
        }
        EXPECT_EQ(count, visited);
        table_fini(&table);
    }
}

TEST(an_emptied_table_gives_its_memory_back) {
    struct table table = {0};

    for (uint64_t key = 1; key <= MANY; key++) {
        add(&table, key);
    }
    for (uint64_t key = 1; key <= MANY; key++) {
        table_remove(&table, key);
    }
    EXPECT_TRUE(table.slots == NULL && table.old == NULL);
    add(&table, 5);
    EXPECT_TRUE(table_find(&table, 5) == value_of(5));
    table_fini(&table);
}
