/* Lists of users, as on a command line and in the environment. */
#include "uids.h"

#include "fixture.h"

TEST(a_list_has_numbers_with_commas_between) {
    struct uids uids = {0};

    EXPECT_EQ(0, uids_add(&uids, "1000"));
    EXPECT_EQ(0, uids_add(&uids, "0,4294967294"));
    EXPECT_EQ(3, uids.count);
    EXPECT_TRUE(uids_find(&uids, 1000) >= 0 && uids_find(&uids, 0) >= 0 &&
                uids_find(&uids, 4294967294) >= 0);
    EXPECT_TRUE(uids_find(&uids, 1) < 0);
}

TEST(what_is_no_list_is_refused) {
    static const char *const bad[] = {"",     ",",          "1,",   ",1",
                                      "1,,2", "-1",         "+1",   "1 ",
                                      " 1",   "4294967295", "root", "99999999999999999999"};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct uids uids = {0};
        if (uids_add(&uids, bad[i]) == 0) {
            TEST_FAILED("\"%s\" was taken", bad[i]);
        }
    }
}

TEST(a_list_does_not_grow_beyond_its_room) {
    struct uids uids = {0};

    for (int i = 0; i < UIDS_MAX; i++) {
        EXPECT_EQ(0, uids_add(&uids, "7"));
    }
    EXPECT_EQ(-1, uids_add(&uids, "8"));
    EXPECT_TRUE(uids_find(&uids, 8) < 0);
}
