/* The kinds of memory: what is committed is there, zero and counted; what is trimmed is not. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "bytes.h"
#include "fixture.h"
#include "store.h"

static const struct store *const stores[] = {&store_posix, &store_memfd, &store_huge};

enum { STORES = sizeof stores / sizeof *stores };

static uint64_t committed(int fd) {
    struct stat info;

    EXPECT_EQ(0, fstat(fd, &info));
    return (uint64_t)info.st_blocks * 512;
}

static struct backing create(const struct store *store, uint64_t nbytes) {
    struct backing backing = {.store = store, .fd = -1};

    EXPECT_EQ(0, store->create(&backing, nbytes));
    EXPECT_EQ(0, committed(backing.fd));
    return backing;
}

TEST(a_part_is_committed_and_zero_and_given_back) {
    static char bytes[4 * MIB];

    for (int i = 0; i < STORES; i++) {
        struct backing backing = create(stores[i], 16 * MIB);
        EXPECT_EQ(0, stores[i]->commit(&backing, 4 * MIB, 4 * MIB));
        EXPECT_EQ(4 * MIB, committed(backing.fd));
        memset(bytes, 1, sizeof bytes);
        EXPECT_EQ(sizeof bytes, pread(backing.fd, bytes, sizeof bytes, 4 * MIB));
        EXPECT_TRUE(bytes[0] == 0 && memcmp(bytes, bytes + 1, sizeof bytes - 1) == 0);
        EXPECT_EQ(0, stores[i]->trim(&backing, 4 * MIB, 4 * MIB));
        EXPECT_EQ(0, committed(backing.fd));
        close(backing.fd);
    }
}

TEST(any_part_of_whole_pages_can_be_committed) {
    for (int i = 0; i < STORES; i++) {
        struct backing backing = create(stores[i], 16 * MIB);
        EXPECT_EQ(0, stores[i]->commit(&backing, 4 * MIB, 4096));
        EXPECT_EQ(0, stores[i]->commit(&backing, 8 * MIB + 4096, 2 * MIB));
        EXPECT_EQ(2 * MIB + 4096, committed(backing.fd));
        close(backing.fd);
    }
}

TEST(what_was_written_before_stays) {
    for (int i = 0; i < STORES; i++) {
        char byte = 0;
        struct backing backing = create(stores[i], 8 * MIB);
        EXPECT_EQ(0, stores[i]->commit(&backing, 0, 4 * MIB));
        EXPECT_EQ(0, stores[i]->write(&backing, 4 * MIB - 1, "x", 1));
        EXPECT_EQ(0, stores[i]->commit(&backing, 4 * MIB, 4 * MIB));
        EXPECT_EQ(1, pread(backing.fd, &byte, 1, 4 * MIB - 1));
        EXPECT_EQ('x', byte);
        close(backing.fd);
    }
}

TEST(a_memfd_cannot_be_made_shorter_or_longer) {
    for (int i = 1; i < STORES; i++) {
        struct backing backing = create(stores[i], 8 * MIB);
        EXPECT_EQ(F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, fcntl(backing.fd, F_GET_SEALS));
        EXPECT_EQ(-1, ftruncate(backing.fd, 4 * MIB));
        EXPECT_EQ(-1, ftruncate(backing.fd, 16 * MIB));
        close(backing.fd);
    }
}

TEST(sizes_that_cannot_be_are_an_error) {
    for (int i = 0; i < STORES; i++) {
        struct backing backing = {.store = stores[i], .fd = -1};
        EXPECT_TRUE(stores[i]->create(&backing, UINT64_MAX) < 0);
        EXPECT_TRUE(stores[i]->create(&backing, (uint64_t)INT64_MAX + 1) < 0);
        EXPECT_EQ(-1, backing.fd);
    }
}
