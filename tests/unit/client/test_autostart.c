/* The daemon that a client starts, and the errors of one that does not start. */
#include <pthread.h>
#include <sys/stat.h>

#include "own_daemon.h"

static struct own_daemon own;

/* Writes a program that is to be run as the daemon. */
static void given_program(const char *script) {
    char path[64];

    snprintf(path, sizeof path, "%s/tensorcxd", own.folder);
    FILE *file = fopen(path, "w");
    fputs(script, file);
    fclose(file);
    EXPECT_EQ(0, chmod(path, 0700));
    setenv("TENSORCXD", path, 1);
}

static void remove_program(void) {
    EXPECT_EQ(0, unlink(getenv("TENSORCXD")));
}

static void expect_unavailable(int status, const char *text) {
    tcx_client_t *client = daemon_starter(&own);

    EXPECT_EQ(status, tcx_client_connect(client));
    if (!strstr(tcx_error(), text)) {
        TEST_FAILED("\"%s\" does not say \"%s\"", tcx_error(), text);
    }
    tcx_client_close(client);
}

TEST(the_first_client_starts_a_daemon_that_is_no_child) {
    tcx_stats_t stats;

    daemon_place(&own);
    tcx_client_t *client = daemon_starter(&own);
    EXPECT_OK(tcx_stats(client, &stats));
    EXPECT_EQ(-1, waitpid(-1, NULL, WNOHANG));
    EXPECT_EQ(ECHILD, errno);
    EXPECT_TRUE(getsid((pid_t)stats.pid) != getsid(0));
    EXPECT_OK(tcx_stop(client));
    tcx_client_close(client);
    daemon_clean(&own);
}

static const char *log_path(void) {
    static char path[64];

    snprintf(path, sizeof path, "%s/d.log", own.folder);
    return path;
}

static void start_and_stop(void) {
    tcx_client_t *client = daemon_starter(&own);

    EXPECT_OK(tcx_client_connect(client));
    EXPECT_OK(tcx_stop(client));
    tcx_client_close(client);
}

TEST(a_daemon_that_was_started_writes_a_log_beside_its_socket) {
    struct stat info;

    daemon_place(&own);
    start_and_stop();
    EXPECT_EQ(0, stat(log_path(), &info));
    EXPECT_EQ(0600, info.st_mode & 07777);
    EXPECT_TRUE(info.st_size > 0);
    EXPECT_EQ(0, truncate(log_path(), 500000));
    start_and_stop(); /* appends */
    EXPECT_EQ(0, stat(log_path(), &info));
    EXPECT_TRUE(info.st_size > 500000);
    EXPECT_EQ(0, truncate(log_path(), 2000000));
    start_and_stop(); /* starts anew */
    EXPECT_EQ(0, stat(log_path(), &info));
    EXPECT_TRUE(info.st_size > 0 && info.st_size < 500000);
    daemon_clean(&own);
}

TEST(a_log_is_not_written_through_a_link) {
    char target[64];
    struct stat info;

    daemon_place(&own);
    snprintf(target, sizeof target, "%s/precious", own.folder);
    fclose(fopen(target, "w"));
    EXPECT_EQ(0, symlink(target, log_path()));
    start_and_stop();
    EXPECT_EQ(0, unlink(log_path()));
    EXPECT_EQ(0, link(target, log_path()));
    start_and_stop();
    EXPECT_EQ(0, stat(target, &info));
    EXPECT_EQ(0, info.st_size);
    EXPECT_EQ(0, unlink(target));
    daemon_clean(&own);
}

TEST(a_daemon_starts_also_where_children_are_ignored) {
    daemon_place(&own);
    signal(SIGCHLD, SIG_IGN);
    tcx_client_t *client = daemon_starter(&own);
    EXPECT_OK(tcx_client_connect(client));
    EXPECT_OK(tcx_stop(client));
    tcx_client_close(client);
    daemon_clean(&own);
}

static void *connect_and_report(void *argument) {
    tcx_client_t *client = daemon_starter(&own);
    tcx_stats_t stats;

    EXPECT_OK(tcx_stats(client, &stats));
    *(uint64_t *)argument = stats.pid;
    return client;
}

