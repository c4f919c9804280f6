/*
 * fuzz_daemon.c - what clients send: a daemon in this process, three clients at the other ends of
 * socketpairs, and a CUDA device (tests/fakecuda)
 *
 * An input is a byte of bits (1: nobody has said HELLO, 2: cuda=ipc) and a list of steps: kind,
 * client, size (2 bytes), so many bytes. Whatever comes, the
 * daemon answers by its own rules, and at its end nothing is left (server_run() asserts that).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "client.h"
#include "closer.h"
#include "codec.h"
#include "commit.h"
#include "connection.h"
#include "driver.h"
#include "fuzz.h"
#include "log.h"
#include "page.h"
#include "server.h"

enum { CLIENTS = 3, STEPS_MAX = 60, BLOCK_NBYTES = 4096 };

enum step { MESSAGE, BYTES, DESCRIPTORS, SCRIBBLE, TURN_DEAF, HANG_UP, KINDS };

struct peer {
    int socket;      /* -1: hung up */
    int page;        /* life page, -1: none */
    uint32_t *block; /* the first words of the control block it got last */
    uint32_t request;
    int is_deaf; /* reads no replies */
};

static char folder[] = "/tmp/tcx-fuzz-XXXXXX";
static char socket_option[64];
static struct options options;
static struct server server;
static struct peer peers[CLIENTS];

/* The thread of the first start stays for the whole process. */
void __real_closer_start(void);
void __wrap_closer_start(void);
void __wrap_closer_start(void) {
    static int started;

    if (!started++) {
        __real_closer_start();
    }
}

/* To close one takes the kernel ten milliseconds: the daemon gets copies of two that stay, one for
 * life pages, one for the folder. */
int __real_inotify_init1(int flags);
int __wrap_inotify_init1(int flags);
int __wrap_inotify_init1(int flags) {
    static int calls;
    static int fds[2];
    char events[4096];
    int *fd = &fds[calls++ % 2];

    if (*fd == 0) {
        *fd = __real_inotify_init1(flags);
    }
    while (read(*fd, events, sizeof events) > 0) {
    }
    return fcntl(*fd, F_DUPFD_CLOEXEC, 0);
}

static void remove_folder(void) {
    char path[64];

    snprintf(path, sizeof path, "%s/d.lock", folder);
    unlink(path);
    rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    char text[OPTIONS_TEXT_SIZE];
    char *words[] = {"tensorcxd",        socket_option,       "--capacity=2M",    "--reserve=0",
                     "--warm-seconds=0", "--max-output=128K", "--ticket-lease=0", "--max-names=4",
                     "--max-channels=3", "--max-waiting=4",   "--backing=memfd"};

    (void)argc;
    (void)argv;
    assert(mkdtemp(folder));
    atexit(remove_folder);
    snprintf(socket_option, sizeof socket_option, "--socket=%s/d.sock", folder);
    int r = options_parse(&options, sizeof words / sizeof *words, words, text);
    assert(r == 0);
    r = log_open("/dev/null");
    assert(r == 0);
    log_set_level(LOG_DEBUG);
    return 0;
}

static void close_fd(int *fd) {
    if (*fd >= 0) {
        close(*fd);
    }
    *fd = -1;
}

static void drop_block(struct peer *peer) {
    if (peer->block) {
        munmap(peer->block, BLOCK_NBYTES);
    }
    peer->block = NULL;
}

static void hang_up(struct peer *peer) {
    close_fd(&peer->socket);
    close_fd(&peer->page);
    drop_block(peer);
}

/* ------------------------------------------------------------------------------------- replies */

