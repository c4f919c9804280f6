/* Forked children with a real daemon: what they inherited stays, is passed on without a copy, and
 * is free when the last of them needs it no more. */
#include <dlpack/dlpack.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "client_fixture.h"

enum { COUNT = 50000 }; /* more than travels in a message */

/* Shared memory full of one number. */
static tcx_tensor_t *full(tcx_client_t *from, float number) {
    int64_t shape[1] = {COUNT};
    tcx_tensor_t *tensor;

    EXPECT_OK(tcx_empty(from, (tcx_device_t){0}, float32, 1, shape, &tensor));
    for (int i = 0; i < COUNT; i++) {
        floats_of(tensor)[i] = number;
    }
    return tensor;
}

static void expect_full(const tcx_tensor_t *tensor, float number) {
    for (int i = 0; i < COUNT; i++) {
        EXPECT_TRUE(floats_of(tensor)[i] == number);
    }
}

static uint64_t storage_of(const tcx_tensor_t *tensor) {
    tcx_info_t info;

    tcx_tensor_info(tensor, &info);
    EXPECT_TRUE(info.is_shared);
    return info.storage_id;
}

static void expect_success(pid_t pid) {
    int status;

    EXPECT_EQ(pid, waitpid(pid, &status, 0));
    EXPECT_EQ(0, status);
}

/* Asks until the daemon has so many storages; fails after a generous time. */
static void expect_storages(uint64_t storages) {
    int64_t deadline = clock_after(20 * NS_PER_S);
    tcx_stats_t stats;

    do {
        EXPECT_OK(tcx_stats(client, &stats));
    } while (stats.storages != storages && clock_now() < deadline);
    EXPECT_EQ(storages, stats.storages);
}

/* A pipe by which one process tells others to go on; the end of all writers does, too. */
struct signal {
    int ends[2];
};

static struct signal signal_create(void) {
    struct signal signal;

    EXPECT_EQ(0, pipe2(signal.ends, O_CLOEXEC));
    return signal;
}

static void signal_send(struct signal *signal) {
    EXPECT_EQ(1, write(signal->ends[1], "", 1));
}

static void signal_await(struct signal *signal) {
    char byte;

    EXPECT_EQ(1, read(signal->ends[0], &byte, 1));
}

static void signal_destroy(struct signal *signal) {
    close(signal->ends[0]);
    close(signal->ends[1]);
}

/* -------------------------------------------------------------------------------- passing it on */

TEST(a_child_puts_what_it_inherited_without_a_copy) {
    tcx_put_options_t options = {.flags = TCX_PUT_NO_COPY};
    tcx_tensor_t *put;
    tcx_tensor_t *got;

    given_daemon();
    tcx_tensor_t *tensor = full(client, 7);
    pid_t pid = fork();
    if (pid == 0) {
        EXPECT_TRUE(tcx_is_shared(client, floats_of(tensor) + 1, 8)); /* not connected yet */
        EXPECT_OK(tcx_put(client, "x", tcx_tensor_array(tensor), &options, &put));
        EXPECT_TRUE(floats_of(put) == floats_of(tensor));
        EXPECT_EQ(storage_of(tensor), storage_of(put));
        EXPECT_TRUE(tcx_is_shared(client, floats_of(tensor) + 1, 8));
        tcx_tensor_unref(tensor);
        EXPECT_EQ(7, floats_of(put)[COUNT - 1]); /* held by itself now */
        tcx_tensor_unref(put);
        tcx_client_close(client);
        _exit(0);
    }
    expect_success(pid);
    EXPECT_OK(tcx_get(client, "x", NULL, &got, NULL));
    EXPECT_TRUE(floats_of(got) == floats_of(tensor));
    tcx_tensor_unref(got);
    tcx_tensor_unref(tensor);
    EXPECT_OK(tcx_delete(client, "x"));
    expect_storages(0);
    end_daemon();
}

