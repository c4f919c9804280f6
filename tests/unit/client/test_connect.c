/* Finding, starting, losing and refusing a daemon. */
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "codec.h"
#include "connection.h"
#include "own_daemon.h"

static char folder[32];
static char socket_path[64];

/* A private place for a socket; nobody is there. */
static void given_folder(void) {
    strcpy(folder, "/tmp/tensorcx-test-XXXXXX");
    EXPECT_TRUE(mkdtemp(folder) != NULL);
    snprintf(socket_path, sizeof socket_path, "%s/d.sock", folder);
}

static void remove_folder(void) {
    struct own_daemon left = {0};

    strcpy(left.folder, folder);
    strcpy(left.socket, socket_path);
    daemon_clean(&left);
}

/* A client that starts daemons. */
static tcx_client_t *starter(void) {
    tcx_client_options_t options = {.socket = socket_path};
    tcx_client_t *client;

    EXPECT_OK(tcx_client_open(&options, &client));
    return client;
}

/* Writes a program that is to be run as the daemon. */
static void given_program(const char *script) {
    char path[64];

    snprintf(path, sizeof path, "%s/tensorcxd", folder);
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
    tcx_client_t *client = starter();

    EXPECT_EQ(status, tcx_client_connect(client));
    if (!strstr(tcx_error(), text)) {
        TEST_FAILED("\"%s\" does not say \"%s\"", tcx_error(), text);
    }
    tcx_client_close(client);
}

/* ------------------------------------------------------------------------------------- starting */

TEST(the_first_client_starts_a_daemon_that_is_no_child) {
    tcx_stats_t stats;

    given_folder();
    tcx_client_t *client = starter();
    EXPECT_OK(tcx_stats(client, &stats));
    EXPECT_EQ(-1, waitpid(-1, NULL, WNOHANG));
    EXPECT_EQ(ECHILD, errno);
    EXPECT_TRUE(getsid((pid_t)stats.pid) != getsid(0));
    EXPECT_OK(tcx_stop(client));
    tcx_client_close(client);
    remove_folder();
}

static const char *log_path(void) {
    static char path[64];

    snprintf(path, sizeof path, "%s/d.log", folder);
    return path;
}

static void start_and_stop(void) {
    tcx_client_t *client = starter();

    EXPECT_OK(tcx_client_connect(client));
    EXPECT_OK(tcx_stop(client));
    tcx_client_close(client);
}

TEST(a_daemon_that_was_started_writes_a_log_beside_its_socket) {
    struct stat info;

    given_folder();
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
    remove_folder();
}

TEST(a_log_is_not_written_through_a_link) {
    char target[64];
    struct stat info;

    given_folder();
    snprintf(target, sizeof target, "%s/precious", folder);
    fclose(fopen(target, "w"));
    EXPECT_EQ(0, symlink(target, log_path()));
    start_and_stop();
    EXPECT_EQ(0, unlink(log_path()));
    EXPECT_EQ(0, link(target, log_path()));
    start_and_stop();
    EXPECT_EQ(0, stat(target, &info));
    EXPECT_EQ(0, info.st_size);
    EXPECT_EQ(0, unlink(target));
    remove_folder();
}

TEST(a_daemon_starts_also_where_children_are_ignored) {
    given_folder();
    signal(SIGCHLD, SIG_IGN);
    tcx_client_t *client = starter();
    EXPECT_OK(tcx_client_connect(client));
    EXPECT_OK(tcx_stop(client));
    tcx_client_close(client);
    remove_folder();
}

static void *connect_and_report(void *argument) {
    tcx_client_t *client = starter();
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

    given_folder();
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
    remove_folder();
}

TEST(a_program_that_fails_is_quoted) {
    given_folder();
    given_program("#!/bin/sh\necho no memory to be had >&3\nexit 3\n");
    expect_unavailable(TCX_UNAVAILABLE, "could not serve (exit status 3): no memory to be had");
    remove_program();
    given_program("#!/bin/sh\nexit 4\n");
    expect_unavailable(TCX_UNAVAILABLE, "ended without a word (exit status 4)");
    remove_program();
    given_program("#!/bin/sh\nkill -9 $$\n");
    expect_unavailable(TCX_UNAVAILABLE, "ended without a word (signal 9)");
    remove_program();
    remove_folder();
}

