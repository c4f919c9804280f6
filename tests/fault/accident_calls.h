/*
 * accident_calls.h - the calls that accident.c lets fail: the kind of accident, the function, what
 * it returns then, and the errors that are plausible, the likeliest first
 */
#pragma once

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* clang-format off */

/* Those that set errno. */
#define ACCIDENT_CALLS(CALL) \
    CALL(MAPPING, void *, mmap, (void *address, size_t nbytes, int protection, int flags, int fd, off_t offset), \
         (address, nbytes, protection, flags, fd, offset), MAP_FAILED, ENOMEM, EAGAIN, ENFILE) \
    CALL(MAPPING, int, madvise, (void *address, size_t nbytes, int advice), (address, nbytes, advice), -1, ENOMEM, EAGAIN, EINVAL) \
    CALL(DESCRIPTOR, int, socket, (int domain, int type, int protocol), (domain, type, protocol), -1, EMFILE, ENFILE, ENOBUFS) \
    CALL(DESCRIPTOR, int, accept4, (int fd, struct sockaddr *address, socklen_t *size, int flags), (fd, address, size, flags), \
         -1, EMFILE, ENFILE, ENOMEM, ECONNABORTED, EINTR) \
    CALL(DESCRIPTOR, int, memfd_create, (const char *name, unsigned flags), (name, flags), -1, EMFILE, ENFILE, ENOMEM) \
    CALL(DESCRIPTOR, int, pipe2, (int ends[2], int flags), (ends, flags), -1, EMFILE, ENFILE) \
    CALL(DESCRIPTOR, int, eventfd, (unsigned count, int flags), (count, flags), -1, EMFILE, ENFILE, ENOMEM) \
    CALL(DESCRIPTOR, int, epoll_create1, (int flags), (flags), -1, EMFILE, ENFILE, ENOMEM) \
    CALL(DESCRIPTOR, int, inotify_init1, (int flags), (flags), -1, EMFILE, ENFILE, ENOMEM) \
    CALL(DESCRIPTOR, FILE *, fopen, (const char *path, const char *mode), (path, mode), NULL, EMFILE, ENFILE, ENOMEM) \
    CALL(SYSTEM, int, inotify_add_watch, (int fd, const char *path, uint32_t mask), (fd, path, mask), -1, ENOSPC, ENOMEM) \
    CALL(SYSTEM, int, ftruncate, (int fd, off_t nbytes), (fd, nbytes), -1, EFBIG, EINTR) \
    CALL(SYSTEM, int, fallocate, (int fd, int mode, off_t offset, off_t nbytes), (fd, mode, offset, nbytes), -1, ENOSPC, ENOMEM, EINTR) \
    CALL(SYSTEM, ssize_t, pwrite, (int fd, const void *bytes, size_t nbytes, off_t offset), (fd, bytes, nbytes, offset), -1, ENOSPC, EINTR) \
    CALL(SYSTEM, ssize_t, read, (int fd, void *bytes, size_t nbytes), (fd, bytes, nbytes), -1, EINTR) \
    CALL(SYSTEM, char *, fgets, (char *text, int size, FILE *file), (text, size, file), NULL, EINTR) \
    CALL(SYSTEM, int, ferror, (FILE *file), (file), 1, EIO) \
    CALL(SYSTEM, ssize_t, getrandom, (void *bytes, size_t nbytes, unsigned flags), (bytes, nbytes, flags), -1, ENOSYS, EINTR) \
    CALL(SYSTEM, int, stat, (const char *path, struct stat *info), (path, info), -1, ENOMEM) \
    CALL(SYSTEM, int, lstat, (const char *path, struct stat *info), (path, info), -1, ENOMEM) \
    CALL(SYSTEM, int, fstatvfs, (int fd, struct statvfs *info), (fd, info), -1, ENOSYS) \
    CALL(SYSTEM, int, access, (const char *path, int mode), (path, mode), -1, ENOMEM) \
    CALL(SYSTEM, char *, realpath, (const char *path, char *resolved), (path, resolved), NULL, ENOMEM) \
    CALL(SYSTEM, char *, getcwd, (char *path, size_t size), (path, size), NULL, ENOENT, ENOMEM) \
    CALL(SYSTEM, int, mkdir, (const char *path, mode_t mode), (path, mode), -1, ENOSPC, EROFS) \
    CALL(SYSTEM, int, chmod, (const char *path, mode_t mode), (path, mode), -1, EROFS) \
    CALL(SYSTEM, int, fchmod, (int fd, mode_t mode), (fd, mode), -1, EROFS) \
    CALL(SYSTEM, int, chdir, (const char *path), (path), -1, ENOMEM) \
    CALL(SYSTEM, int, unlink, (const char *path), (path), -1, EROFS) \
    CALL(SYSTEM, int, flock, (int fd, int operation), (fd, operation), -1, ENOLCK, EINTR) \
    CALL(SYSTEM, int, bind, (int fd, const struct sockaddr *address, socklen_t size), (fd, address, size), -1, ENOSPC, EADDRINUSE, EROFS) \
    CALL(SYSTEM, int, listen, (int fd, int backlog), (fd, backlog), -1, ENOBUFS) \
    CALL(SYSTEM, int, connect, (int fd, const struct sockaddr *address, socklen_t size), (fd, address, size), -1, EAGAIN, ENOMEM, ECONNREFUSED) \
    CALL(SYSTEM, int, getsockopt, (int fd, int level, int option, void *value, socklen_t *size), (fd, level, option, value, size), -1, ENOMEM) \
    CALL(SYSTEM, int, getsockname, (int fd, struct sockaddr *address, socklen_t *size), (fd, address, size), -1, ENOBUFS) \
    CALL(SYSTEM, ssize_t, sendto, (int fd, const void *bytes, size_t nbytes, int flags, const struct sockaddr *address, socklen_t size), \
         (fd, bytes, nbytes, flags, address, size), -1, ENOBUFS, ECONNREFUSED) \
    CALL(SYSTEM, int, ioctl, (int fd, unsigned long request, void *argument), (fd, request, argument), -1, ENOTTY) \
    CALL(SYSTEM, int, close_range, (unsigned first, unsigned last, int flags), (first, last, flags), -1, ENOMEM) \
    CALL(SYSTEM, pid_t, fork, (void), (), -1, EAGAIN, ENOMEM) \
    CALL(SYSTEM, pid_t, waitpid, (pid_t pid, int *status, int options), (pid, status, options), -1, ECHILD, EINTR) \
    CALL(SYSTEM, int, poll, (struct pollfd *fds, nfds_t count, int timeout), (fds, count, timeout), -1, EINTR, ENOMEM) \
    CALL(SYSTEM, int, ppoll, (struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask), \
         (fds, count, timeout, mask), -1, EINTR, ENOMEM) \
    CALL(SYSTEM, int, epoll_wait, (int set, struct epoll_event *events, int count, int timeout), (set, events, count, timeout), -1, EINTR) \
    CALL(SYSTEM, int, epoll_pwait, (int set, struct epoll_event *events, int count, int timeout, const sigset_t *mask), \
         (set, events, count, timeout, mask), -1, EINTR) \
    CALL(SYSTEM, int, sem_wait, (sem_t *semaphore), (semaphore), -1, EINTR) \
    CALL(SYSTEM, int, sem_timedwait, (sem_t *semaphore, const struct timespec *until), (semaphore, until), -1, EINTR, ETIMEDOUT) \
    CALL(SYSTEM, int, sem_clockwait, (sem_t *semaphore, clockid_t clock, const struct timespec *until), (semaphore, clock, until), \
         -1, EINTR, ETIMEDOUT)

/* Those that return the error. */
#define ACCIDENT_RETURNING_CALLS(CALL) \
    CALL(SYSTEM, posix_fallocate, (int fd, off_t offset, off_t nbytes), (fd, offset, nbytes), ENOSPC, ENOMEM, EINTR) \
    CALL(SYSTEM, pthread_create, (pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument), \
         (thread, attributes, run, argument), EAGAIN) \
    CALL(SYSTEM, posix_spawn, (pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes, \
         char *const arguments[], char *const environment[]), (pid, path, actions, attributes, arguments, environment), EAGAIN, ENOMEM, EACCES) \
    CALL(SYSTEM, posix_spawn_file_actions_adddup2, (posix_spawn_file_actions_t *actions, int from, int to), (actions, from, to), ENOMEM) \
    CALL(SYSTEM, posix_spawn_file_actions_addopen, (posix_spawn_file_actions_t *actions, int fd, const char *path, int flags, mode_t mode), \
         (actions, fd, path, flags, mode), ENOMEM)
/* clang-format on */
