/*
 * accident.c - preloaded into a client or a daemon, lets one accident happen at a chosen moment
 *
 * Which one, and when, a test says in a page of the file $ACCIDENT, at any time. Stands between the
 * program and libc; knows neither the client nor the daemon.
 */
#include "accident.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static struct accident none;
static struct accident *accident = &none;
static long ignored;
static long *blocks = &ignored;

/* The next function of this name, after ours. */
#define REAL(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

static int happens(enum accident_kind kind) {
    if (accident->kind != (int)kind) {
        return 0;
    }
    int at = __atomic_add_fetch(&accident->passed, 1, __ATOMIC_SEQ_CST) - accident->at;
    if (at < 0 || at >= accident->times) {
        return 0;
    }
    __atomic_add_fetch(&accident->happened, 1, __ATOMIC_SEQ_CST);
    return 1;
}

static int fails(enum accident_kind kind, int number) {
    if (happens(kind)) {
        errno = number;
        return 1;
    }
    return 0;
}

/* A child's blocks are not its parent's. */
static void count_no_more(void) {
    blocks = &ignored;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("ACCIDENT");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;

    if (fd < 0) {
        abort();
    }
    void *page = mmap(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        abort();
    }
    close(fd);
    accident = page;
    blocks = &accident->blocks;
    pthread_atfork(NULL, NULL, count_no_more);
}

/* --------------------------------------------------------------------------------------- memory */

void *__libc_malloc(size_t nbytes);
void *__libc_calloc(size_t count, size_t nbytes);
void *__libc_realloc(void *block, size_t nbytes);
void __libc_free(void *block);

static void *counted(void *block, long by) {
    __atomic_add_fetch(blocks, block ? by : 0, __ATOMIC_RELAXED);
    return block;
}

void *malloc(size_t nbytes) {
    return fails(ACCIDENT_MEMORY, ENOMEM) ? NULL : counted(__libc_malloc(nbytes), 1);
}

void *calloc(size_t count, size_t nbytes) {
    return fails(ACCIDENT_MEMORY, ENOMEM) ? NULL : counted(__libc_calloc(count, nbytes), 1);
}

void *realloc(void *block, size_t nbytes) {
    return fails(ACCIDENT_MEMORY, ENOMEM) ? NULL
                                          : counted(__libc_realloc(block, nbytes), block ? 0 : 1);
}

void free(void *block) {
    __libc_free(counted(block, -1));
}

void *mmap(void *address, size_t nbytes, int protection, int flags, int fd, off_t offset) {
    return fails(ACCIDENT_MAPPING, ENOMEM)
               ? MAP_FAILED
               : REAL(mmap)(address, nbytes, protection, flags, fd, offset);
}

void *mmap64(void *address, size_t nbytes, int protection, int flags, int fd, off64_t offset) {
    return mmap(address, nbytes, protection, flags, fd, offset);
}

/* ---------------------------------------------------------------------------------- descriptors */

int socket(int domain, int type, int protocol) {
    return fails(ACCIDENT_DESCRIPTOR, EMFILE) ? -1 : REAL(socket)(domain, type, protocol);
}

int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags) {
    return fails(ACCIDENT_DESCRIPTOR, EMFILE) ? -1 : REAL(accept4)(fd, address, size, flags);
}

int memfd_create(const char *name, unsigned flags) {
    return fails(ACCIDENT_DESCRIPTOR, EMFILE) ? -1 : REAL(memfd_create)(name, flags);
}

int shm_open(const char *name, int flags, mode_t mode) {
    return fails(ACCIDENT_DESCRIPTOR, EMFILE) ? -1 : REAL(shm_open)(name, flags, mode);
}

int dup(int fd) {
    return fails(ACCIDENT_DESCRIPTOR, EMFILE) ? -1 : REAL(dup)(fd);
}

int open(const char *path, int flags, ...) {
    va_list arguments;

    va_start(arguments, flags);
    unsigned mode = va_arg(arguments, unsigned);
    va_end(arguments);
    return fails(ACCIDENT_DESCRIPTOR, EMFILE) ? -1 : REAL(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list arguments;

    va_start(arguments, flags);
    unsigned mode = va_arg(arguments, unsigned);
    va_end(arguments);
    return open(path, flags, mode);
}

int fcntl(int fd, int command, ...) {
    va_list arguments;

    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    if (command == F_DUPFD_CLOEXEC && fails(ACCIDENT_DESCRIPTOR, EMFILE)) {
        return -1;
    }
    return REAL(fcntl)(fd, command, argument);
}

int fcntl64(int fd, int command, ...) {
    va_list arguments;

    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    return fcntl(fd, command, argument);
}

/* ------------------------------------------------------------------------------------- messages */

static int carries_messages(int fd) {
    int type = 0;
    socklen_t size = sizeof type;

    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

static void die_if_it_happens(void) {
    if (happens(ACCIDENT_KILL)) {
        kill(getpid(), SIGKILL);
    }
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    int counts = carries_messages(fd);

    if (counts && fails(ACCIDENT_MESSAGE, ENOBUFS)) {
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

    if (counts) {
        die_if_it_happens();
    }
    ssize_t n = REAL(recvmsg)(fd, message, flags);
    if (counts) {
        die_if_it_happens();
    }
    if (n > 0 && CMSG_FIRSTHDR(message) && happens(ACCIDENT_DESCRIPTOR)) {
        drop_descriptors(message);
    }
    return n;
}