TEST(the_daemons_own_words_reach_the_caller) {
    given_folder();
    EXPECT_EQ(0, mkdir(socket_path, 0700)); /* where its socket should be */
    /* The client itself looks first. */
    expect_unavailable(TCX_UNAVAILABLE, "it is not a socket");
    EXPECT_EQ(0, rmdir(socket_path));
    char lock[64];
    snprintf(lock, sizeof lock, "%s/d.lock", folder);
    EXPECT_EQ(0, mkdir(lock, 0700));
    expect_unavailable(TCX_UNAVAILABLE, "d.lock");
    EXPECT_EQ(0, rmdir(lock));
    remove_folder();
}

TEST(a_program_that_says_it_is_ready_and_is_not_is_given_up) {
    given_folder();
    given_program("#!/bin/sh\nprintf R >&3\n");
    expect_unavailable(TCX_UNAVAILABLE, "started at");
    remove_program();
    remove_folder();
}

TEST(a_program_that_never_gets_ready_is_a_timeout) {
    tcx_client_options_t options = {.socket = socket_path, .answer_timeout = 0.3};
    tcx_client_t *client;

    given_folder();
    given_program("#!/bin/sh\nexec sleep 1000\n"); /* in our process group: the runner ends it */
    EXPECT_OK(tcx_client_open(&options, &client));
    EXPECT_EQ(TCX_TIMEOUT, tcx_client_connect(client));
    EXPECT_TRUE(strstr(tcx_error(), "has not become ready") != NULL);
    tcx_client_close(client);
    remove_program();
    remove_folder();
}

TEST(a_program_that_is_not_there_is_named) {
    given_folder();
    setenv("TENSORCXD", "/no/such/program", 1);
    expect_unavailable(TCX_UNAVAILABLE, "TENSORCXD names /no/such/program");
    unsetenv("TENSORCXD");
    setenv("PATH", folder, 1);
    expect_unavailable(TCX_UNAVAILABLE, "TENSORCXD can name it");
    remove_folder();
}

TEST(without_autostart_nothing_is_started) {
    given_folder();
    setenv("TENSORCX_AUTOSTART", "0", 1);
    expect_unavailable(TCX_UNAVAILABLE, "TENSORCX_AUTOSTART=0");
    remove_folder();
}

TEST(stopping_never_starts_one) {
    given_folder();
    tcx_client_t *client = starter();
    EXPECT_EQ(TCX_UNAVAILABLE, tcx_stop(client));
    tcx_client_close(client);
    EXPECT_EQ(0, rmdir(folder)); /* not even a lock file */
}

/* ----------------------------------------------------------------------- daemons that misbehave */

/* Plays a daemon: takes one connection, reads HELLO, answers with `reply` (none: hangs up), and
 * again until `connections` are over. */
struct impostor {
    int listener;
    int connections;
    int status;
    const void *body;
    size_t nbytes;
    pthread_t thread;
};

static void *impostor_run(void *argument) {
    struct impostor *impostor = argument;
    char bytes[1024];

    for (int i = 0; i < impostor->connections; i++) {
        int fd = accept4(impostor->listener, NULL, NULL, SOCK_CLOEXEC);
        EXPECT_TRUE(recv(fd, bytes, sizeof bytes, 0) > 0);
        if (impostor->nbytes > 0) {
            struct frame frame = {
                .header = {.opcode = MESSAGE_HELLO,
                           .request = ((struct wire_header *)(void *)bytes)->request,
                           .status = (uint32_t)impostor->status},
                .fixed = impostor->body,
                .fixed_nbytes = impostor->nbytes,
                .fd = -1,
            };
            EXPECT_EQ(0, connection_send(fd, &frame));
        }
        close(fd);
    }
    unlink(socket_path);
    close(impostor->listener);
    return NULL;
}

