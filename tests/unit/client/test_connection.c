/* A connection, once it is there: the daemon stops or ends, the program closes its descriptors or
 * forks. */
#include <pthread.h>
#include <sys/resource.h>

#include "client_fixture.h"

/* --------------------------------------------------------------------------- stopped and killed */

TEST(a_stopped_daemon_is_a_timeout_and_nothing_granted_is_lost) {
    tcx_tensor_t *tensor;
    char pid[32];

    given_daemon();
    EXPECT_OK(tcx_client_connect(client));
    EXPECT_EQ(0, kill(own.pid, SIGSTOP));
    set_patience(client, 20 * NS_PER_MS);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(TCX_TIMEOUT,
                  tcx_zeros(client, (tcx_device_t){0}, float32, 1, (int64_t[]){100}, &tensor));
    }
    snprintf(pid, sizeof pid, "(pid %d)", (int)own.pid);
    EXPECT_TRUE(strstr(tcx_error(), pid) != NULL);
    EXPECT_TRUE(strstr(tcx_error(), "is it stopped?") != NULL);
    set_patience(client, 60 * NS_PER_S);
    EXPECT_EQ(0, kill(own.pid, SIGCONT));
    end();
}

TEST(after_a_daemon_was_lost_the_next_one_is_used) {
    struct floats floats;
    float seven = 7;
    tcx_tensor_t *old;
    tcx_tensor_t *copy;

    given_daemon();
    EXPECT_OK(tcx_put(client, "x", floats_on(&floats, &seven, 1), NULL, &old));
    daemon_kill(&own);
    EXPECT_EQ(TCX_LOST, tcx_delete(client, "x"));
    EXPECT_TRUE(strstr(tcx_error(), "what is mapped stays valid") != NULL);

    daemon_run(&own);
    EXPECT_EQ(TCX_NOT_FOUND, tcx_delete(client, "x"));
    /* Memory of the dead one is private memory now: put copies it. */
    EXPECT_OK(tcx_put(client, "x", tcx_tensor_array(old), NULL, &copy));
    EXPECT_TRUE(floats_of(copy) != floats_of(old));
    EXPECT_EQ(7, floats_of(copy)[0]);
    EXPECT_TRUE(info_of(copy).is_shared && !info_of(old).is_shared);
    tcx_tensor_unref(old);
    tcx_tensor_unref(copy);
    end_with(1);
}

/* --------------------------------------------------------------------- the application's doings */

TEST(a_program_that_closes_all_descriptors_loses_the_connection_and_nothing_else) {
    struct floats floats;
    float seven = 7;
    tcx_tensor_t *tensor;

    given_daemon();
    EXPECT_OK(tcx_put(client, "x", floats_on(&floats, &seven, 1), NULL, &tensor));
    int lowest = dup(0);
    for (int fd = 3; fd < lowest; fd++) {
        close(fd);
    }
    close(lowest);
    EXPECT_EQ(TCX_LOST, tcx_delete(client, "y"));
    EXPECT_TRUE(strstr(tcx_error(), "has closed its descriptor") != NULL);
    EXPECT_EQ(7, floats_of(tensor)[0]);
    EXPECT_EQ(TCX_NOT_FOUND, tcx_delete(client, "y")); /* a new connection */
    EXPECT_OK(tcx_delete(client, "x"));
    /* What the lost connection holds stays until this process ends: it is still mapped. */
    EXPECT_EQ(7, floats_of(tensor)[0]);
    tcx_tensor_unref(tensor);
    end_daemon();
    /* The runner's count of descriptors is from before they were closed. */
    while (dup(0) < lowest - 1) {
    }
    close(lowest - 1);
}

