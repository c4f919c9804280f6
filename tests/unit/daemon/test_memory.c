/* How much memory there is, from a tree of /proc and /sys that the tests lay out. */
#include <fcntl.h>
#include <ftw.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "fixture.h"
#include "memory.h"

#define MIB        ((uint64_t)1 << 20)
#define V1         "/sys/fs/cgroup/memory"
#define V2         "/sys/fs/cgroup"
#define HYBRID_V2  "/sys/fs/cgroup/unified"
#define THE_CGROUP "the memory limit of the daemon's cgroup"

static char root[] = "/tmp/tensorcx-memory-XXXXXX";

/* Writes a file below `root`, and makes the folders above it. */
static void lay(const char *name, const char *text) {
    char path[512];

    snprintf(path, sizeof path, "%s%s", root, name);
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT_TRUE(fd >= 0);
    EXPECT_EQ(strlen(text), write(fd, text, strlen(text)));
    close(fd);
}

static void lay_mib(const char *name, uint64_t mib) {
    char text[32];

    snprintf(text, sizeof text, "%llu\n", (unsigned long long)(mib * MIB));
    lay(name, text);
}

/* A machine with 1,600 MiB, of which 1,100 are available and 100 left alone. */
static void setup(const char *cgroup) {
    EXPECT_TRUE(mkdtemp(root) != NULL);
    lay("/proc/meminfo", "MemTotal:  1638400 kB\nMemFree:  20480 kB\nMemAvailable: 1126400 kB\n");
    lay("/proc/self/cgroup", cgroup);
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *ftw) {
    (void)info;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void teardown(void) {
    EXPECT_EQ(0, nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS));
}

static void expect_room(uint64_t mib, const char *limit) {
    const char *told;

    EXPECT_EQ(mib, memory_available(root, &told) / MIB);
    EXPECT_STR_EQ(limit, told);
}

static void expect_machine(void) {
    expect_room(1000, "the memory of this machine");
}

TEST(without_cgroups_it_is_what_the_kernel_calls_available) {
    char path[64];
    setup("");

    expect_machine();
    memory_cgroup(root, path, sizeof path);
    EXPECT_STR_EQ("?", path);
    teardown();
}

TEST(at_most_256_mib_are_left_alone) {
    setup("");

    lay("/proc/meminfo", "MemTotal: 1048576000 kB\nMemAvailable: 104857600 kB\n");
    expect_room(100 * 1024 - 256, "the memory of this machine");
    lay("/proc/meminfo", "MemAvailable: 104857600 kB\n");
    expect_room(100 * 1024 - 256, "the memory of this machine");
    lay("/proc/meminfo", "MemTotal: 1048576000 kB\nMemAvailable: 102400 kB\n");
    expect_room(0, "the memory of this machine");
    teardown();
}

TEST(what_is_not_told_is_no_limit) {
    const char *limit;
    setup("");

    lay("/proc/meminfo", "MemFree: 20480 kB\n");
    EXPECT_TRUE(memory_available(root, &limit) == UINT64_MAX);
    lay("/proc/meminfo", "MemAvailable: many kB\n");
    EXPECT_TRUE(memory_available(root, &limit) == UINT64_MAX);
    lay("/proc/meminfo", "MemAvailable: 99999999999999999999999 kB\n");
    EXPECT_TRUE(memory_available(root, &limit) == UINT64_MAX);
    lay("/proc/meminfo", "MemAvailable: 0 kB\n");
    EXPECT_EQ(0, memory_available(root, &limit));
    teardown();
    strcpy(root, "/tmp/tensorcx-memory/none");
    EXPECT_TRUE(memory_available(root, &limit) == UINT64_MAX);
}

