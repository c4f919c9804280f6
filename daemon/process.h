/*
 * process.h - notices that a client's process has ended, all of it
 *
 * A socket and a life page are closed while the kernel is still taking the process apart, and what
 * it has running on a device may still write then. A process descriptor tells when that is over, so
 * clients that use a device are watched by one as well.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct uv_loop_s;
struct uv_poll_s;

struct process {
    struct uv_poll_s *poll; /* owned, with its descriptor `fd`; NULL: not watched */
    int fd;
    void (*ended)(struct process *process); /* called once, at its end */
};

/* Watches the process that made the connection `socket`, `pid` as the kernel told; `ended` is
 * filled in. 0, also if it has ended, or cannot be seen from here: it is not watched then; or a
 * negative errno: no descriptor, no memory. */
int process_watch(struct process *process, struct uv_loop_s *loop, int socket, pid_t pid);

/* `ended` will not be called. */
void process_forget(struct process *process);

static inline bool process_is_watched(const struct process *process) {
    return process->poll;
}
