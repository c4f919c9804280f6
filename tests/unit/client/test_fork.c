/* What fork() tells the daemon, and what parent and child keep: against a peer that sees it all. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tensorcx.h"

#include "mapping.h"
#include "peer.h"
#include "storage.h"

/* A storage without bytes, so that nothing must be mapped. */
static struct storage *hold(struct peer *peer, uint64_t id) {
    struct wire_grant grant = {.storage = id};
    struct storage *storage;

    EXPECT_EQ(STATUS_OK, storage_take(peer->session, &grant, &storage));
    return storage;
}

/* The next message must be a FORK. Returns its descriptor; -1: none. */
static int receive_fork(struct peer *peer) {
    const struct wire_header *header = (const void *)peer->bytes;
    struct pollfd poller = {.fd = peer->socket, .events = POLLIN};
    int fd;

    EXPECT_EQ(1, poll(&poller, 1, -1));
    EXPECT_TRUE(connection_receive(peer->socket, peer->bytes, sizeof peer->bytes, &fd) > 0);
    EXPECT_EQ(MESSAGE_FORK, header->opcode);
    EXPECT_EQ(fd >= 0 ? 1 : 0, header->nfds);
    return fd;
}

static void expect_quiet(struct peer *peer) {
    int fd;

    EXPECT_EQ(-EAGAIN, connection_receive(peer->socket, peer->bytes, sizeof peer->bytes, &fd));
}

/* How many fork pages this process has mapped. */
static int pages(void) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    int count = 0;

    EXPECT_TRUE(maps != NULL);
    while (fgets(line, sizeof line, maps)) {
        count += strstr(line, "tensorcx-fork") != NULL;
    }
    fclose(maps);
    return count;
}

static int descriptors(void) {
    int count = 0;

    for (int fd = 0; fd < 4096; fd++) {
        count += fcntl(fd, F_GETFD) >= 0;
    }
    return count;
}

static void expect_success(pid_t pid) {
    int status;

    EXPECT_EQ(pid, waitpid(pid, &status, 0));
    EXPECT_EQ(0, status);
}

/* ------------------------------------------------------------------------------------- the page */

TEST(a_fork_sends_a_sealed_page_that_only_the_child_keeps_mapped) {
    struct peer *peer = peer_create(&patient);
    struct storage *storage = hold(peer, 7);
    struct stat info;

    pid_t pid = fork();
    if (pid == 0) {
        EXPECT_EQ(1, pages());
        storage_unref(storage);
        EXPECT_EQ(0, pages()); /* nothing is left that it keeps */
        session_unref(peer->session);
        _exit(0);
    }
    EXPECT_EQ(0, pages());
    int fd = receive_fork(peer);
    EXPECT_EQ(0, fstat(fd, &info));
    EXPECT_EQ(sysconf(_SC_PAGESIZE), info.st_size);
    EXPECT_EQ(F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, fcntl(fd, F_GET_SEALS));
    close(fd);
    expect_success(pid);
    expect_quiet(peer); /* the child has said nothing */
    storage_unref(storage);
    peer_receive(peer, MESSAGE_RELEASE);
    peer_destroy(peer);
}

TEST(who_holds_nothing_says_nothing_when_it_forks) {
    struct peer *peer = peer_create(&patient);

    storage_unref(hold(peer, 7));
    peer_receive(peer, MESSAGE_RELEASE);
    pid_t pid = fork();
    if (pid == 0) {
        _exit(pages());
    }
    expect_success(pid);
    expect_quiet(peer);
    peer_destroy(peer);
}

TEST(a_child_keeps_the_page_while_any_storage_is_left_and_so_do_its_children) {
    struct peer *peer = peer_create(&patient);
    struct storage *one = hold(peer, 7);
    struct storage *two = hold(peer, 8);

    pid_t pid = fork();
    if (pid == 0) {
        storage_unref(one);
        EXPECT_EQ(1, pages());
        pid_t grandchild = fork();
        if (grandchild == 0) {
            EXPECT_EQ(1, pages());
            storage_unref(two);
            _exit(pages());
        }
        expect_success(grandchild);
        EXPECT_EQ(1, pages());
        storage_unref(two);
        _exit(pages());
    }
    expect_success(pid);
    close(receive_fork(peer));
    expect_quiet(peer);
    storage_unref(one);
    storage_unref(two);
    peer_receive(peer, MESSAGE_RELEASE);
    peer_destroy(peer);
}

TEST(each_fork_has_a_page_of_its_own) {
    enum { COUNT = 5 };
    struct peer *peer = peer_create(&patient);
    struct storage *storage = hold(peer, 7);
    struct stat infos[COUNT];

    for (int i = 0; i < COUNT; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            _exit(pages() - 1);
        }
        expect_success(pid);
        EXPECT_EQ(0, pages());
        int fd = receive_fork(peer);
        EXPECT_EQ(0, fstat(fd, &infos[i]));
        for (int k = 0; k < i; k++) {
            EXPECT_TRUE(infos[k].st_ino != infos[i].st_ino);
        }
        close(fd);
    }
    storage_unref(storage);
    peer_destroy(peer);
}

