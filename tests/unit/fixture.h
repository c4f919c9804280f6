/*
 * fixture.h - what a C test needs: TEST, TEST_FAILS and the EXPECT macros
 *
 *     TEST(an_empty_table_finds_nothing) {
 *         EXPECT_TRUE(table_find(&table, 1) == NULL);
 *     }
 *
 * Tests register themselves. runner.c runs each in a process (and process group) of its own, with a
 * timeout, and fails it when it leaves a descriptor open. A failed EXPECT ends the test.
 */
#pragma once

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct test {
    const char *name;
    void (*run)(void);
    int must_fail;
    struct test *next; /* the runner's list */
};

void test_register(struct test *test);

/* Of this process, and one or two that are open while it counts. */
int count_descriptors(void);

#define TEST_WITH(test_name, fails)                                              \
    static void test_##test_name(void);                                          \
    __attribute__((constructor)) static void register_##test_name(void) {        \
        static struct test test = {#test_name, test_##test_name, (fails), NULL}; \
        test_register(&test);                                                    \
    }                                                                            \
    static void test_##test_name(void)

#define TEST(test_name) TEST_WITH(test_name, 0)

/* A test that passes when it fails: an EXPECT, a signal, a timeout, an open descriptor. */
#define TEST_FAILS(test_name) TEST_WITH(test_name, 1)

#define TEST_FAILED(...)                                \
    do {                                                \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
        fprintf(stderr, __VA_ARGS__);                   \
        fputc('\n', stderr);                            \
        _exit(1);                                       \
    } while (0)

#define EXPECT_TRUE(condition)                           \
    do {                                                 \
        if (!(condition)) {                              \
            TEST_FAILED("expected that %s", #condition); \
        }                                                \
    } while (0)

/* Integers of any width. */
#define EXPECT_EQ(expected, actual)                                                  \
    do {                                                                             \
        long long expected_ = (long long)(expected);                                 \
        long long actual_ = (long long)(actual);                                     \
        if (expected_ != actual_) {                                                  \
            TEST_FAILED("%s: expected %lld, got %lld", #actual, expected_, actual_); \
        }                                                                            \
    } while (0)

#define EXPECT_STR_EQ(expected, actual)                                        \
    do {                                                                       \
        const char *expected_ = (expected);                                    \
        const char *actual_ = (actual);                                        \
        if (!actual_ || strcmp(expected_, actual_) != 0) {                     \
            TEST_FAILED("%s: expected \"%s\", got \"%s\"", #actual, expected_, \
                        actual_ ? actual_ : "(null)");                         \
        }                                                                      \
    } while (0)
