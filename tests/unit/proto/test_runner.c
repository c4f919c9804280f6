/* The runner itself: it must see every way a test can fail. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>

#include "fixture.h"

TEST(what_holds_passes) {
    EXPECT_TRUE(1);
    EXPECT_EQ(-1, -1);
    EXPECT_STR_EQ("a", "a");
}

TEST_FAILS(a_false_condition_is_seen) {
    EXPECT_TRUE(0);
}

TEST_FAILS(different_numbers_are_seen) {
    EXPECT_EQ(1, 2);
}

TEST_FAILS(different_strings_are_seen) {
    EXPECT_STR_EQ("a", "b");
}

TEST_FAILS(an_open_descriptor_is_seen) {
    EXPECT_TRUE(open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0);
}

TEST_FAILS(an_abort_is_seen) {
    abort();
}

TEST_FAILS(a_hang_is_seen) {
    alarm(1);
    for (;;) {
        pause();
    }
}

TEST_FAILS(an_early_exit_with_an_error_is_seen) {
    exit(3);
}