TEST(out_of_descriptors_is_an_error_that_passes) {
    struct rlimit limit;
    tcx_stats_t stats;

    given_daemon();
    getrlimit(RLIMIT_NOFILE, &limit);
    int lowest = dup(0);
    close(lowest);
    struct rlimit tight = {(rlim_t)lowest, limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &tight);
    EXPECT_EQ(TCX_SYSTEM, tcx_stats(client, &stats)); /* no socket */
    EXPECT_TRUE(strstr(tcx_error(), "RLIMIT_NOFILE") != NULL);
    tight.rlim_cur++;
    setrlimit(RLIMIT_NOFILE, &tight);
    EXPECT_EQ(TCX_SYSTEM, tcx_stats(client, &stats)); /* a socket, no life page */
    EXPECT_TRUE(strstr(tcx_error(), "RLIMIT_NOFILE") != NULL);
    tight.rlim_cur++;
    setrlimit(RLIMIT_NOFILE, &tight);
    EXPECT_OK(tcx_stats(client, &stats));

    tcx_tensor_t *tensor;
    tight.rlim_cur--;
    setrlimit(RLIMIT_NOFILE, &tight);
    EXPECT_EQ(TCX_SYSTEM,
              tcx_zeros(client, (tcx_device_t){0}, float32, 1, (int64_t[]){100}, &tensor));
    EXPECT_TRUE(strstr(tcx_error(), "RLIMIT_NOFILE") != NULL);
    expect_settles(client, 0, 0); /* the grant went back */
    setrlimit(RLIMIT_NOFILE, &limit);
    EXPECT_OK(tcx_zeros(client, (tcx_device_t){0}, float32, 1, (int64_t[]){100}, &tensor));
    tcx_tensor_unref(tensor);
    end_daemon();
}

TEST(a_child_reads_what_its_parent_has_and_connects_by_itself) {
    struct floats floats;
    float seven = 7;
    tcx_tensor_t *tensor;
    tcx_stats_t stats;
    int status;

    given_daemon();
    EXPECT_OK(tcx_put(client, "x", floats_on(&floats, &seven, 1), NULL, &tensor));
    for (int i = 0; i < 5; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            tcx_tensor_t *again;
            EXPECT_EQ(7, floats_of(tensor)[0]);
            EXPECT_OK(tcx_get(client, "x", NULL, &again, NULL));
            EXPECT_EQ(7, floats_of(again)[0]);
            EXPECT_OK(tcx_stats(client, &stats));
            EXPECT_EQ(2, stats.clients);
            tcx_tensor_unref(again);
            tcx_tensor_unref(tensor);
            _exit(0);
        }
        EXPECT_EQ(pid, waitpid(pid, &status, 0));
        EXPECT_EQ(0, status);
    }
    expect_settles(client, 1, 1);
    EXPECT_EQ(7, floats_of(tensor)[0]);
    tcx_tensor_unref(tensor);
    end_with(1);
}

static void *fork_often(void *argument) {
    int status;

    (void)argument;
    for (int i = 0; i < 50; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            _exit(0);
        }
        EXPECT_EQ(pid, waitpid(pid, &status, 0));
    }
    return NULL;
}

TEST(forks_beside_busy_threads_harm_nobody) {
    struct floats floats;
    float seven = 7;
    pthread_t forker;
    tcx_tensor_t *tensor;

    given_daemon();
    EXPECT_EQ(0, pthread_create(&forker, NULL, fork_often, NULL));
    for (int i = 0; i < 2000; i++) {
        EXPECT_OK(tcx_put(client, "x", floats_on(&floats, &seven, 1), NULL, &tensor));
        tcx_tensor_unref(tensor);
    }
    EXPECT_EQ(0, pthread_join(forker, NULL));
    end_with(1);
}

/* -------------------------------------------------------------------------------------- the log */

static void note_line(void *context, const char *line) {
    char *seen = context;

    EXPECT_TRUE(strlen(seen) + strlen(line) + 2 < 1024);
    strcat(strcat(seen, line), "\n");
}

TEST(the_log_tells_when_a_connection_comes_and_goes) {
    char seen[1024] = "";

    given_daemon();
    tcx_set_log(note_line, seen);
    EXPECT_OK(tcx_client_connect(client));
    EXPECT_TRUE(strstr(seen, "event=connection.open socket=") != NULL);
    daemon_stop(&own);
    EXPECT_EQ(TCX_LOST, tcx_delete(client, "x"));
    EXPECT_TRUE(strstr(seen, "event=connection.lost socket=") != NULL);
    tcx_set_log(NULL, NULL);
    tcx_client_close(client);
    daemon_clean(&own);
}
