#include "autostart.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"
#include "log.h"
#include "messages.h"
#include "session.h"
#include "step.h"

#ifndef TENSORCX_PREFIX
#    define TENSORCX_PREFIX "/usr/local"
#endif

#define IDLE_SECONDS "60"      /* without anybody or anything: the daemon ends */
#define LOG_MAX      (1 << 20) /* bytes; a longer log is started anew */

enum { READY_FD = 3 };

extern char **environ;

/* -------------------------------------------------------------------------- finding the program */

static int is_program(const char *path) {
    return access(path, X_OK) == 0;
}

/* `folder` + `rest`, if a program is there. */
static int is_in(const char *folder, const char *rest, char program[PATH_MAX]) {
    int length = snprintf(program, PATH_MAX, "%s/%s", folder, rest);

    return length > 0 && length < PATH_MAX && is_program(program);
}

/* Beside the library (as in a wheel), or in bin/ beside its folder (as installed). */
static int is_beside_library(char program[PATH_MAX]) {
    char folder[PATH_MAX];
    Dl_info info;

    if (!dladdr((void *)is_beside_library, &info) || !info.dli_fname ||
        !realpath(info.dli_fname, folder)) {
        return 0;
    }
    *strrchr(folder, '/') = '\0';
    return is_in(folder, "tensorcxd", program) || is_in(folder, "../bin/tensorcxd", program);
}

static int is_in_search_path(char program[PATH_MAX]) {
    const char *at = secure_getenv("PATH");
    char folder[PATH_MAX];

    while (at && *at) {
        size_t length = strcspn(at, ":");
        if (length > 0 && length < sizeof folder) {
            memcpy(folder, at, length);
            folder[length] = '\0';
            if (is_in(folder, "tensorcxd", program)) {
                return 1;
            }
        }
        at += length + (at[length] == ':');
    }
    return 0;
}

static int find_program(char program[PATH_MAX]) {
    const char *named = secure_getenv("TENSORCXD");

    if (named && *named) {
        if (strlen(named) < PATH_MAX && is_program(named)) {
            strcpy(program, named);
            return STATUS_OK;
        }
        return error(STATUS_UNAVAILABLE, "TENSORCXD names %s, which is no program: %s", named,
                     strerror(errno));
    }
    if (is_beside_library(program) || is_in(TENSORCX_PREFIX "/bin", "tensorcxd", program) ||
        is_in_search_path(program)) {
        return STATUS_OK;
    }
    return error(
        STATUS_UNAVAILABLE,
        "no daemon runs and the program tensorcxd is not found: not beside libtensorcx.so, "
        "not in " TENSORCX_PREFIX "/bin, not in PATH (TENSORCXD can name it)");
}

/* -------------------------------------------------------------------------------------- its log */

void autostart_print_log(const char *path, char ret_log[AUTOSTART_LOG_SIZE]) {
    const char *dot = strrchr(path, '.');
    size_t length = dot && strcmp(dot, ".sock") == 0 ? (size_t)(dot - path) : strlen(path);

    snprintf(ret_log, AUTOSTART_LOG_SIZE, "%.*s.log", (int)length, path);
}

/* Whether the daemon can append to this file: it has to be a plain file of ours, whatever folder it
 * is in. Not emptied at each start: of several daemons that are started at once one stays, and what
 * it wrote must, too. */
static int prepare_log(const char *log) {
    int fd = open(log, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, 0600);
    struct stat info;

    if (fd < 0) {
        return 0;
    }
    int is_ours = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
                  info.st_nlink == 1;
    if (is_ours && info.st_size > LOG_MAX) {
        is_ours = ftruncate(fd, 0) == 0;
    }
    if (is_ours && (info.st_mode & 0200) == 0) { /* made with an umask such as 0777 */
        is_ours = fchmod(fd, 0600) == 0;
    }
    close(fd);
    return is_ours;
}

/* ------------------------------------------------------------------------------------- starting */

/* `log` may be NULL. posix_spawn, so that nothing of the application runs in the new process, not
 * even its fork handlers. The daemon shakes off by itself what else it inherits. */
