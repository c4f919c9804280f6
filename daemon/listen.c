#include "listen.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "status.h"

enum { WAIT_STEPS = 1000, STEP_NS = 10 * 1000 * 1000, BACKLOG = 4096 };

static int system_error(char text[LISTEN_TEXT_SIZE], const char *what, const char *path) {
    snprintf(text, LISTEN_TEXT_SIZE, "%s %s: %s", what, path, strerror(errno));
    return STATUS_SYSTEM;
}

static struct sockaddr_un address_of(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    _Static_assert(sizeof address.sun_path == PATH_SIZE, "one limit");
    memcpy(address.sun_path, path, strlen(path) + 1);
    return address;
}

static int new_socket(void) {
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* Whether a daemon accepts connections at `path`. A full backlog counts as one. */
static int is_served(const char *path) {
    struct sockaddr_un address = address_of(path);
    int fd = new_socket();

    if (fd < 0) {
        return 0;
    }
    int served = connect(fd, (struct sockaddr *)&address, sizeof address) == 0 || errno == EAGAIN;
    close(fd);
    return served;
}

static int already_served(const char *path, char text[LISTEN_TEXT_SIZE]) {
    snprintf(text, LISTEN_TEXT_SIZE,
             "another daemon serves %s (stop it with `tensorcx stop`, or choose another --socket)",
             path);
    return STATUS_EXISTS;
}

/* "x.sock" is locked by "x.lock" beside it. */
static void lock_path(const char *path, char ret_lock[PATH_SIZE + 8]) {
    size_t length = strlen(path);

    if (length > 5 && strcmp(path + length - 5, ".sock") == 0) {
        length -= 5;
    }
    snprintf(ret_lock, PATH_SIZE + 8, "%.*s.lock", (int)length, path);
}

static int take_lock(struct listener *listener, char text[LISTEN_TEXT_SIZE]) {
    struct timespec step = {0, STEP_NS};
    char lock[PATH_SIZE + 8];
    struct stat info;

    lock_path(listener->path, lock);
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0) {
        return system_error(text, "the lock file cannot be opened:", lock);
    }
    listener->lock_fd = fd;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        snprintf(text, LISTEN_TEXT_SIZE, "%s is in the way: it is not a lock file", lock);
        return STATUS_INVALID;
    }
    for (int i = 0; i < WAIT_STEPS; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            return STATUS_OK;
        }
        if (errno != EWOULDBLOCK && errno != EINTR) {
            return system_error(text, "the lock file cannot be locked:", lock);
        }
        if (is_served(listener->path)) {
            return already_served(listener->path, text);
        }
        nanosleep(&step, NULL);
    }
    snprintf(
        text, LISTEN_TEXT_SIZE,
        "another daemon holds %s but does not answer at %s: end it, or choose another --socket",
        lock, listener->path);
    return STATUS_UNAVAILABLE;
}

/* Makes sure that nothing is at the socket's path. */
static int clear_path(const char *path, char text[LISTEN_TEXT_SIZE]) {
    struct stat info;

    if (lstat(path, &info) != 0) {
        return errno == ENOENT ? STATUS_OK : system_error(text, "the socket cannot be seen:", path);
    }
    if (!S_ISSOCK(info.st_mode)) {
        snprintf(text, LISTEN_TEXT_SIZE,
                 "%s is in the way: it is not a socket (remove it, or choose another --socket)",
                 path);
        return STATUS_INVALID;
    }
    if (info.st_uid != geteuid()) {
        snprintf(text, LISTEN_TEXT_SIZE,
                 "the socket %s belongs to user %u, and this daemon runs as user %u (remove it, or "
                 "choose another --socket)",
                 path, (unsigned)info.st_uid, (unsigned)geteuid());
        return STATUS_DENIED;
    }
    if (is_served(path)) {
        return already_served(path, text);
    }
    return unlink(path) == 0 ? STATUS_OK
                             : system_error(text, "the old socket is in the way:", path);
}

static int bind_socket(struct listener *listener, char text[LISTEN_TEXT_SIZE]) {
    struct sockaddr_un address = address_of(listener->path);
    struct stat info;
    int fd = new_socket();

    if (fd < 0) {
        return system_error(text, "no socket for", listener->path);
    }
    mode_t mask = umask(0177);
    int bound = bind(fd, (struct sockaddr *)&address, sizeof address);
    umask(mask);
    if (bound != 0 || listen(fd, BACKLOG) != 0 || lstat(listener->path, &info) != 0) {
        int status = system_error(text, "the socket cannot be made:", listener->path);
        close(fd);
        return status;
    }
    listener->fd = fd;
    listener->dev = info.st_dev;
    listener->ino = info.st_ino;
    return STATUS_OK;
}

int listener_open(struct listener *listener, const char *path, char ret_text[LISTEN_TEXT_SIZE]) {
    listener->fd = listener->lock_fd = -1;
    int status = path_resolve(path, listener->path, ret_text);
    if (status == STATUS_OK) {
        status = path_make_folder(listener->path, ret_text);
    }
    if (status == STATUS_OK) {
        status = take_lock(listener, ret_text);
    }
    if (status == STATUS_OK) {
        status = clear_path(listener->path, ret_text);
    }
    if (status == STATUS_OK) {
        status = bind_socket(listener, ret_text);
    }
    if (status != STATUS_OK) {
        listener_unlock(listener);
    }
    return status;
}

void listener_close(struct listener *listener) {
    struct stat info;

    if (listener->fd < 0) {
        return;
    }
    if (lstat(listener->path, &info) == 0 && info.st_dev == listener->dev &&
        info.st_ino == listener->ino) {
        unlink(listener->path);
    }
    close(listener->fd);
    listener->fd = -1;
}

void listener_unlock(struct listener *listener) {
    if (listener->lock_fd >= 0) {
        close(listener->lock_fd);
        listener->lock_fd = -1;
    }
}
