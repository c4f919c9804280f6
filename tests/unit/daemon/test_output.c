/* Replies on their way, and a kernel that refuses to take some of them. */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "codec.h"
#include "fixture.h"
#include "messages.h"
#include "output.h"
#include "status.h"

static const int *refusals; /* what the next sends end with; 0: nothing more */

/* Instead of libc's. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    if (refusals && *refusals) {
        errno = *refusals++;
        return -1;
    }
    return syscall(SYS_sendmsg, fd, message, flags);
}

struct line {
    struct output output;
    int here, there;
    int file; /* what goes with replies */
};

static void setup(struct line *line) {
    int ends[2];

    EXPECT_EQ(0, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
    output_init(&line->output, 4096);
    line->here = ends[0];
    line->there = ends[1];
    line->file = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void teardown(struct line *line) {
    output_fini(&line->output);
    close(line->here);
    close(line->there);
    close(line->file);
}

/* A reply with a descriptor that is refused when it is sent, and then as `later` says. */
static void send_refused(struct line *line, uint16_t opcode, const int *later) {
    static const int at_first[] = {EAGAIN, 0};
    static const char fixed[256];
    struct frame frame = {.header = {.opcode = opcode, .request = 1},
                          .fixed = fixed,
                          .fixed_nbytes = wire_rule(opcode)->reply_size,
                          .fd = line->file};

    refusals = at_first;
    EXPECT_TRUE(output_send(&line->output, line->here, &frame) == NULL);
    refusals = later;
    for (int i = 0; i < 3; i++) {
        EXPECT_TRUE(output_flush(&line->output, line->here) == NULL);
    }
    EXPECT_TRUE(output_is_empty(&line->output));
    EXPECT_EQ(0, line->output.nbytes);
}

/* What the client gets. Returns the status. */
static unsigned receive(const struct line *line, int *ret_fd) {
    _Alignas(struct wire_header) char message[1024];
    const struct wire_header *header = (const void *)message;
    const struct wire_rule *rule;
    int n = connection_receive(line->there, message, sizeof message, ret_fd);

    EXPECT_TRUE(n > 0);
    EXPECT_TRUE(wire_check_reply(header, (size_t)n, *ret_fd >= 0, &rule) == NULL);
    return header->status;
}

TEST(a_reply_that_is_kept_comes_with_its_descriptor) {
    static const int none[] = {EAGAIN, ENOBUFS, 0};
    struct line line;
    int fd;

    setup(&line);
    send_refused(&line, MESSAGE_MAP, none);
    EXPECT_EQ(STATUS_OK, receive(&line, &fd));
    EXPECT_TRUE(fd >= 0);
    close(fd);
    teardown(&line);
}

TEST(a_reply_whose_descriptor_is_refused_becomes_an_error) {
    static const int none[] = {ETOOMANYREFS, 0};
    struct line line;
    int fd;

    setup(&line);
    send_refused(&line, MESSAGE_MAP, none);
    EXPECT_EQ(STATUS_SYSTEM, receive(&line, &fd));
    EXPECT_EQ(-1, fd);
    teardown(&line);
}

TEST(the_reply_to_join_goes_without_its_descriptor_at_once_or_later) {
    static const int at_once[] = {ETOOMANYREFS, 0};
    static const int later[] = {ETOOMANYREFS, ENOBUFS, 0};
    static const int *const cases[] = {at_once, later};
    struct line line;
    int fd;

    setup(&line);
    for (int i = 0; i < 2; i++) {
        send_refused(&line, MESSAGE_JOIN, cases[i]);
        EXPECT_EQ(STATUS_OK, receive(&line, &fd));
        EXPECT_EQ(-1, fd);
    }
    teardown(&line);
}