static int spawn(const char *program, const char *path, const char *log, int ready,
                 pid_t *ret_pid) {
    char *const arguments[] = {
        "tensorcxd",   "--background", "--ready-fd=3",       "--socket",  (char *)path,
        "--idle-exit", IDLE_SECONDS,   log ? "--log" : NULL, (char *)log, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigset_t all;

    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    int number = posix_spawn_file_actions_adddup2(&actions, ready, READY_FD);
    number =
        number ? number : posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDWR, 0);
    number = number ? number : posix_spawn_file_actions_adddup2(&actions, 0, 1);
    number = number ? number : posix_spawn_file_actions_adddup2(&actions, 0, 2);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (number == 0) {
        number = posix_spawn(ret_pid, program, &actions, &attributes, arguments, environ);
    }
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (number == EMFILE || number == ENFILE || number == EAGAIN || number == ENOMEM) {
        return error_system(number, "%s cannot be started", program);
    }
    return number == 0
               ? STATUS_OK
               : error(STATUS_UNAVAILABLE, "%s cannot be started: %s", program, strerror(number));
}

/* How the process that we started ended, in words; nothing when somebody else has reaped it. */
static void reap(pid_t pid, int wait_for_it, char *text, size_t capacity) {
    int status = 0;
    pid_t r;

    do {
        r = waitpid(pid, &status, wait_for_it ? 0 : WNOHANG);
    } while (r < 0 && errno == EINTR);
    text[0] = '\0';
    if (r == pid && WIFSIGNALED(status)) {
        snprintf(text, capacity, " (signal %d)", WTERMSIG(status));
    } else if (r == pid && WEXITSTATUS(status) != 0) {
        snprintf(text, capacity, " (exit status %d)", WEXITSTATUS(status));
    }
}

/* Reads what the daemon says, in one piece: "R" when it is ready, or why not. Returns bytes, or a
 * status as a negative number. */
static ssize_t listen_to(int ready, const struct patience *patience, char *said, size_t capacity) {
    int64_t deadline = clock_after(patience->answer_ns);
    struct pollfd poller = {.fd = ready, .events = POLLIN};

    for (;;) {
        if (poll(&poller, 1, SLICE_NS / NS_PER_MS) == 1) {
            ssize_t n = read(ready, said, capacity);
            return n > 0 ? n : 0;
        }
        if (patience->interrupt && patience->interrupt(patience->context)) {
            return -STATUS_INTERRUPTED;
        }
        if (clock_now() >= deadline) {
            return -STATUS_TIMEOUT;
        }
    }
}

/* Waits for the outcome of `program`, started as `pid`. */
static int await_ready(const char *program, pid_t pid, int ready, const struct patience *patience) {
    char said[WIRE_TEXT_MAX];
    char end[64];
    ssize_t n = listen_to(ready, patience, said, sizeof said);

    /* It ends as soon as it has spoken, so this wait is short. */
    reap(pid, n >= 0, end, sizeof end);
    if (n == -STATUS_INTERRUPTED) {
        return error_plain(STATUS_INTERRUPTED);
    }
    if (n == -STATUS_TIMEOUT) {
        return error(STATUS_TIMEOUT, "%s (pid %d) was started and has not become ready for %.3g s",
                     program, (int)pid, (double)patience->answer_ns / 1e9);
    }
    if (n == 1 && said[0] == 'R') {
        return STATUS_OK;
    }
    while (n > 0 && said[n - 1] == '\n') {
        n--;
    }
    if (n == 0) {
        return error(STATUS_UNAVAILABLE, "%s was started and ended without a word%s", program, end);
    }
    return error(STATUS_UNAVAILABLE, "%s could not serve%s: %.*s", program, end, (int)n, said);
}

int autostart_run(const char *path, const struct patience *patience) {
    char program[PATH_MAX];
    char log[AUTOSTART_LOG_SIZE];
    char text[PATH_TEXT_SIZE];
    int ends[2];
    pid_t pid;
    int r = find_program(program);

    if (r != STATUS_OK) {
        return r;
    }
    autostart_print_log(path, log);
    /* What is wrong with the folder, the daemon says itself. */
    int has_log = path_make_folder(path, false, text) == STATUS_OK && prepare_log(log);
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return error_system(errno, "a pipe to start the daemon cannot be made");
    }
    REACHED(START_PREPARED);
    r = spawn(program, path, has_log ? log : NULL, ends[1], &pid);
    REACHED(DAEMON_SPAWNED);
    close(ends[1]);
    if (r == STATUS_OK) {
        r = await_ready(program, pid, ends[0], patience);
        REACHED(DAEMON_HEARD);
    }
    close(ends[0]);
    if (r == STATUS_OK) {
        log_line("event=daemon.start program=%s socket=%s", program, path);
    }
    return r;
}