TEST(without_a_free_descriptor_a_fork_still_tells) {
    struct peer *peer = peer_create(&patient);
    struct storage *storage = hold(peer, 7);
    struct rlimit before;

    EXPECT_EQ(0, getrlimit(RLIMIT_NOFILE, &before));
    struct rlimit none = {3, before.rlim_max};
    EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &none));
    pid_t pid = fork();
    if (pid == 0) {
        _exit(0);
    }
    EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &before));
    expect_success(pid);
    EXPECT_EQ(-1, receive_fork(peer));
    storage_unref(storage);
    peer_destroy(peer);
}

TEST(what_was_let_go_before_a_fork_is_released_before_it) {
    struct peer *peer = peer_create(&patient);
    struct storage *kept = hold(peer, 7);
    struct storage *gone = hold(peer, 8);

    session_lock(peer->session); /* so that it is only put on the list */
    storage_unref(gone);
    pthread_mutex_unlock(&peer->session->lock);
    pid_t pid = fork();
    if (pid == 0) {
        _exit(0);
    }
    expect_success(pid);
    peer_receive(peer, MESSAGE_RELEASE);
    close(receive_fork(peer));
    storage_unref(kept);
    peer_destroy(peer);
}

/* -------------------------------------------------------------------------------- a full socket */

TEST(a_fork_beside_a_full_socket_waits_in_order_with_its_page) {
    enum { COUNT = 5000, FORKS = 3 };
    struct peer *peer = peer_create(&patient);
    struct storage *storage = hold(peer, 7);
    struct wire_cancel cancel;

    for (uint32_t i = 0; i < COUNT; i++) {
        peer_note(peer, i);
    }
    int before = descriptors();
    for (int i = 0; i < FORKS; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            /* The connection is not its own, and the pages of those before it are not, either. */
            EXPECT_EQ(before - 1, descriptors());
            _exit(pages() - 1);
        }
        expect_success(pid);
    }
    EXPECT_EQ(before + FORKS, descriptors());
    storage_unref(storage);
    for (uint32_t i = 0; i < COUNT; i++) {
        memcpy(&cancel, peer_receive(peer, MESSAGE_CANCEL) + 1, sizeof cancel);
        EXPECT_EQ(i, cancel.request);
    }
    for (int i = 0; i < FORKS; i++) {
        int fd = receive_fork(peer);
        EXPECT_TRUE(fd >= 0);
        close(fd);
    }
    peer_receive(peer, MESSAGE_RELEASE);
    EXPECT_EQ(before, descriptors());
    peer_destroy(peer);
}

TEST(a_connection_that_ends_closes_what_waits_to_be_sent) {
    enum { COUNT = 5000 };
    struct peer *peer = peer_create(&patient);
    struct storage *storage = hold(peer, 7);

    for (uint32_t i = 0; i < COUNT; i++) {
        peer_note(peer, i);
    }
    int before = descriptors();
    pid_t pid = fork();
    if (pid == 0) {
        _exit(0);
    }
    expect_success(pid);
    EXPECT_EQ(before + 1, descriptors());
    session_lock(peer->session);
    session_die(peer->session, "the test ends it");
    session_unlock(peer->session);
    EXPECT_EQ(before - 1, descriptors()); /* the page's and the socket */
    storage_unref(storage);
    peer_destroy(peer);
}

/* ------------------------------------------------------------------------------------ the child */

TEST(a_child_has_the_mappings_but_not_their_page_table_entries) {
    enum { NBYTES = 4 << 20 };
    struct peer *peer = peer_create(&patient);
    struct mapping *mapping;
    int file = memfd_create("segment", MFD_CLOEXEC);

    EXPECT_EQ(0, ftruncate(file, NBYTES));
    EXPECT_EQ(STATUS_OK, mapping_open(1, 2, file, NBYTES, &mapping));
    close(file);
    mapping_populate(mapping, 0, NBYTES);
    EXPECT_EQ(NBYTES, mapping->populated);
    pid_t pid = fork();
    if (pid == 0) {
        EXPECT_TRUE(mapping_find(1, 2) == mapping);
        EXPECT_EQ(0, mapping->populated);
        mapping_populate(mapping, 0, NBYTES);
        EXPECT_EQ(NBYTES, mapping->populated);
        _exit(0);
    }
    expect_success(pid);
    EXPECT_EQ(NBYTES, mapping->populated);
    mapping_close(mapping);
    EXPECT_TRUE(mapping_find(1, 2) == NULL);
    peer_destroy(peer);
}

TEST(what_a_child_inherits_counts_as_shared_and_what_is_lost_does_not) {
    struct peer *alive = peer_create(&patient);
    struct peer *lost = peer_create(&patient);

    peer_hang_up(lost);
    EXPECT_TRUE(!session_is_alive(lost->session));
    pid_t pid = fork();
    if (pid == 0) {
        EXPECT_TRUE(session_is_alive(alive->session));
        EXPECT_TRUE(!session_is_alive(lost->session));
        _exit(0);
    }
    expect_success(pid);
    peer_destroy(alive);
    peer_destroy(lost);
}
