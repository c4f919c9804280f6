/* The command line: defaults, units, and errors that name the option. */
#include "fixture.h"
#include "options.h"

static char text[OPTIONS_TEXT_SIZE];

/* Parses up to two words. */
static int parse(struct options *options, const char *first, const char *second) {
    char *argv[] = {"tensorcxd", (char *)first, (char *)second, NULL};

    text[0] = '\0';
    return options_parse(options, first ? second ? 3 : 2 : 1, argv, text);
}

static void expect_refused(const char *word, const char *part) {
    struct options options;

    EXPECT_EQ(-1, parse(&options, word, NULL));
    if (!strstr(text, part)) {
        TEST_FAILED("%s: expected \"%s\" in \"%s\"", word, part, text);
    }
}

TEST(without_options_there_are_the_documented_defaults) {
    struct options options;

    EXPECT_EQ(0, parse(&options, NULL, NULL));
    EXPECT_TRUE(options.socket == NULL && options.log == NULL);
    EXPECT_EQ(0, options.capacity);
    EXPECT_STR_EQ("auto", options.backing);
    EXPECT_STR_EQ("info", options.log_level);
    EXPECT_EQ(80 << 20, options.reserve);
    EXPECT_EQ(5000, options.warm_ms);
    EXPECT_EQ(0, options.idle_exit_ms);
    EXPECT_EQ(60000, options.ticket_lease_ms);
    EXPECT_EQ(4096, options.client_forks);
    EXPECT_EQ(4096, options.max_clients);
    EXPECT_EQ(1 << 20, options.max_storages);
    EXPECT_EQ(1 << 20, options.max_names);
    EXPECT_EQ(65536, options.max_channels);
    EXPECT_EQ(1024, options.client_channels);
    EXPECT_EQ(0, options.client_bytes);
    EXPECT_EQ(0, options.client_storages);
    EXPECT_EQ(0, options.client_names);
    EXPECT_EQ(65536, options.client_tickets);
    EXPECT_TRUE(options.ready_fd == UINT64_MAX);
    EXPECT_TRUE(!options.background && !options.help && !options.version);
}

TEST(an_argument_stands_behind_an_equals_sign_or_next) {
    struct options options;

    EXPECT_EQ(0, parse(&options, "--socket=/a/b", NULL));
    EXPECT_STR_EQ("/a/b", options.socket);
    EXPECT_EQ(0, parse(&options, "--socket", "/c"));
    EXPECT_STR_EQ("/c", options.socket);
    EXPECT_EQ(0, parse(&options, "--log=a=b", "--background"));
    EXPECT_STR_EQ("a=b", options.log);
    EXPECT_TRUE(options.background);
}

TEST(sizes_have_units) {
    static const struct {
        const char *word;
        uint64_t bytes;
    } sizes[] = {{"--capacity=1048576", 1 << 20},     {"--capacity=1024K", 1 << 20},
                 {"--capacity=1m", 1 << 20},          {"--capacity=1.5M", 3 << 19},
                 {"--capacity=1MiB", 1 << 20},        {"--capacity=2GB", (uint64_t)1 << 31},
                 {"--capacity=1T", (uint64_t)1 << 40}};
    struct options options;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        EXPECT_EQ(0, parse(&options, sizes[i].word, NULL));
        EXPECT_EQ(sizes[i].bytes, options.capacity);
    }
}

TEST(times_may_have_a_fraction) {
    struct options options;

    EXPECT_EQ(0, parse(&options, "--warm-seconds=0.25", NULL));
    EXPECT_EQ(250, options.warm_ms);
}

TEST(users_add_up) {
    struct options options;

    EXPECT_EQ(0, parse(&options, "--allow-uid=1,2", "--allow-uid=3"));
    EXPECT_EQ(3, options.allow_uid.count);
    EXPECT_TRUE(uids_find(&options.allow_uid, 2) >= 0 && uids_find(&options.allow_uid, 3) >= 0);
}

TEST(what_is_wrong_names_the_option_and_what_it_may_be) {
    expect_refused("--allow-uid=root", "--allow-uid=root: must be at most 32 numbers of users");
    expect_refused("--capacity=10", "--capacity=10: must be a size from 1024K");
    expect_refused("--capacity=1X", "--capacity=1X");
    expect_refused("--capacity=1Mi", "--capacity=1Mi");
    expect_refused("--capacity=", "--capacity");
    expect_refused("--capacity=-1G", "--capacity=-1G");
    expect_refused("--capacity=0x100000", "--capacity");
    expect_refused("--capacity=1e400", "--capacity");
    expect_refused("--capacity=nan", "--capacity");
    expect_refused("--backing=disk", "one of auto|posix|memfd");
    expect_refused("--backing=", "--backing");
    expect_refused("--backing=auto|posix", "--backing");
    expect_refused("--max-clients=0", "--max-clients=0: must be a number from 1");
    expect_refused("--max-clients=1.5", "--max-clients");
    expect_refused("--max-clients=10x", "--max-clients");
    expect_refused("--idle-exit=-1", "--idle-exit");
    expect_refused("--ready-fd=1", "--ready-fd");
    expect_refused("--socket=", "--socket");
    expect_refused("--background=yes", "--background takes no argument");
    expect_refused("--socket", "--socket needs an argument: PATH");
    expect_refused("--sock=/x", "unknown option --sock=/x");
    expect_refused("stop", "unknown option stop");
    expect_refused("-v", "unknown option -v");
    expect_refused("--", "unknown option --");
}