static void impostor_open(struct impostor *impostor) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path);
    impostor->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    EXPECT_EQ(0, bind(impostor->listener, (struct sockaddr *)&address, sizeof address));
    EXPECT_EQ(0, listen(impostor->listener, 8));
}

static void impostor_start(struct impostor *impostor) {
    impostor_open(impostor);
    EXPECT_EQ(0, pthread_create(&impostor->thread, NULL, impostor_run, impostor));
}

static void impostor_stop(struct impostor *impostor) {
    EXPECT_EQ(0, pthread_join(impostor->thread, NULL));
}

static tcx_client_t *visitor(double answer_timeout) {
    tcx_client_options_t options = {
        .socket = socket_path, .no_autostart = 1, .answer_timeout = answer_timeout};
    tcx_client_t *client;

    EXPECT_OK(tcx_client_open(&options, &client));
    return client;
}

TEST(a_refusal_at_the_door_is_passed_on) {
    const char *text = "tensorcxd 9.9 speaks version 7 to 8: upgrade the client";
    struct impostor impostor = {
        .connections = 1, .status = STATUS_VERSION, .body = text, .nbytes = strlen(text)};

    given_folder();
    impostor_start(&impostor);
    tcx_client_t *client = visitor(0);
    EXPECT_EQ(TCX_VERSION_MISMATCH, tcx_client_connect(client));
    EXPECT_STR_EQ(text, tcx_error());
    tcx_client_close(client);
    impostor_stop(&impostor);
    remove_folder();
}

TEST(a_daemon_that_answers_with_an_unknown_version_is_refused) {
    struct wire_hello_reply reply = {.version = 99, .layout = WIRE_LAYOUT};
    struct impostor impostor = {.connections = 1, .body = &reply, .nbytes = sizeof reply};

    given_folder();
    impostor_start(&impostor);
    tcx_client_t *client = visitor(0);
    EXPECT_EQ(TCX_VERSION_MISMATCH, tcx_client_connect(client));
    EXPECT_TRUE(strstr(tcx_error(), "speaks protocol 99") != NULL);
    tcx_client_close(client);
    impostor_stop(&impostor);
    remove_folder();
}

TEST(a_connection_that_ends_before_the_greeting_is_tried_again) {
    struct impostor impostor = {.connections = 3}; /* as a daemon that goes away, and is gone */

    given_folder();
    impostor_start(&impostor);
    tcx_client_t *client = starter();
    EXPECT_OK(tcx_client_connect(client));
    impostor_stop(&impostor);
    EXPECT_OK(tcx_stop(client));
    tcx_client_close(client);
    remove_folder();
}

TEST(a_daemon_that_always_hangs_up_is_unavailable) {
    struct impostor impostor = {.connections = 11};

    given_folder();
    impostor_start(&impostor);
    tcx_client_t *client = visitor(0);
    EXPECT_EQ(TCX_UNAVAILABLE, tcx_client_connect(client));
    EXPECT_TRUE(strstr(tcx_error(), "closes every connection") != NULL);
    EXPECT_TRUE(strstr(tcx_error(), log_path()) != NULL);
    tcx_client_close(client);
    impostor_stop(&impostor);
    remove_folder();
}

/* One thread stops the daemon, which starts none; another one wants a daemon and waits for it. */
struct rendezvous {
    pthread_t stopper;
    int stop_status;
    int waits[2]; /* pipe: a byte when the other thread waits */
};

static struct rendezvous rendezvous;

static int tell_that_it_waits(void *context) {
    (void)context;
    if (!pthread_equal(pthread_self(), rendezvous.stopper)) {
        EXPECT_EQ(1, write(rendezvous.waits[1], "w", 1));
    }
    return 0;
}

static void *run_stop(void *argument) {
    rendezvous.stop_status = tcx_stop(argument);
    return NULL;
}

static void *run_connect(void *argument) {
    EXPECT_OK(tcx_client_connect(argument));
    return NULL;
}