TEST(a_childs_bundle_refers_to_what_it_inherited) {
    const char *path[1] = {"a"};
    tcx_bundle_t *bundle;
    tcx_tensor_t *entry;
    size_t depth;
    const char *const *keys;

    given_daemon();
    tcx_tensor_t *tensor = full(client, 7);
    pid_t pid = fork();
    if (pid == 0) {
        tcx_item_t item = {path, 1, tcx_tensor_array(tensor)};
        EXPECT_OK(tcx_put_bundle(client, "x", &item, 1, NULL, NULL));
        _exit(0);
    }
    expect_success(pid);
    EXPECT_OK(tcx_get(client, "x", NULL, NULL, &bundle));
    tcx_bundle_item(bundle, 0, &keys, &depth, &entry);
    EXPECT_TRUE(floats_of(entry) == floats_of(tensor));
    tcx_bundle_unref(bundle);
    tcx_tensor_unref(tensor);
    EXPECT_OK(tcx_delete(client, "x"));
    expect_storages(0);
    end_daemon();
}

TEST(a_childs_ticket_is_for_the_memory_it_inherited) {
    struct signal signal = signal_create();
    char ticket[TCX_TICKET_MAX];
    size_t nbytes;
    tcx_tensor_t *redeemed;

    given_daemon();
    tcx_tensor_t *tensor = full(client, 7);
    pid_t pid = fork();
    if (pid == 0) {
        EXPECT_OK(tcx_tensor_ticket(client, tensor, ticket, &nbytes));
        EXPECT_EQ(nbytes, write(signal.ends[1], ticket, nbytes));
        _exit(0);
    }
    expect_success(pid);
    ssize_t n = read(signal.ends[0], ticket, sizeof ticket);
    EXPECT_TRUE(n > 0);
    EXPECT_OK(tcx_redeem(client, ticket, (size_t)n, &redeemed, NULL));
    EXPECT_TRUE(floats_of(redeemed) == floats_of(tensor));
    EXPECT_EQ(storage_of(tensor), storage_of(redeemed));
    tcx_tensor_unref(tensor);
    tcx_tensor_unref(redeemed);
    expect_storages(0);
    signal_destroy(&signal);
    end_daemon();
}

static void delete_nothing(struct DLManagedTensorVersioned *self) {
    (void)self;
}

TEST(a_child_recognises_what_it_inherited_when_it_comes_by_dlpack) {
    int64_t shape[1] = {COUNT};
    tcx_tensor_t *imported;

    given_daemon();
    tcx_tensor_t *tensor = full(client, 7);
    struct DLManagedTensorVersioned managed = {
        .version = {1, 0},
        .deleter = delete_nothing,
        .dl_tensor = {.device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 32, 1}},
    };
    managed.dl_tensor.data = floats_of(tensor);
    managed.dl_tensor.shape = shape;
    pid_t pid = fork();
    if (pid == 0) {
        EXPECT_OK(tcx_from_dlpack(client, &managed, TCX_COPY_NEVER, &imported));
        EXPECT_EQ(storage_of(tensor), storage_of(imported));
        tcx_tensor_unref(tensor);
        EXPECT_EQ(7, floats_of(imported)[COUNT - 1]);
        tcx_tensor_unref(imported);
        _exit(0);
    }
    expect_success(pid);
    tcx_tensor_unref(tensor);
    expect_storages(0);
    end_daemon();
}

/* ---------------------------------------------------------------------------- how long it stays */

TEST(what_a_child_inherited_stays_when_its_parent_lets_go) {
    struct signal let_go = signal_create();

    given_daemon();
    tcx_tensor_t *tensor = full(client, 7);
    pid_t pid = fork();
    if (pid == 0) {
        signal_await(&let_go);
        expect_full(tensor, 7);
        _exit(0);
    }
    tcx_tensor_unref(tensor);
    tcx_tensor_t *other = full(client, 8); /* would have the same memory */
    expect_storages(2);
    signal_send(&let_go);
    expect_success(pid);
    expect_storages(1);
    expect_full(other, 8);
    tcx_tensor_unref(other);
    expect_storages(0);
    signal_destroy(&let_go);
    end_daemon();
}

