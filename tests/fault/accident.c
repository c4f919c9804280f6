/*
 * accident.c - preloaded into a client or a daemon, lets one accident happen at a chosen moment
 *
 * Which one, and when, a test says in a page of the file $ACCIDENT, at any time; with
 * $ACCIDENT_ONLY_IN it happens only to files whose paths have that as a part. Stands between the
 * program and libc; knows neither the client nor the daemon. What a plain call may fail with is in
 * accident_calls.h; here are those that need more than a line.
 */
#include "accident.h"

#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>

#include "accident_calls.h"

static struct accident none;
static struct accident *accident = &none;
static long ignored;
static long *blocks = &ignored;
static const char *only_in; /* if set, a part of the path of those files to which it happens */

/* The next function of this name, after ours. */
#define REAL(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

/* A thread's variable that is there without asking for memory. */
#define OF_THE_START __attribute__((tls_model("initial-exec")))

/* What only hands on another's call: ourselves, libc, Python, a sanitizer. */
static int is_between(const char *path) {
    static const char *const names[] = {"accident", "libc.", "libpython", "python", "libasan"};
    const char *name = strrchr(path, '/');

    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++) {
        if (strncmp(name + 1, names[i], strlen(names[i])) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Whether it is the chosen ones that ask. (Where that needs memory itself, it is not.) */
static int is_for_them(void) {
    static __thread int is_looking OF_THE_START;
    void *frames[64];
    Dl_info info;
    int found = -1;

    int count = is_looking++ ? 0 : backtrace(frames, 64);
    for (int i = 0; i < count && found < 0; i++) {
        if (dladdr(frames[i], &info) && !is_between(info.dli_fname)) {
            found = strstr(info.dli_fname, only_in) != NULL;
        }
    }
    is_looking--;
    return found > 0;
}

#ifdef SANITIZED /* which end the program where a thread of theirs finds no memory for this */
static __thread int is_spared OF_THE_START;

int pthread_getattr_np(pthread_t thread, pthread_attr_t *attributes) {
    is_spared = 1;
    int r = REAL(pthread_getattr_np)(thread, attributes);
    is_spared = 0;
    return r;
}
#else
enum { is_spared = 0 };
#endif

static int is_planned(enum accident_kind kind, const int numbers[]) {
    if (is_spared || !(accident->kinds & (int)kind)) {
        return 0;
    }
    for (int i = 0; i <= accident->variant; i++) {
        if (numbers[i] == 0) {
            return 0;
        }
    }
    return !only_in || is_for_them();
}

/* What `function` is to fail with now, one of `numbers`; 0: nothing. */
static int number_of(enum accident_kind kind, const char *function, const int numbers[]) {
    if (!is_planned(kind, numbers)) {
        return 0;
    }
    int at = __atomic_add_fetch(&accident->passed, 1, __ATOMIC_SEQ_CST) - accident->at;
    if (at < 0 || at >= accident->times) {
        return 0;
    }
    strncpy(accident->function, function, sizeof accident->function - 1);
    accident->number = numbers[accident->variant];
    __atomic_add_fetch(&accident->happened, 1, __ATOMIC_SEQ_CST);
    return accident->number;
}

#define NUMBER_OF(kind, name, ...)                     \
    ({                                                 \
        static const int numbers[] = {__VA_ARGS__, 0}; \
        number_of(ACCIDENT_##kind, #name, numbers);    \
    })

/* Whether it fails now, with errno. */
static int fails(int number) {
    if (number) {
        errno = number;
    }
    return number;
}

#define FAILS(kind, name, ...) fails(NUMBER_OF(kind, name, __VA_ARGS__))

/* A child's blocks are not its parent's. */
static void count_no_more(void) {
    blocks = &ignored;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("ACCIDENT");
    int fd = path ? REAL(open)(path, O_RDWR | O_CLOEXEC) : -1;

    if (fd < 0) {
        abort();
    }
    void *page = REAL(mmap)(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        abort();
    }
    close(fd);
    only_in = getenv("ACCIDENT_ONLY_IN");
    void *frame;
    backtrace(&frame, 1); /* the first one loads what it needs */
    accident = page;
    blocks = &accident->blocks;
    pthread_atfork(NULL, NULL, count_no_more);
}

/* ---------------------------------------------------------------------------------- plain calls */

#define DEFINE(kind, type, name, parameters, arguments, failure, ...)           \
    type name parameters {                                                      \
        return FAILS(kind, name, __VA_ARGS__) ? failure : REAL(name) arguments; \
    }
#define DEFINE_RETURNING(kind, name, parameters, arguments, ...) \
    int name parameters {                                        \
        int number = NUMBER_OF(kind, name, __VA_ARGS__);         \
        return number ? number : REAL(name) arguments;           \
    }

ACCIDENT_CALLS(DEFINE)
ACCIDENT_RETURNING_CALLS(DEFINE_RETURNING)

/* --------------------------------------------------------------------------------------- memory */

void *__libc_malloc(size_t nbytes);
void *__libc_calloc(size_t count, size_t nbytes);
void *__libc_realloc(void *block, size_t nbytes);
void __libc_free(void *block);

/* The sanitizer knows blocks of the linker by who called it, so that must not be us. */
#ifdef SANITIZED
#    define counted(block, by) (block)
#else
static void *counted(void *block, long by) {
    __atomic_add_fetch(blocks, block ? by : 0, __ATOMIC_RELAXED);
    return block;
}
#endif

void *malloc(size_t nbytes) {
    return FAILS(MEMORY, malloc, ENOMEM) ? NULL : counted(__libc_malloc(nbytes), 1);
}

void *calloc(size_t count, size_t nbytes) {
    return FAILS(MEMORY, calloc, ENOMEM) ? NULL : counted(__libc_calloc(count, nbytes), 1);
}

void *realloc(void *block, size_t nbytes) {
    return FAILS(MEMORY, realloc, ENOMEM) ? NULL
                                          : counted(__libc_realloc(block, nbytes), block ? 0 : 1);
}

void free(void *block) {
    __libc_free(counted(block, -1));
}

/* ----------------------------------------------------------------------------- with more or less
 */

int open(const char *path, int flags, ...) {
    va_list arguments;

    va_start(arguments, flags);
    unsigned mode = va_arg(arguments, unsigned);
    va_end(arguments);
    return FAILS(DESCRIPTOR, open, EMFILE, ENFILE, ENOMEM) ? -1 : REAL(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list arguments;

    va_start(arguments, flags);
    unsigned mode = va_arg(arguments, unsigned);
    va_end(arguments);
    return open(path, flags, mode);
}

/* What only looks or sets a flag cannot fail. */
static int control_fails(int command) {
    switch (command) {
    case F_DUPFD_CLOEXEC:
        return FAILS(DESCRIPTOR, fcntl, EMFILE);
    case F_ADD_SEALS:
        return FAILS(SYSTEM, fcntl, EPERM, EBUSY);
    default:
        return 0;
    }
}

int fcntl(int fd, int command, ...) {
    va_list arguments;

    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    return control_fails(command) ? -1 : REAL(fcntl)(fd, command, argument);
}

int fcntl64(int fd, int command, ...) {
    va_list arguments;

    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    return fcntl(fd, command, argument);
}

static int system_call_fails(long number, long operation) {
    switch (number) {
    case SYS_futex:
        return (operation & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET &&
               FAILS(SYSTEM, futex, EINTR, EAGAIN);
    case SYS_pidfd_open:
        return FAILS(DESCRIPTOR, pidfd_open, EMFILE, ENFILE, ENOMEM, ESRCH);
    default:
        return 0;
    }
}

long syscall(long number, ...) {
    va_list list;
    long a[6];

    va_start(list, number);
    for (int i = 0; i < 6; i++) {
        a[i] = va_arg(list, long);
    }
    va_end(list);
    return system_call_fails(number, a[1])
               ? -1
               : REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* Only one more needs memory. */
int epoll_ctl(int set, int operation, int fd, struct epoll_event *event) {
    int r = REAL(epoll_ctl)(set, operation, fd, event);

    if (r == 0 && operation == EPOLL_CTL_ADD && FAILS(SYSTEM, epoll_ctl, ENOSPC, ENOMEM)) {
        int number = errno;
        REAL(epoll_ctl)(set, EPOLL_CTL_DEL, fd, event);
        errno = number;
        return -1;
    }
    return r;
}

/* Only what has a name in a file system, which may be far away, is ever not to be seen. */
int fstat(int fd, struct stat *info) {
    int r = REAL(fstat)(fd, info);

    return r == 0 && S_ISREG(info->st_mode) && info->st_nlink > 0 && FAILS(SYSTEM, fstat, EIO) ? -1
                                                                                               : r;
}

/* Into a pipe only while somebody reads it. */
ssize_t write(int fd, const void *bytes, size_t nbytes) {
    struct stat info;
    int is_file = REAL(fstat)(fd, &info) == 0 && S_ISREG(info.st_mode);

    return is_file && FAILS(SYSTEM, write, ENOSPC, EIO) ? -1 : REAL(write)(fd, bytes, nbytes);
}

/* ------------------------------------------------------------------------------------- messages */

static int carries_messages(int fd) {
    int type = 0;
    socklen_t size = sizeof type;

    return REAL(getsockopt)(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

static void die_if_it_happens(void) {
    if (NUMBER_OF(KILL, kill, EINTR)) {
        kill(getpid(), SIGKILL);
    }
}

/* As if the peer were gone: it is told that we are. */
static int connection_fails(int fd, int number) {
    if (fails(number)) {
        shutdown(fd, SHUT_RDWR);
        errno = number;
    }
    return number;
}

static int message_fails(int fd, const struct msghdr *message) {
    int is_refused = message->msg_controllen
                         ? FAILS(MESSAGE, sendmsg, ETOOMANYREFS, ENOBUFS, ENOMEM, EAGAIN, EINTR)
                         : FAILS(MESSAGE, sendmsg, ENOBUFS, ENOMEM, EAGAIN, EINTR);

    return is_refused || connection_fails(fd, NUMBER_OF(CONNECTION, sendmsg, EPIPE, ECONNRESET));
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    int counts = carries_messages(fd);

    if (counts && message_fails(fd, message)) {
        return -1;
    }
    if (counts) {
        die_if_it_happens();
    }
    ssize_t n = REAL(sendmsg)(fd, message, flags);
    if (counts) {
        die_if_it_happens();
    }
    return n;
}

/* What a full table of descriptors does to a message: it comes without them. */
static void drop_descriptors(struct msghdr *message) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        for (size_t at = CMSG_LEN(0); at < c->cmsg_len; at += sizeof(int)) {
            int fd;
            memcpy(&fd, (char *)c + at, sizeof fd);
            close(fd);
        }
    }
    message->msg_controllen = 0;
    message->msg_flags |= MSG_CTRUNC;
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    char byte;
    int counts = carries_messages(fd) && recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;

    if (counts && connection_fails(fd, NUMBER_OF(CONNECTION, recvmsg, ECONNRESET, ENOMEM))) {
        return -1;
    }
    if (counts) {
        die_if_it_happens();
    }
    ssize_t n = REAL(recvmsg)(fd, message, flags);
    if (counts) {
        die_if_it_happens();
    }
    if (n > 0 && CMSG_FIRSTHDR(message) && NUMBER_OF(DESCRIPTOR, recvmsg, EMFILE)) {
        drop_descriptors(message);
    }
    return n;
}