TEST(who_may_start_a_daemon_does_so_after_another_thread_only_looked) {
    tcx_client_options_t options = {.socket = socket_path, .interrupt = tell_that_it_waits};
    struct impostor impostor = {.connections = 1};
    tcx_client_t *client;
    pthread_t starter;
    char byte;

    given_folder();
    impostor_open(&impostor);
    EXPECT_EQ(0, pipe2(rendezvous.waits, O_CLOEXEC));
    EXPECT_OK(tcx_client_open(&options, &client));
    EXPECT_EQ(0, pthread_create(&rendezvous.stopper, NULL, run_stop, client));
    struct pollfd poller = {.fd = impostor.listener, .events = POLLIN};
    EXPECT_EQ(1, poll(&poller, 1, -1)); /* it connects, and gets no answer */
    EXPECT_EQ(0, pthread_create(&starter, NULL, run_connect, client));
    EXPECT_EQ(1, read(rendezvous.waits[0], &byte, 1));
    impostor_run(&impostor); /* hangs up, and is gone */
    EXPECT_EQ(0, pthread_join(rendezvous.stopper, NULL));
    EXPECT_EQ(0, pthread_join(starter, NULL));
    EXPECT_EQ(TCX_UNAVAILABLE, rendezvous.stop_status);
    EXPECT_OK(tcx_stop(client));
    tcx_client_close(client);
    close(rendezvous.waits[0]);
    close(rendezvous.waits[1]);
    remove_folder();
}

TEST(a_socket_of_another_kind_is_refused) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    given_folder();
    snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(0, bind(fd, (struct sockaddr *)&address, sizeof address));
    EXPECT_EQ(0, listen(fd, 1));
    tcx_client_t *client = visitor(0);
    EXPECT_EQ(TCX_UNAVAILABLE, tcx_client_connect(client));
    EXPECT_TRUE(strstr(tcx_error(), "the socket of another program") != NULL);
    tcx_client_close(client);
    close(fd);
    remove_folder();
}

TEST(a_path_that_is_too_long_is_refused_at_once) {
    char path[200];
    tcx_client_options_t options = {.socket = path};
    tcx_client_t *client;

    memset(path, 'p', sizeof path);
    path[0] = '/';
    path[sizeof path - 1] = '\0';
    EXPECT_EQ(TCX_INVALID, tcx_client_open(&options, &client));
    EXPECT_TRUE(strstr(tcx_error(), "at most 107") != NULL);
}

/* --------------------------------------------------------------------------- stopped and killed */

TEST(a_stopped_daemon_is_a_timeout_and_nothing_granted_is_lost) {
    struct own_daemon own;
    tcx_client_options_t options = {.no_autostart = 1, .answer_timeout = 0.05};
    tcx_client_t *client;
    tcx_tensor_t *tensor;
    char pid[32];

    daemon_start(&own);
    options.socket = own.socket;
    EXPECT_OK(tcx_client_open(&options, &client));
    EXPECT_OK(tcx_client_connect(client));
    EXPECT_EQ(0, kill(own.pid, SIGSTOP));
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(TCX_TIMEOUT, tcx_zeros(client, (tcx_device_t){0}, (tcx_dtype_t){TCX_INT, 8, 1}, 1,
                                         (int64_t[]){100}, &tensor));
    }
    snprintf(pid, sizeof pid, "(pid %d)", (int)own.pid);
    EXPECT_TRUE(strstr(tcx_error(), pid) != NULL);
    EXPECT_TRUE(strstr(tcx_error(), "is it stopped?") != NULL);
    EXPECT_EQ(0, kill(own.pid, SIGCONT));

    tcx_stats_t stats;
    int64_t deadline = clock_after(20 * NS_PER_S);
    int r;
    do { /* calls of 50 ms may be late on a busy machine */
        r = tcx_stats(client, &stats);
    } while ((r != TCX_OK || stats.storages > 0 || stats.holds > 0) && clock_now() < deadline);
    EXPECT_EQ(0, stats.storages);
    EXPECT_EQ(0, stats.holds);
    tcx_client_close(client);
    daemon_stop(&own);
    daemon_clean(&own);
}