TEST(huge_pages_are_given_unless_they_are_forbidden) {
    static const char file[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    setup("");

    EXPECT_TRUE(!memory_has_huge_pages(root));
    lay(file, "always within_size advise [never] deny force\n");
    EXPECT_TRUE(!memory_has_huge_pages(root));
    lay(file, "always within_size advise never [deny] force\n");
    EXPECT_TRUE(!memory_has_huge_pages(root));
    lay(file, "always within_size [advise] never deny force\n");
    EXPECT_TRUE(memory_has_huge_pages(root));
    lay(file, "[always] within_size advise never deny force\n");
    EXPECT_TRUE(memory_has_huge_pages(root));
    teardown();
}

TEST(version_1_limits) {
    char path[64];
    setup("9:pids:/p\n4:memory:/app\n1:cpu:/c\n");

    lay_mib(V1 "/app/memory.limit_in_bytes", 160);
    lay_mib(V1 "/app/memory.usage_in_bytes", 120);
    expect_room(30, THE_CGROUP);
    lay(V1 "/app/memory.stat", "inactive_file 1\ntotal_cache 9\ntotal_inactive_file 10485760\n");
    expect_room(40, THE_CGROUP); /* what the kernel gives up when asked is free */
    memory_cgroup(root, path, sizeof path);
    EXPECT_STR_EQ("/app", path);
    teardown();
}

TEST(version_1_without_a_limit_says_so_with_a_large_number) {
    setup("4:memory:/app\n");

    lay(V1 "/app/memory.limit_in_bytes", "9223372036854771712\n");
    lay_mib(V1 "/app/memory.usage_in_bytes", 120);
    expect_machine();
    teardown();
}

TEST(version_1_controllers_may_share_a_hierarchy) {
    setup("5:cpu,cpuacct:/memory\n4:hugetlb,memory,pids:/app\n");

    lay_mib(V1 "/app/memory.limit_in_bytes", 160);
    lay_mib(V1 "/app/memory.usage_in_bytes", 120);
    expect_room(30, THE_CGROUP);
    teardown();
}

TEST(version_2_limits) {
    setup("0::/user.slice/app\n");

    lay_mib(V2 "/user.slice/app/memory.max", 160);
    lay_mib(V2 "/user.slice/app/memory.current", 120);
    expect_room(30, THE_CGROUP);
    lay(V2 "/user.slice/app/memory.stat", "active_file 7\ninactive_file 10485760\n");
    expect_room(40, THE_CGROUP);
    lay_mib(V2 "/user.slice/app/memory.high", 144);
    expect_room(25, THE_CGROUP);
    lay(V2 "/user.slice/app/memory.high", "max\n");
    expect_room(40, THE_CGROUP);
    teardown();
}

TEST(the_tightest_of_nested_limits_counts) {
    setup("0::/a/b/c\n");

    lay(V2 "/a/b/c/memory.max", "max\n");
    lay_mib(V2 "/a/b/c/memory.current", 1);
    lay_mib(V2 "/a/b/memory.max", 500);
    lay_mib(V2 "/a/b/memory.current", 100);
    lay_mib(V2 "/a/memory.max", 640);
    lay_mib(V2 "/a/memory.current", 550);
    expect_room(50, THE_CGROUP);
    lay_mib(V2 "/memory.max", 800); /* the top of a container */
    lay_mib(V2 "/memory.current", 730);
    expect_room(20, THE_CGROUP);
    lay_mib(V2 "/a/b/c/memory.max", 1);
    expect_room(0, THE_CGROUP);
    lay_mib("/sys/fs/memory.max", 0); /* above the top is no cgroup */
    lay_mib(V2 "/a/b/c/memory.max", 16);
    expect_room(14, THE_CGROUP);
    teardown();
}

TEST(the_path_may_be_the_hosts) {
    setup("0::/system.slice/docker-1234.scope\n");

    lay_mib(V2 "/memory.max", 160);
    lay_mib(V2 "/memory.current", 120);
    expect_room(30, THE_CGROUP);
    teardown();
}

TEST(the_path_may_be_outside_of_what_is_seen) {
    setup("0::/../../app\n");

    lay_mib(V2 "/memory.max", 160);
    lay_mib(V2 "/memory.current", 120);
    expect_room(30, THE_CGROUP);
    teardown();
}

TEST(with_both_versions_the_one_that_has_the_memory_counts) {
    setup("4:memory:/one\n1:cpu:/\n0::/two\n");

    lay_mib(V1 "/one/memory.limit_in_bytes", 160);
    lay_mib(V1 "/one/memory.usage_in_bytes", 110);
    lay_mib(HYBRID_V2 "/two/memory.max", 16);
    lay_mib(HYBRID_V2 "/two/memory.current", 14);
    expect_room(40, THE_CGROUP);
    lay("/proc/self/cgroup", "1:cpu:/\n1:name=memory:/\n0::/two\n");
    expect_room(1, THE_CGROUP);
    teardown();
}

TEST(files_that_are_missing_or_garbage_are_no_limit) {
    setup("0::/app\n");

    expect_machine();
    lay(V2 "/app/memory.max", "");
    expect_machine();
    lay(V2 "/app/memory.max", "plenty\n");
    expect_machine();
    lay(V2 "/app/memory.max", "-5\n");
    expect_machine();
    lay_mib(V2 "/app/memory.max", 160); /* but nobody tells what of it is used */
    expect_room(160, THE_CGROUP);
    lay(V2 "/app/memory.current", "some\n");
    expect_room(160, THE_CGROUP);
    lay_mib(V2 "/app/memory.current", 120);
    lay(V2 "/app/memory.stat", "inactive_file\ninactive_file few\n");
    expect_room(30, THE_CGROUP);
    lay_mib(V2 "/app/memory.current", 170);
    expect_room(0, THE_CGROUP);
    lay(V2 "/app/memory.stat", "inactive_file 99999999999999\n"); /* more than there is */
    expect_room(150, THE_CGROUP);
    teardown();
}

TEST(a_list_of_cgroups_that_makes_no_sense_is_none) {
    static const char *const texts[] = {"\n",
                                        "0::",
                                        "0::\n",
                                        "memory",
                                        ":memory:\n/app",
                                        "4:memory",
                                        "x\n\n:\n::\n,\n",
                                        "0:/app\n",
                                        "4:memoryx:/app\n"};
    setup("");

    lay_mib(V1 "/memory.limit_in_bytes", 1);
    lay_mib(V2 "/memory.max", 1);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        lay("/proc/self/cgroup", texts[i]);
        expect_machine();
    }
    teardown();
}
