#include "systemd.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "log.h"
#include "options.h"

enum { FIRST_FD = 3 };

static int is_for_us(const char *pid) {
    char own[16];

    snprintf(own, sizeof own, "%d", (int)getpid());
    return pid && strcmp(pid, own) == 0;
}

static int refuse(char text[SYSTEMD_TEXT_SIZE], const char *count, const struct options *options) {
    if (!count || strcmp(count, "1") != 0) {
        snprintf(text, SYSTEMD_TEXT_SIZE, "LISTEN_FDS=%.60s: it serves exactly one socket",
                 count ? count : "");
    } else if (options->background) {
        snprintf(text, SYSTEMD_TEXT_SIZE,
                 "--background inherits nothing, and a socket was passed (LISTEN_FDS): leave one "
                 "of them out");
    } else if (options->ready_fd == FIRST_FD) {
        snprintf(text, SYSTEMD_TEXT_SIZE,
                 "--ready-fd=%d is the descriptor of the socket that was passed (LISTEN_FDS)",
                 FIRST_FD);
    } else {
        return 0;
    }
    return -1;
}

int systemd_take_socket(const struct options *options, char ret_text[SYSTEMD_TEXT_SIZE],
                        int *ret_fd) {
    *ret_fd = -1;
    if (!is_for_us(getenv("LISTEN_PID"))) {
        return 0;
    }
    int r = refuse(ret_text, getenv("LISTEN_FDS"), options);
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    if (r == 0) {
        *ret_fd = FIRST_FD;
    }
    return r;
}

/* A path, or '@' and the name of an abstract socket. */
static int address_of(const char *name, struct sockaddr_un *ret_address, socklen_t *ret_size) {
    size_t length = strlen(name);

    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if ((name[0] != '/' && name[0] != '@') || length >= sizeof ret_address->sun_path) {
        errno = EINVAL;
        return -1;
    }
    memcpy(ret_address->sun_path, name, length);
    if (name[0] == '@') {
        ret_address->sun_path[0] = '\0';
    }
    *ret_size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    return 0;
}

static int send_text(const char *name, const char *text) {
    struct sockaddr_un address;
    socklen_t size;

    if (address_of(name, &address, &size) < 0) {
        return -1;
    }
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    ssize_t n = sendto(fd, text, strlen(text), MSG_NOSIGNAL, (struct sockaddr *)&address, size);
    int error = errno;
    close(fd);
    errno = error;
    return n < 0 ? -1 : 0;
}

void systemd_notify_ready(void) {
    const char *name = getenv("NOTIFY_SOCKET");

    if (name && *name && send_text(name, "READY=1") < 0) {
        log_warn("event=server.notify error=\"%s\"", strerror(errno));
    }
    unsetenv("NOTIFY_SOCKET");
}
