/* A daemon that was found and misbehaves, or is none. */
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "codec.h"
#include "connection.h"
#include "own_daemon.h"

static struct own_daemon own;

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
    unlink(own.socket);
    close(impostor->listener);
    return NULL;
}

static void impostor_open(struct impostor *impostor) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    snprintf(address.sun_path, sizeof address.sun_path, "%s", own.socket);
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

TEST(a_refusal_at_the_door_is_passed_on) {
    const char *text = "tensorcxd 9.9 speaks version 7 to 8: upgrade the client";
    struct impostor impostor = {
        .connections = 1, .status = STATUS_VERSION, .body = text, .nbytes = strlen(text)};

    daemon_place(&own);
    impostor_start(&impostor);
    tcx_client_t *client = daemon_client(&own);
    EXPECT_EQ(TCX_VERSION_MISMATCH, tcx_client_connect(client));
    EXPECT_STR_EQ(text, tcx_error());
    tcx_client_close(client);
    impostor_stop(&impostor);
    daemon_clean(&own);
}

TEST(a_daemon_that_answers_with_an_unknown_version_is_refused) {
    struct wire_hello_reply reply = {.version = 99, .layout = WIRE_LAYOUT};
    struct impostor impostor = {.connections = 1, .body = &reply, .nbytes = sizeof reply};

    daemon_place(&own);
    impostor_start(&impostor);
    tcx_client_t *client = daemon_client(&own);
    EXPECT_EQ(TCX_VERSION_MISMATCH, tcx_client_connect(client));
    EXPECT_TRUE(strstr(tcx_error(), "speaks protocol 99") != NULL);
    tcx_client_close(client);
    impostor_stop(&impostor);
    daemon_clean(&own);
}

TEST(a_connection_that_ends_before_the_greeting_is_tried_again) {
    struct impostor impostor = {.connections = 3}; /* as a daemon that goes away, and is gone */

    daemon_place(&own);
    impostor_start(&impostor);
    tcx_client_t *client = daemon_starter(&own);
    EXPECT_OK(tcx_client_connect(client));
    impostor_stop(&impostor);
    EXPECT_OK(tcx_stop(client));
    tcx_client_close(client);
    daemon_clean(&own);
}

TEST(a_daemon_that_always_hangs_up_is_unavailable) {
    struct impostor impostor = {.connections = 11};

    daemon_place(&own);
    impostor_start(&impostor);
    tcx_client_t *client = daemon_client(&own);
    EXPECT_EQ(TCX_UNAVAILABLE, tcx_client_connect(client));
    EXPECT_TRUE(strstr(tcx_error(), "closes every connection") != NULL);
    EXPECT_TRUE(strstr(tcx_error(), "/d.log") != NULL);
    tcx_client_close(client);
    impostor_stop(&impostor);
    daemon_clean(&own);
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
    tcx_client_options_t options = {.socket = own.socket, .interrupt = tell_that_it_waits};
    struct impostor impostor = {.connections = 1};
    tcx_client_t *client;
    pthread_t starter;
    char byte;

    daemon_place(&own);
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
    daemon_clean(&own);
}

TEST(a_socket_of_another_kind_is_refused) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    daemon_place(&own);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", own.socket);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(0, bind(fd, (struct sockaddr *)&address, sizeof address));
    EXPECT_EQ(0, listen(fd, 1));
    tcx_client_t *client = daemon_client(&own);
    EXPECT_EQ(TCX_UNAVAILABLE, tcx_client_connect(client));
    EXPECT_TRUE(strstr(tcx_error(), "the socket of another program") != NULL);
    tcx_client_close(client);
    close(fd);
    daemon_clean(&own);
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