TEST(what_a_child_inherited_stays_when_its_parent_ends) {
    struct signal is_over = signal_create();
    struct signal went_well = signal_create();

    given_daemon();
    pid_t parent = fork();
    if (parent == 0) {
        tcx_tensor_t *tensor = full(client, 7);
        if (fork() == 0) {
            signal_await(&is_over);
            expect_full(tensor, 7);
            signal_send(&went_well);
            signal_await(&is_over);
        }
        _exit(0);
    }
    expect_success(parent);
    tcx_tensor_t *other = full(client, 8);
    expect_storages(2);
    signal_send(&is_over);
    signal_await(&went_well);
    signal_send(&is_over);
    expect_storages(1);
    tcx_tensor_unref(other);
    signal_destroy(&is_over);
    signal_destroy(&went_well);
    end_daemon();
}

/* The socket is full, so the daemon cannot be told of the fork before the parent is gone. */
TEST(what_a_child_inherited_stays_when_its_parent_ends_untold) {
    enum { NOTES = 3000 };
    struct signal is_over = signal_create();
    struct signal went_well = signal_create();
    tcx_tensor_t *tensors[NOTES];
    tcx_stats_t stats;

    given_daemon();
    pid_t parent = fork();
    if (parent == 0) {
        tcx_tensor_t *tensor = full(client, 7);
        for (int i = 0; i < NOTES; i++) {
            EXPECT_OK(tcx_empty(client, (tcx_device_t){0}, (tcx_dtype_t){TCX_FLOAT, 32, 1}, 0, NULL,
                                &tensors[i]));
        }
        EXPECT_EQ(0, kill(own.pid, SIGSTOP));
        for (int i = 0; i < NOTES; i++) {
            tcx_tensor_unref(tensors[i]);
        }
        if (fork() == 0) {
            signal_await(&is_over);
            expect_full(tensor, 7);
            tcx_tensor_unref(tensor); /* nothing is left that it needs */
            signal_send(&went_well);
            signal_await(&is_over);
        }
        _exit(0);
    }
    expect_success(parent);
    EXPECT_EQ(0, kill(own.pid, SIGCONT));
    do {
        EXPECT_OK(tcx_stats(client, &stats));
    } while (stats.clients > 1); /* the runner's timeout ends it */
    tcx_tensor_t *other = full(client, 8);
    signal_send(&is_over);
    signal_await(&went_well);
    expect_storages(1);
    signal_send(&is_over);
    tcx_tensor_unref(other);
    signal_destroy(&is_over);
    signal_destroy(&went_well);
    end_daemon();
}

TEST(what_a_child_lets_go_is_free_while_it_lives) {
    struct signal let_go = signal_create();
    struct signal is_over = signal_create();

    given_daemon();
    tcx_tensor_t *tensor = full(client, 7);
    pid_t pid = fork();
    if (pid == 0) {
        signal_await(&let_go);
        tcx_tensor_unref(tensor);
        signal_await(&is_over);
        _exit(0);
    }
    tcx_tensor_unref(tensor);
    expect_storages(1);
    signal_send(&let_go);
    expect_storages(0);
    signal_send(&is_over);
    expect_success(pid);
    signal_destroy(&let_go);
    signal_destroy(&is_over);
    end_daemon();
}