/* Keeps what a test needs of a reply; takes `fd`. */
static void adopt(struct peer *peer, int opcode, int fd) {
    if (opcode == MESSAGE_HELLO && peer->page < 0) {
        peer->page = fd;
        return;
    }
    if (opcode == MESSAGE_JOIN && fd >= 0) {
        drop_block(peer);
        peer->block = mmap(NULL, BLOCK_NBYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        assert(peer->block != MAP_FAILED);
    }
    close_fd(&fd);
}

/* What the daemon says must be right, whatever it was asked. */
static void read_replies(struct peer *peer) {
    static _Alignas(struct wire_header) char bytes[WIRE_MESSAGE_MAX];
    const struct wire_header *header = (const void *)bytes;
    const struct wire_rule *rule;
    int fd;
    int n;

    while (peer->socket >= 0 && !peer->is_deaf &&
           (n = connection_receive(peer->socket, bytes, sizeof bytes, &fd)) > 0) {
        assert(!wire_check_reply(header, (size_t)n, fd != -1, &rule));
        adopt(peer, header->status ? 0 : header->opcode, fd);
    }
}

static bool is_busy(void) {
    bool busy = server.devices.state == DEVICES_LOADING || commit_is_busy(&server.segments);

    for (unsigned i = 0; i < server.devices.count; i++) {
        busy = busy || commit_is_busy(&server.devices.all[i].segments);
    }
    return busy;
}

/* Lets the daemon do all it can; who waits for memory mostly gets it. */
static void turn(void) {
    enum { ROUNDS = 100, PAUSE_US = 100 };
    bool busy = true;

    for (int i = 0; i < ROUNDS && busy && !server.stopping; i++) {
        uv_run(server.uv, UV_RUN_NOWAIT);
        for (int k = 0; k < CLIENTS; k++) {
            read_replies(&peers[k]);
        }
        busy = is_busy();
        if (busy) {
            usleep(PAUSE_US);
        }
    }
}

/* --------------------------------------------------------------------------------------- steps */

static void send_all(struct peer *peer, const void *bytes, size_t nbytes, const int *fds,
                     size_t nfds) {
    struct iovec part = {(void *)bytes, nbytes};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    if (nfds > 0) {
        control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(nfds * sizeof *fds),
                                          .cmsg_level = SOL_SOCKET,
                                          .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), fds, nfds * sizeof *fds);
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(nfds * sizeof *fds);
    }
    (void)sendmsg(peer->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* A message whose header is right: its first byte chooses which, what is missing is 0. */
static size_t frame(struct peer *peer, struct input step, int nfds, char *ret_bytes) {
    static const uint16_t opcodes[] = {
#define CALL(NAME, ...) MESSAGE_##NAME,
#define NOTE(NAME, ...) MESSAGE_##NAME,
#include "messages.def"
#undef CALL
#undef NOTE
    };
    const struct wire_rule *rule =
        wire_rule(opcodes[input_number(&step, 1) % (sizeof opcodes / sizeof *opcodes)]);
    size_t nbytes = step.left > rule->request_size ? step.left : rule->request_size;
    struct wire_header header = {.nbytes = (uint32_t)(sizeof header + nbytes),
                                 .opcode = rule->opcode,
                                 .nfds = (uint16_t)nfds,
                                 .request = rule->is_call ? ++peer->request : 0};

    memcpy(ret_bytes, &header, sizeof header);
    input_take(&step, ret_bytes + sizeof header, nbytes);
    return header.nbytes;
}

/* Two kinds of descriptors, up to four of them. */
static size_t make_descriptors(struct input *step, int fds[4]) {
    size_t count = input_number(step, 1) % 5;

    for (size_t i = 0; i < count; i++) {
        fds[i] = input_number(step, 1) & 1 ? open("/dev/null", O_RDONLY | O_CLOEXEC)
                                           : memfd_create("fuzz", MFD_CLOEXEC);
        (void)ftruncate(fds[i], WIRE_PAGE_NBYTES);
    }
    return count;
}

static void scribble(const struct peer *peer, struct input *step) {
    while (peer->block && step->left > 0) {
        uint64_t at = input_number(step, 2) % (BLOCK_NBYTES / sizeof *peer->block);
        peer->block[at] = (uint32_t)input_number(step, 4);
    }
}

static void do_step(enum step kind, struct peer *peer, struct input step) {
    static char bytes[sizeof(struct wire_header) + UINT16_MAX + 1];
    int fds[4];
    size_t count = kind == DESCRIPTORS ? make_descriptors(&step, fds) : 0;

    switch (kind) {
    case MESSAGE:
    case DESCRIPTORS:
        send_all(peer, bytes, frame(peer, step, (int)count, bytes), fds, count);
        break;
    case BYTES:
        send_all(peer, step.at, step.left, NULL, 0);
        break;
    case SCRIBBLE:
        scribble(peer, &step);
        break;
    case TURN_DEAF:
        peer->is_deaf = !peer->is_deaf;
        break;
    case HANG_UP:
    case KINDS:
        hang_up(peer);
        break;
    }
    for (size_t i = 0; i < count; i++) {
        close_fd(&fds[i]);
    }
    turn();
}

/* ---------------------------------------------------------------------------------- the daemon */

static void connect_peer(struct peer *peer) {
    int few = 1; /* so that a deaf one soon has a full socket */
    int ends[2];
    int r = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends);

    assert(r == 0);
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &few, sizeof few);
    *peer = (struct peer){.socket = ends[1], .page = -1};
    client_open(&server, ends[0], NULL);
}

static void greet(struct peer *peer) {
    struct wire_hello hello = {.magic = WIRE_MAGIC,
                               .version_min = WIRE_VERSION_MIN,
                               .version_max = WIRE_VERSION_MAX,
                               .layout = WIRE_LAYOUT};
    struct frame frame = {.header = {.opcode = MESSAGE_HELLO, .request = ++peer->request},
                          .fixed = &hello,
                          .fixed_nbytes = sizeof hello,
                          .fd = -1};

    (void)connection_send(peer->socket, &frame);
}

static void start(void) {
    struct listener listener;
    char text[LISTEN_TEXT_SIZE];
    int r = listener_open(&listener, options.socket, false, text);

    assert(r == 0);
    r = server_init(&server, &options, &listener);
    assert(r == 0);
    for (int i = 0; i < CLIENTS; i++) {
        connect_peer(&peers[i]);
    }
}

/* A daemon leaves its memory of cuda=ipc to the end of its process. */
static void end_contexts(void) {
    const char *why;
    const struct cuda_driver *driver = cuda_driver_is_loaded() ? cuda_driver(&why) : NULL;

    while (driver && driver->context_release(0) == CUDA_SUCCESS) {
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    struct input input = {data, nbytes};

    uint64_t first = input_number(&input, 1);
    options.cuda = first & 2 ? "ipc" : "vmm";
    start();
    if (!(first & 1)) { /* else they have to say HELLO themselves */
        for (int i = 0; i < CLIENTS; i++) {
            greet(&peers[i]);
        }
    }
    turn();
    for (int i = 0; i < STEPS_MAX && input.left > 0 && !server.stopping; i++) {
        enum step kind = (enum step)(input_number(&input, 1) % KINDS);
        struct peer *peer = &peers[input_number(&input, 1) % CLIENTS];
        size_t wanted = input_number(&input, 2);
        struct input step;
        step.at = input_bytes(&input, wanted, &step.left);
        do_step(kind, peer, step);
    }
    server.stop_reason = "the input ends";
    server_run(&server);
    end_contexts();
    for (int i = 0; i < CLIENTS; i++) {
        hang_up(&peers[i]);
    }
    return 0;
}
