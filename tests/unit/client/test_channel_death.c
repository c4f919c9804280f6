/* Channels when a process or the daemon ends, and when a process forks. */
#include "channel.h"
#include "channel_fixture.h"
#include "session.h"

static pid_t child_that(void (*run)(void)) {
    pid_t pid = fork();

    if (pid == 0) {
        run();
        _exit(0);
    }
    return pid;
}

/* In a process of its own, before which nothing has connected. */
static void be_a_client(void) {
    client = daemon_client(&own);
}

static void wait_for_kill(void) {
    for (;;) {
        pause();
    }
}

static void kill_child(pid_t pid) {
    int status;

    EXPECT_EQ(0, kill(pid, SIGKILL));
    EXPECT_EQ(pid, waitpid(pid, &status, 0));
}

/* ------------------------------------------------------------------------------ other processes */

static void send_ten(void) {
    be_a_client();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    for (int i = 0; i < 10; i++) {
        send_number(queue, (float)i);
    }
    tcx_channel_close(queue);
    tcx_client_close(client);
}

TEST(another_process_sends_in_order) {
    daemon_start(&own);
    pid_t pid = child_that(send_ten);
    be_a_client();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    for (int i = 0; i < 10; i++) {
        expect_next(queue, (float)i);
    }
    expect_success(pid);
    tcx_channel_close(queue);
    end();
}

static void receive_and_keep(void) {
    be_a_client();
    tcx_channel_t *queue = open_channel(client, "q", 0, 2);
    for (int i = 0; i < 3; i++) {
        receive(queue);
    }
    wait_for_kill();
}

TEST(a_timeout_names_who_has_the_buffers_and_its_death_frees_them) {
    tcx_channel_options_t options = {.capacity = 2, .buffers = 3};
    char text[32];
    tcx_channel_t *queue;

    daemon_start(&own);
    be_a_client();
    EXPECT_OK(tcx_channel_open(client, "q", &options, &queue));
    pid_t pid = child_that(receive_and_keep);
    for (int i = 0; i < 3; i++) {
        send_number(queue, (float)i);
    }
    expect_held(queue, 3);
    EXPECT_EQ(pid, holders_of(queue).last.pid);
    EXPECT_EQ(TCX_TIMEOUT, try_send(queue, 3, COUNT, 0.05));
    snprintf(text, sizeof text, "(pid %d,", (int)pid);
    expect_text(text);
    expect_text("has 3 buffers");
    kill_child(pid);
    send_number(queue, 4); /* waits until the daemon has repaired */
    expect_next(queue, 4);
    EXPECT_EQ(1, look_at(queue).handles);
    tcx_channel_close(queue);
    end();
}

static void hold_a_reference(void) {
    be_a_client();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    receive(queue);
    tcx_tensor_t *born = shared(client, 5, COUNT);
    EXPECT_OK(tcx_channel_send(queue, tcx_tensor_array(born), 0));
    wait_for_kill();
}

TEST(a_reference_outlives_its_sender) {
    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    pid_t pid = child_that(hold_a_reference);
    tcx_tensor_t *born = shared(client, 7, COUNT);
    EXPECT_OK(tcx_channel_send(queue, tcx_tensor_array(born), 20));
    tcx_tensor_unref(born);
    while (look_at(queue).messages < 2) {
        usleep(1000);
    }
    kill_child(pid);
    expect_next(queue, 5);
    expect_settles(client, 0, 0);
    tcx_channel_close(queue);
    end();
}

/* ----------------------------------------------------------------------------------- the daemon */

TEST(without_its_daemon_a_channel_is_lost_and_what_was_received_stays) {
    tcx_tensor_t *loaned;
    int64_t count = COUNT;

    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    tcx_channel_t *topic = open_channel(client, "t", TCX_CHANNEL_TOPIC, 0);
    tcx_channel_t *reader = subscribe(topic, 0);
    send_number(queue, 7);
    tcx_tensor_t *tensor = receive(queue);
    loaned = loan(queue, COUNT);
    daemon_kill(&own);
    EXPECT_EQ(TCX_LOST, try_recv(queue, 0));
    EXPECT_EQ(TCX_LOST, try_recv(queue, -1));
    EXPECT_EQ(TCX_LOST, try_recv(reader, 20));
    EXPECT_EQ(TCX_LOST, try_send(queue, 8, COUNT, 0));
    EXPECT_EQ(TCX_LOST, tcx_channel_send_loan(queue, loaned, 0));
    EXPECT_EQ(TCX_LOST, tcx_channel_shutdown(queue));
    daemon_run(&own);
    EXPECT_OK(tcx_client_connect(client));
    EXPECT_EQ(TCX_LOST, tcx_channel_loan(queue, float32, 1, &count, 0, &loaned));
    expect_full(tensor, 7, COUNT);
    tcx_channel_t *again = open_channel(client, "q", 0, 0);
    EXPECT_EQ(TCX_TIMEOUT, try_recv(again, 0));
    tcx_tensor_unref(tensor);
    tcx_tensor_unref(loaned);
    tcx_channel_close(reader);
    tcx_channel_close(topic);
    tcx_channel_close(queue);
    tcx_channel_close(again);
    end();
}