TEST(a_grandchild_keeps_what_its_parents_parent_had) {
    struct signal is_over = signal_create();

    given_daemon();
    tcx_tensor_t *tensor = full(client, 7);
    pid_t child = fork();
    if (child == 0) {
        tcx_tensor_t *own_tensor = full(client, 6);
        if (fork() == 0) {
            signal_await(&is_over);
            expect_full(tensor, 7);
            expect_full(own_tensor, 6);
            _exit(0);
        }
        _exit(0);
    }
    expect_success(child);
    tcx_tensor_unref(tensor);
    tcx_tensor_t *others[2] = {full(client, 8), full(client, 9)};
    expect_storages(4);
    signal_send(&is_over);
    expect_storages(2);
    tcx_tensor_unref(others[0]);
    tcx_tensor_unref(others[1]);
    expect_storages(0);
    signal_destroy(&is_over);
    end_daemon();
}

TEST(a_child_that_calls_exec_keeps_nothing) {
    struct signal is_over = signal_create();

    given_daemon();
    tcx_tensor_t *tensor = full(client, 7);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(is_over.ends[0], 0);
        signal_destroy(&is_over);
        execl("/bin/cat", "cat", NULL);
        _exit(127);
    }
    tcx_tensor_unref(tensor);
    expect_storages(0);
    signal_destroy(&is_over);
    expect_success(pid);
    end_daemon();
}

TEST(what_a_child_inherited_from_a_lost_connection_stays) {
    struct signal is_over = signal_create();

    given_daemon();
    pid_t parent = fork();
    if (parent == 0) {
        tcx_tensor_t *tensor = full(client, 7);
        EXPECT_EQ(0, dup2(is_over.ends[0], 0));
        EXPECT_EQ(0, close_range(3, ~0u, 0)); /* as programs do that go to the background */
        if (fork() > 0) {
            _exit(0);
        }
        is_over.ends[0] = 0;
        signal_await(&is_over);
        expect_full(tensor, 7);
        _exit(0);
    }
    expect_success(parent);
    tcx_tensor_t *other = full(client, 8);
    expect_storages(2);
    signal_send(&is_over);
    expect_storages(1);
    expect_full(other, 8);
    tcx_tensor_unref(other);
    expect_storages(0);
    signal_destroy(&is_over);
    end_daemon();
}

/* A fork for which there is no fork page. The child's parent has ended when this returns in it. */
static void fork_without_page(void) {
    struct rlimit limit;

    EXPECT_EQ(0, getrlimit(RLIMIT_NOFILE, &limit));
    struct rlimit none = {3, limit.rlim_max};
    EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &none));
    pid_t parent = getpid();
    if (fork() > 0) {
        _exit(0);
    }
    EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &limit));
    while (getppid() == parent) {
        sched_yield();
    }
}

TEST(what_has_no_fork_page_is_kept_by_the_life_page) {
    struct signal went_well = signal_create();

    given_daemon();
    pid_t parent = fork();
    if (parent == 0) {
        tcx_tensor_t *tensor = full(client, 7);
        fork_without_page();
        EXPECT_OK(tcx_put(client, "x", tcx_tensor_array(tensor), NULL, NULL));
        expect_full(tensor, 7);
        expect_storages(1);
        signal_send(&went_well);
        _exit(0);
    }
    expect_success(parent);
    signal_await(&went_well);
    expect_storages(1);
    EXPECT_OK(tcx_delete(client, "x"));
    expect_storages(0);
    signal_destroy(&went_well);
    end_daemon();
}

TEST(a_lost_connection_leaves_its_life_page_to_all_children) {
    struct signal went_well = signal_create();

    given_daemon();
    pid_t parent = fork();
    if (parent == 0) {
        unsigned char is_resident;
        tcx_tensor_t *tensor = full(client, 7);
        void *page = client->session->life_page;
        EXPECT_EQ(0, shutdown(client->session->socket, SHUT_RDWR)); /* the first fork sees it */
        fork_without_page();
        for (int i = 0; i < 2; i++) {
            pid_t child = fork();
            if (child == 0) {
                EXPECT_EQ(0, mincore(page, WIRE_PAGE_NBYTES, &is_resident)); /* it is mapped */
                expect_full(tensor, 7);
                _exit(0);
            }
            expect_success(child);
        }
        signal_send(&went_well);
        _exit(0);
    }
    expect_success(parent);
    signal_await(&went_well);
    expect_storages(0);
    signal_destroy(&went_well);
    end_daemon();
}

