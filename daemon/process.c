#include "process.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <uv.h>

#include "poller.h"

#ifndef SO_PEERPIDFD
#    define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

/* By its number where the kernel does not know better. The number cannot be another's yet: the
 * process is asking us something. */
static int open_process(int socket, pid_t pid) {
    int fd;
    socklen_t size = sizeof fd;

    if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) {
        return fd;
    }
    fd = (int)syscall(SYS_pidfd_open, pid, 0);
    return fd < 0 ? -errno : fd;
}

static void on_end(uv_poll_t *poll, int status, int events) {
    struct process *process = poll->data;

    (void)status;
    (void)events;
    process_forget(process);
    process->ended(process);
}

int process_watch(struct process *process, struct uv_loop_s *loop, int socket, pid_t pid) {
    int fd = open_process(socket, pid);

    if (fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM) {
        return fd;
    }
    if (fd < 0) {
        return 0;
    }
    process->poll = poller_create(loop, fd, process, on_end);
    if (!process->poll) {
        int r = -errno;
        close(fd);
        return r;
    }
    process->fd = fd;
    return 0;
}

void process_forget(struct process *process) {
    if (process->poll) {
        poller_destroy(process->poll);
        process->poll = NULL;
        close(process->fd);
    }
}