/* ----------------------------------------------------------------------------------------- fork */

TEST(a_childs_queue_joins_anew_and_its_subscription_is_closed) {
    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    tcx_channel_t *topic = open_channel(client, "t", TCX_CHANNEL_TOPIC, 0);
    tcx_channel_t *reader = subscribe(topic, 0);
    send_number(queue, 1);
    pid_t pid = fork();
    if (pid == 0) {
        expect_next(queue, 1);
        EXPECT_EQ(2, look_at(queue).handles);
        send_number(queue, 2);
        EXPECT_EQ(TCX_CLOSED, try_recv(reader, -1));
        expect_text("fork()");
        tcx_channel_t *own_reader = subscribe(topic, 0);
        send_number(topic, 3);
        expect_next(own_reader, 3);
        tcx_channel_close(own_reader);
        tcx_channel_close(queue);
        tcx_channel_close(topic);
        tcx_channel_close(reader);
        tcx_client_close(client);
        _exit(0);
    }
    expect_success(pid);
    expect_next(queue, 2);
    expect_next(reader, 3);
    EXPECT_EQ(1, look_at(queue).handles);
    tcx_channel_close(reader);
    tcx_channel_close(topic);
    tcx_channel_close(queue);
    end();
}

TEST(a_buffer_that_was_inherited_is_busy_until_both_are_done) {
    int pipes[2];
    int back[2];
    char byte;

    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    send_number(queue, 1);
    tcx_tensor_t *tensor = receive(queue);
    EXPECT_EQ(0, pipe(pipes));
    EXPECT_EQ(0, pipe(back));
    pid_t pid = fork();
    if (pid == 0) {
        EXPECT_EQ(TCX_TIMEOUT, try_recv(queue, 0)); /* has joined anew */
        EXPECT_EQ(1, write(back[1], "", 1));
        EXPECT_EQ(1, read(pipes[0], &byte, 1));
        expect_full(tensor, 1, COUNT);
        tcx_tensor_unref(tensor);
        wait_for_kill();
    }
    EXPECT_EQ(1, read(back[0], &byte, 1));
    tcx_tensor_unref(tensor);
    tcx_stats_t stats;
    EXPECT_OK(tcx_stats(client, &stats)); /* after the note */
    EXPECT_EQ(1, holders_of(queue).buffers);
    EXPECT_EQ(1, write(pipes[1], "", 1));
    expect_held(queue, 0);
    kill_child(pid);
    close(pipes[0]);
    close(pipes[1]);
    close(back[0]);
    close(back[1]);
    tcx_channel_close(queue);
    end();
}

TEST(a_child_of_a_client_without_connection_leaves_its_buffers_alone) {
    given_daemon();
    tcx_client_t *other = daemon_client(&own);
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    tcx_channel_t *watcher = open_channel(other, "q", 0, 0);
    send_number(queue, 1);
    tcx_tensor_t *tensor = receive(queue);
    close(atomic_load(&queue->seat)->session->socket);
    EXPECT_EQ(TCX_LOST, try_recv(queue, 0));
    pid_t pid = fork();
    if (pid == 0) {
        tcx_tensor_unref(tensor);
        tcx_channel_close(queue);
        _exit(0);
    }
    expect_success(pid);
    EXPECT_EQ(1, holders_of(watcher).buffers);
    EXPECT_EQ(2, look_at(watcher).handles);
    tcx_channel_close(watcher);
    tcx_client_close(other);
    tcx_tensor_unref(tensor);
    tcx_channel_close(queue);
    end();
}

TEST(a_loan_is_not_inherited) {
    given_daemon();
    tcx_channel_t *queue = open_channel(client, "q", 0, 0);
    tcx_tensor_t *loaned = loan(queue, COUNT);
    pid_t pid = fork();
    if (pid == 0) {
        EXPECT_EQ(TCX_INVALID, tcx_channel_send_loan(queue, loaned, 0));
        tcx_tensor_unref(loaned);
        tcx_channel_close(queue);
        tcx_client_close(client);
        _exit(0);
    }
    expect_success(pid);
    EXPECT_EQ(1, holders_of(queue).buffers);
    for (int i = 0; i < COUNT; i++) {
        floats_of(loaned)[i] = 4;
    }
    EXPECT_OK(tcx_channel_send_loan(queue, loaned, 0));
    tcx_tensor_unref(loaned);
    expect_next(queue, 4);
    EXPECT_EQ(0, holders_of(queue).buffers);
    tcx_channel_close(queue);
    end();
}