TEST(what_nobody_could_keep_is_an_error_and_no_copy) {
    char ticket[TCX_TICKET_MAX];
    size_t nbytes;
    tcx_put_options_t copy = {.flags = TCX_PUT_COPY};
    struct signal went_well = signal_create();

    given_daemon();
    pid_t parent = fork();
    if (parent == 0) {
        tcx_tensor_t *tensor = full(client, 7);
        client->session->life_page = NULL; /* so the child has neither page */
        fork_without_page();
        expect_storages(0);
        EXPECT_EQ(TCX_STALE, tcx_put(client, "x", tcx_tensor_array(tensor), NULL, NULL));
        EXPECT_EQ(TCX_STALE, tcx_tensor_ticket(client, tensor, ticket, &nbytes));
        EXPECT_OK(tcx_put(client, "x", tcx_tensor_array(tensor), &copy, NULL));
        signal_send(&went_well);
        _exit(0);
    }
    expect_success(parent);
    signal_await(&went_well);
    expect_storages(1);
    signal_destroy(&went_well);
    end_daemon();
}

/* -------------------------------------------------------------------------- beside busy threads */

TEST(forks_beside_a_daemon_that_is_stopped_lose_nothing_and_leave_nothing) {
    enum { FORKS = 20, TENSORS = 3000 };
    struct signal is_over = signal_create();
    pid_t children[FORKS];

    given_daemon();
    tcx_tensor_t *tensor = full(client, 7);
    struct floats floats;
    float number = 1;
    static tcx_tensor_t *many[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        EXPECT_OK(tcx_put(client, "many", floats_on(&floats, &number, 1), NULL, &many[i]));
    }
    EXPECT_OK(tcx_delete(client, "many"));
    EXPECT_EQ(0, kill(own.pid, SIGSTOP));
    for (int i = 0; i < TENSORS; i++) { /* fills the socket */
        tcx_tensor_unref(many[i]);
    }
    for (int i = 0; i < FORKS; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            signal_await(&is_over);
            expect_full(tensor, 7);
            _exit(0);
        }
    }
    tcx_tensor_unref(tensor);
    EXPECT_EQ(0, kill(own.pid, SIGCONT));
    tcx_tensor_t *other = full(client, 8);
    expect_storages(2);
    for (int i = 0; i < FORKS; i++) {
        signal_send(&is_over);
    }
    for (int i = 0; i < FORKS; i++) {
        expect_success(children[i]);
    }
    expect_storages(1);
    tcx_tensor_unref(other);
    expect_storages(0);
    signal_destroy(&is_over);
    end_daemon();
}

enum { THREADS = 8, FORKS = 100 };

/* Makes, forks, lets go; the child has what this thread had. */
static void *make_and_fork(void *argument) {
    const int *number = argument;

    for (int i = 0; i < FORKS; i++) {
        float content = (float)(*number * FORKS + i);
        tcx_tensor_t *tensor = full(client, content);
        pid_t pid = fork();
        if (pid == 0) {
            expect_full(tensor, content);
            tcx_tensor_unref(tensor);
            _exit(0);
        }
        tcx_tensor_unref(tensor);
        expect_success(pid);
    }
    return NULL;
}

TEST(many_threads_fork_and_each_child_has_what_its_thread_had) {
    pthread_t threads[THREADS];
    int numbers[THREADS];

    given_daemon();
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        EXPECT_EQ(0, pthread_create(&threads[i], NULL, make_and_fork, &numbers[i]));
    }
    for (int i = 0; i < THREADS; i++) {
        EXPECT_EQ(0, pthread_join(threads[i], NULL));
    }
    expect_storages(0);
    end_daemon();
}
