#include "listen.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "status.h"
#include "step.h"

enum { LOCK_TRIES = 1000, STEP_NS = 10 * 1000 * 1000, BACKLOG = 4096 };

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

static int already_served(const char *path, pid_t pid, char text[LISTEN_TEXT_SIZE]) {
    char who[32] = "";

    if (pid > 0) {
        snprintf(who, sizeof who, " (pid %d)", (int)pid);
    }
    snprintf(text, LISTEN_TEXT_SIZE,
             "another daemon%s serves %s already: stop it with `tensorcx stop`, or choose another "
             "--socket",
             who, path);
    return STATUS_EXISTS;
}

/* What the end of connect() says about who is at `path`. */
static int judge(int fd, int error, const char *path, char text[LISTEN_TEXT_SIZE]) {
    struct ucred peer = {0};
    socklen_t size = sizeof peer;

    switch (error) {
    case ECONNREFUSED:
    case ENOENT:
        return STATUS_OK;
    case 0:
        (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
        return already_served(path, peer.pid, text);
    case EAGAIN: /* its backlog is full */
        return already_served(path, 0, text);
    case EPROTOTYPE:
        snprintf(text, LISTEN_TEXT_SIZE,
                 "%s is the socket of another program (end that and remove it, or choose another "
                 "--socket)",
                 path);
        return STATUS_INVALID;
    default:
        errno = error;
        return system_error(text, "it cannot be found out who serves", path);
    }
}

/* STATUS_OK: nobody serves at `path`. STATUS_EXISTS: somebody does. */
static int check_unserved(const char *path, char text[LISTEN_TEXT_SIZE]) {
    struct sockaddr_un address = address_of(path);
    int fd = new_socket();

    if (fd < 0) {
        return system_error(text, "no socket for", path);
    }
    int error = connect(fd, (struct sockaddr *)&address, sizeof address) == 0 ? 0 : errno;
    int status = judge(fd, error, path, text);
    close(fd);
    return status;
}

static void close_fd(int *fd) {
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

/* "x.sock" is locked by "x.lock" beside it. */
static void lock_path(const char *path, char ret_lock[PATH_SIZE + 8]) {
    size_t length = strlen(path);

    if (length > 5 && strcmp(path + length - 5, ".sock") == 0) {
        length -= 5;
    }
    snprintf(ret_lock, PATH_SIZE + 8, "%.*s.lock", (int)length, path);
}

static int open_lock(struct listener *listener, const char *lock, char text[LISTEN_TEXT_SIZE]) {
    struct stat info;
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);

    if (fd < 0) {
        return system_error(text, "the lock file cannot be opened:", lock);
    }
    listener->lock_fd = fd;
    REACHED(LOCK_OPENED);
    if (fstat(fd, &info) != 0) {
        return system_error(text, "the lock file cannot be seen:", lock);
    }
    if (!S_ISREG(info.st_mode)) {
        snprintf(text, LISTEN_TEXT_SIZE, "%s is in the way: it is not a lock file", lock);
        return STATUS_INVALID;
    }
    return STATUS_OK;
}

/* Tries `count` times, a hundredth of a second apart. */
static int wait_for_lock(struct listener *listener, const char *lock, int count,
                         char text[LISTEN_TEXT_SIZE]) {
    struct timespec step = {0, STEP_NS};

    while (flock(listener->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            return system_error(text, "the lock file cannot be locked:", lock);
        }
        int status = check_unserved(listener->path, text);
        if (status != STATUS_OK) {
            return status;
        }
        if (--count == 0) {
            snprintf(text, LISTEN_TEXT_SIZE,
                     "another daemon holds %s but does not answer at %s: end it, or choose another "
                     "--socket",
                     lock, listener->path);
            return STATUS_UNAVAILABLE;
        }
        nanosleep(&step, NULL);
    }
    return STATUS_OK;
}

/* An open lock file is a lock that is held: without it there is none. */
static int take_lock(struct listener *listener, int count, char text[LISTEN_TEXT_SIZE]) {
    char lock[PATH_SIZE + 8];

    lock_path(listener->path, lock);
    int status = open_lock(listener, lock, text);
    if (status == STATUS_OK) {
        status = wait_for_lock(listener, lock, count, text);
    }
    if (status != STATUS_OK) {
        close_fd(&listener->lock_fd);
    }
    REACHED(LOCK_TAKEN);
    return status;
}

/* Makes sure that nothing is at the socket's path. */
static int clear_path(const char *path, char text[LISTEN_TEXT_SIZE]) {
    struct stat info;

    if (lstat(path, &info) != 0) {
        return errno == ENOENT ? STATUS_OK : system_error(text, "the socket cannot be seen:", path);
    }
    if (!S_ISSOCK(info.st_mode)) {
        snprintf(text, LISTEN_TEXT_SIZE,
                 "%s is in the way: it is %s, not a socket (remove it, or choose another --socket)",
                 path, S_ISLNK(info.st_mode) ? "a symbolic link" : "another kind of file");
        return STATUS_INVALID;
    }
    if (info.st_uid != geteuid()) {
        snprintf(text, LISTEN_TEXT_SIZE,
                 "the socket %s belongs to user %u, and this daemon runs as user %u (remove it, or "
                 "choose another --socket)",
                 path, (unsigned)info.st_uid, (unsigned)geteuid());
        return STATUS_DENIED;
    }
    int status = check_unserved(path, text);
    if (status != STATUS_OK) {
        return status;
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
    mode_t mask = umask(listener->others ? 0111 : 0177);
    int bound = bind(fd, (struct sockaddr *)&address, sizeof address);
    umask(mask);
    REACHED(SOCKET_BOUND);
    if (bound != 0 || listen(fd, BACKLOG) != 0 || lstat(listener->path, &info) != 0) {
        int status = system_error(text, "the socket cannot be made:", listener->path);
        if (bound == 0) {
            unlink(listener->path);
        }
        close(fd);
        return status;
    }
    listener->fd = fd;
    listener->dev = info.st_dev;
    listener->ino = info.st_ino;
    REACHED(SOCKET_LISTENS);
    return STATUS_OK;
}

/* Watches the folder; begun before the socket is there, so that nothing is missed. Without inotify
 * a vanished socket is just not noticed. */
static void start_watch(struct listener *listener) {
    char folder[PATH_SIZE];

    memcpy(folder, listener->path, sizeof folder);
    char *slash = strrchr(folder, '/');
    slash[slash == folder] = '\0';
    listener->watch_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (listener->watch_fd >= 0) {
        (void)inotify_add_watch(listener->watch_fd, folder,
                                IN_DELETE | IN_MOVED_FROM | IN_DELETE_SELF | IN_MOVE_SELF);
    }
}

/* Folder, lock, socket, in this order; what is there already stays. */
static int establish(struct listener *listener, int lock_tries, char text[LISTEN_TEXT_SIZE]) {
    int status = path_make_folder(listener->path, listener->others, text);

    REACHED(FOLDER_MADE);
    if (status == STATUS_OK && listener->lock_fd < 0) {
        status = take_lock(listener, lock_tries, text);
    }
    if (status == STATUS_OK) {
        start_watch(listener);
        status = clear_path(listener->path, text);
        REACHED(PATH_CLEARED);
    }
    return status == STATUS_OK ? bind_socket(listener, text) : status;
}

int listener_open(struct listener *listener, const char *path, bool others,
                  char ret_text[LISTEN_TEXT_SIZE]) {
    *listener = (struct listener){.fd = -1, .lock_fd = -1, .watch_fd = -1, .others = others};
    int status = path_resolve(path, listener->path, ret_text);

    if (status == STATUS_OK) {
        status = establish(listener, LOCK_TRIES, ret_text);
    }
    if (status != STATUS_OK) {
        listener_unlock(listener);
    }
    return status;
}

static bool is_option(int fd, int option, int wanted) {
    int value;
    socklen_t size = sizeof value;

    return getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 && value == wanted;
}

/* The path that `fd` is bound to. */
static int read_path(int fd, char ret_path[PATH_SIZE]) {
    struct sockaddr_un address = {0};
    socklen_t size = sizeof address;

    if (getsockname(fd, (struct sockaddr *)&address, &size) != 0 || !address.sun_path[0] ||
        size > sizeof address || memchr(address.sun_path, '\0', PATH_SIZE) == NULL) {
        return -1;
    }
    memcpy(ret_path, address.sun_path, PATH_SIZE);
    return 0;
}

/* listen() once more makes us, and not who bound it, the peer that clients see. */
static int adopt(int fd) {
    int flags = fcntl(fd, F_GETFL);

    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 &&
                   fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && listen(fd, BACKLOG) == 0
               ? 0
               : -1;
}

int listener_inherit(struct listener *listener, int fd, char ret_text[LISTEN_TEXT_SIZE]) {
    *listener = (struct listener){.fd = fd, .lock_fd = -1, .watch_fd = -1, .is_inherited = true};
    if (!is_option(fd, SO_DOMAIN, AF_UNIX) || !is_option(fd, SO_TYPE, SOCK_SEQPACKET) ||
        !is_option(fd, SO_ACCEPTCONN, 1) || read_path(fd, listener->path) != 0) {
        snprintf(ret_text, LISTEN_TEXT_SIZE,
                 "descriptor %d, passed by LISTEN_FDS, is not a listening SOCK_SEQPACKET Unix "
                 "socket with a path (in a socket unit: ListenSequentialPacket=/PATH)",
                 fd);
        close_fd(&listener->fd);
        return STATUS_INVALID;
    }
    if (adopt(fd) != 0) {
        int status = system_error(ret_text, "the passed socket cannot be used:", listener->path);
        close_fd(&listener->fd);
        return status;
    }
    REACHED(SOCKET_ADOPTED);
    return STATUS_OK;
}

static int is_same_file(const char *path, dev_t dev, ino_t ino) {
    struct stat info;

    return lstat(path, &info) == 0 && info.st_dev == dev && info.st_ino == ino;
}

int listener_is_whole(struct listener *listener) {
    char events[4096];

    while (read(listener->watch_fd, events, sizeof events) > 0) {
    }
    return is_same_file(listener->path, listener->dev, listener->ino);
}

static int has_lock(const struct listener *listener) {
    char lock[PATH_SIZE + 8];
    struct stat info;

    lock_path(listener->path, lock);
    return listener->lock_fd >= 0 && fstat(listener->lock_fd, &info) == 0 &&
           is_same_file(lock, info.st_dev, info.st_ino);
}

int listener_restore(struct listener *listener, char ret_text[LISTEN_TEXT_SIZE]) {
    close_fd(&listener->fd);
    close_fd(&listener->watch_fd);
    if (!has_lock(listener)) {
        close_fd(&listener->lock_fd);
    }
    int status = establish(listener, 1, ret_text);
    if (status != STATUS_OK) {
        close_fd(&listener->watch_fd);
    }
    return status;
}

void listener_close(struct listener *listener) {
    if (listener->fd >= 0 && !listener->is_inherited &&
        is_same_file(listener->path, listener->dev, listener->ino)) {
        unlink(listener->path);
        REACHED(SOCKET_REMOVED);
    }
    close_fd(&listener->fd);
}

void listener_unlock(struct listener *listener) {
    close_fd(&listener->watch_fd);
    close_fd(&listener->lock_fd);
}