TEST(after_a_daemon_was_lost_the_next_one_is_used) {
    struct own_daemon own;
    struct floats floats;
    float seven = 7;
    tcx_tensor_t *old;
    tcx_tensor_t *copy;
    tcx_info_t info;

    daemon_start(&own);
    tcx_client_t *client = daemon_client(&own);
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
    tcx_tensor_info(copy, &info);
    EXPECT_TRUE(info.is_shared);
    tcx_tensor_info(old, &info);
    EXPECT_TRUE(!info.is_shared);
    tcx_tensor_unref(old);
    tcx_tensor_unref(copy);
    expect_settles(client, 0, 1);
    tcx_client_close(client);
    daemon_stop(&own);
    daemon_clean(&own);
}

/* --------------------------------------------------------------------- the application's doings */

TEST(a_program_that_closes_all_descriptors_loses_the_connection_and_nothing_else) {
    struct own_daemon own;
    struct floats floats;
    float seven = 7;
    tcx_tensor_t *tensor;

    daemon_start(&own);
    tcx_client_t *client = daemon_client(&own);
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
    tcx_client_close(client);
    daemon_stop(&own);
    daemon_clean(&own);
    /* The runner's count of descriptors is from before they were closed. */
    while (dup(0) < lowest - 1) {
    }
    close(lowest - 1);
}

TEST(out_of_descriptors_is_an_error_that_passes) {
    struct own_daemon own;
    struct rlimit limit;
    tcx_stats_t stats;

    daemon_start(&own);
    tcx_client_t *client = daemon_client(&own);
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
    EXPECT_EQ(TCX_SYSTEM, tcx_zeros(client, (tcx_device_t){0}, (tcx_dtype_t){TCX_INT, 8, 1}, 1,
                                    (int64_t[]){100}, &tensor));
    EXPECT_TRUE(strstr(tcx_error(), "RLIMIT_NOFILE") != NULL);
    expect_settles(client, 0, 0); /* the grant went back */
    setrlimit(RLIMIT_NOFILE, &limit);
    EXPECT_OK(tcx_zeros(client, (tcx_device_t){0}, (tcx_dtype_t){TCX_INT, 8, 1}, 1,
                        (int64_t[]){100}, &tensor));
    tcx_tensor_unref(tensor);
    tcx_client_close(client);
    daemon_stop(&own);
    daemon_clean(&own);
}

TEST(a_child_reads_what_its_parent_has_and_connects_by_itself) {
    struct own_daemon own;
    struct floats floats;
    float seven = 7;
    tcx_tensor_t *tensor;
    tcx_stats_t stats;
    int status;

    daemon_start(&own);
    tcx_client_t *client = daemon_client(&own);
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
    expect_settles(client, 0, 1);
    tcx_client_close(client);
    daemon_stop(&own);
    daemon_clean(&own);
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
    struct own_daemon own;
    struct floats floats;
    float seven = 7;
    pthread_t forker;
    tcx_tensor_t *tensor;

    daemon_start(&own);
    tcx_client_t *client = daemon_client(&own);
    EXPECT_EQ(0, pthread_create(&forker, NULL, fork_often, NULL));
    for (int i = 0; i < 2000; i++) {
        EXPECT_OK(tcx_put(client, "x", floats_on(&floats, &seven, 1), NULL, &tensor));
        tcx_tensor_unref(tensor);
    }
    EXPECT_EQ(0, pthread_join(forker, NULL));
    expect_settles(client, 0, 1);
    tcx_client_close(client);
    daemon_stop(&own);
    daemon_clean(&own);
}

/* -------------------------------------------------------------------------------------- the log */

static void note_line(void *context, const char *line) {
    char *seen = context;

    EXPECT_TRUE(strlen(seen) + strlen(line) + 2 < 1024);
    strcat(strcat(seen, line), "\n");
}

TEST(the_log_tells_when_a_connection_comes_and_goes) {
    struct own_daemon own;
    char seen[1024] = "";

    daemon_start(&own);
    tcx_client_t *client = daemon_client(&own);
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