TEST(starters_that_race_find_the_same_daemon) {
    enum { COUNT = 4 };
    pthread_t threads[COUNT];
    tcx_client_t *clients[COUNT];
    uint64_t pids[COUNT];

    daemon_place(&own);
    for (int i = 0; i < COUNT; i++) {
        EXPECT_EQ(0, pthread_create(&threads[i], NULL, connect_and_report, &pids[i]));
    }
    for (int i = 0; i < COUNT; i++) {
        EXPECT_EQ(0, pthread_join(threads[i], (void **)&clients[i]));
        EXPECT_EQ(pids[0], pids[i]);
    }
    EXPECT_OK(tcx_stop(clients[0]));
    for (int i = 0; i < COUNT; i++) {
        tcx_client_close(clients[i]);
    }
    daemon_clean(&own);
}

TEST(a_program_that_fails_is_quoted) {
    daemon_place(&own);
    given_program("#!/bin/sh\necho no memory to be had >&3\nexit 3\n");
    expect_unavailable(TCX_UNAVAILABLE, "could not serve (exit status 3): no memory to be had");
    remove_program();
    given_program("#!/bin/sh\nexit 4\n");
    expect_unavailable(TCX_UNAVAILABLE, "ended without a word (exit status 4)");
    remove_program();
    given_program("#!/bin/sh\nkill -9 $$\n");
    expect_unavailable(TCX_UNAVAILABLE, "ended without a word (signal 9)");
    remove_program();
    daemon_clean(&own);
}

TEST(the_daemons_own_words_reach_the_caller) {
    daemon_place(&own);
    EXPECT_EQ(0, mkdir(own.socket, 0700)); /* where its socket should be */
    /* The client itself looks first. */
    expect_unavailable(TCX_UNAVAILABLE, "it is not a socket");
    EXPECT_EQ(0, rmdir(own.socket));
    char lock[64];
    snprintf(lock, sizeof lock, "%s/d.lock", own.folder);
    EXPECT_EQ(0, mkdir(lock, 0700));
    expect_unavailable(TCX_UNAVAILABLE, "d.lock");
    EXPECT_EQ(0, rmdir(lock));
    daemon_clean(&own);
}

TEST(a_program_that_says_it_is_ready_and_is_not_is_given_up) {
    daemon_place(&own);
    given_program("#!/bin/sh\nprintf R >&3\n");
    expect_unavailable(TCX_UNAVAILABLE, "started at");
    remove_program();
    daemon_clean(&own);
}

TEST(a_program_that_never_gets_ready_is_a_timeout) {
    tcx_client_options_t options = {.socket = own.socket, .answer_timeout = 0.3};
    tcx_client_t *client;

    daemon_place(&own);
    given_program("#!/bin/sh\nexec sleep 1000\n"); /* in our process group: the runner ends it */
    EXPECT_OK(tcx_client_open(&options, &client));
    EXPECT_EQ(TCX_TIMEOUT, tcx_client_connect(client));
    EXPECT_TRUE(strstr(tcx_error(), "has not become ready") != NULL);
    tcx_client_close(client);
    remove_program();
    daemon_clean(&own);
}

TEST(a_program_that_is_not_there_is_named) {
    daemon_place(&own);
    setenv("TENSORCXD", "/no/such/program", 1);
    expect_unavailable(TCX_UNAVAILABLE, "TENSORCXD names /no/such/program");
    unsetenv("TENSORCXD");
    setenv("PATH", own.folder, 1);
    expect_unavailable(TCX_UNAVAILABLE, "TENSORCXD can name it");
    daemon_clean(&own);
}

TEST(without_autostart_nothing_is_started) {
    daemon_place(&own);
    setenv("TENSORCX_AUTOSTART", "0", 1);
    expect_unavailable(TCX_UNAVAILABLE, "TENSORCX_AUTOSTART=0");
    daemon_clean(&own);
}

TEST(stopping_never_starts_one) {
    daemon_place(&own);
    tcx_client_t *client = daemon_starter(&own);
    EXPECT_EQ(TCX_UNAVAILABLE, tcx_stop(client));
    tcx_client_close(client);
    EXPECT_EQ(0, rmdir(own.folder)); /* not even a lock file */
}
