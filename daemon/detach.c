#include "detach.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "step.h"

enum { READY_FD = 3 };

static void reset_signals(void) {
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigset_t none;

    for (int signal = 1; signal < _NSIG; signal++) {
        (void)sigaction(signal, &plain, NULL); /* fails for those that cannot be set */
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static void reset_descriptors(int ready_fd) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    /* At least one number above the standard ones, whatever was closed when we started. */
    if (null >= 0) {
        int high = fcntl(null, F_DUPFD_CLOEXEC, READY_FD + 1);
        close(null);
        null = high;
    }
    if (ready_fd >= 0 && ready_fd != READY_FD) {
        dup2(ready_fd, READY_FD);
        close(ready_fd); /* the starter waits for its end, may close_range() fail or not */
    }
    for (int fd = 0; null >= 0 && fd < READY_FD; fd++) {
        dup2(null, fd);
    }
    if (ready_fd >= 0) {
        fcntl(READY_FD, F_SETFD, FD_CLOEXEC);
    }
    close_range(ready_fd >= 0 ? READY_FD + 1 : READY_FD, ~0U, 0);
}

void detach_raise_limits(void) {
    for (int resource = 0; resource < RLIM_NLIMITS; resource++) {
        struct rlimit limit;
        if (getrlimit((__rlimit_resource_t)resource, &limit) == 0 &&
            limit.rlim_cur != limit.rlim_max) {
            limit.rlim_cur = limit.rlim_max;
            (void)setrlimit((__rlimit_resource_t)resource, &limit);
        }
    }
}

static void reset_cpus(void) {
    cpu_set_t all;

    memset(&all, 0xff, sizeof all); /* the kernel takes those that exist and are allowed */
    (void)sched_setaffinity(0, sizeof all, &all);
    (void)syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0);
}

int detach(int ready_fd) {
    pid_t pid = fork();

    if (pid < 0) {
        detach_report(ready_fd, "no process for the daemon: fork failed");
        _exit(1);
    }
    if (pid > 0) {
        _exit(0);
    }
    REACHED(DETACH_FORKED);
    setsid();
    reset_signals();
    reset_descriptors(ready_fd);
    detach_raise_limits();
    reset_cpus();
    return ready_fd >= 0 ? READY_FD : -1;
}

void detach_report(int ready_fd, const char *error) {
    const char *text = error ? error : "R";

    if (ready_fd >= 0) {
        (void)!write(ready_fd, text, strlen(text));
        close(ready_fd);
        REACHED(READY_REPORTED);
    }
}
