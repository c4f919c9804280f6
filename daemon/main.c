/*
 * main.c - tensorcxd: the command line, and the order in which things are set up
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "detach.h"
#include "listen.h"
#include "log.h"
#include "options.h"
#include "server.h"
#include "status.h"
#include "systemd.h"
#include "version.h"

/* Says why there will be no daemon, to whoever may be there to hear it. */
static int fail(int ready_fd, const char *text) {
    fprintf(stderr, "tensorcxd: %s\n", text);
    detach_report(ready_fd, text);
    return 1;
}

static void set_log_level(const char *name) {
    static const char *const names[] = {"error", "warn", "info", "debug"};

    for (int level = LOG_ERROR; level <= LOG_DEBUG; level++) {
        if (strcmp(name, names[level]) == 0) {
            log_set_level((enum log_level)level);
        }
    }
}

#define LIMITS "(RLIMIT_NOFILE, RLIMIT_NPROC, limits of the cgroup)"

/* Ends a start for which there is a socket already. */
static int give_up(struct listener *listener, int ready_fd, const char *why) {
    char text[LISTEN_TEXT_SIZE];

    listener_close(listener);
    snprintf(text, sizeof text, "the daemon could not be set up: %s", why);
    log_error("event=server.start error=\"%s\"", text);
    return fail(ready_fd, text);
}

static struct listener *abort_listener;
static int abort_ready_fd;

static void on_abort(int number) {
    (void)number;
    _exit(give_up(abort_listener, abort_ready_fd,
                  "it was aborted: by the event loop, to which a descriptor, a thread or memory is "
                  "refused " LIMITS ", or by a check that failed"));
}

/* Sets the server up; libuv aborts where it is refused something. */
static int init_server(struct server *server, const struct options *options,
                       struct listener *listener, int ready_fd) {
    abort_listener = listener;
    abort_ready_fd = ready_fd;
    signal(SIGABRT, on_abort);
    int r = server_init(server, options, listener);
    signal(SIGABRT, SIG_DFL);
    return r;
}

static int open_log(const struct options *options, int ready_fd) {
    char text[PATH_TEXT_SIZE];
    int r = log_open(options->log);

    set_log_level(options->log_level);
    if (r == 0) {
        return 0;
    }
    snprintf(text, sizeof text, "--log=%.200s: %s", options->log, strerror(-r));
    return fail(ready_fd, text);
}

/* Memory is files, to the system. A client that may not write large ones must not leave a daemon
 * behind that has nothing to give to anybody. */
static int check_file_size(int ready_fd) {
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= (16 << 20)) {
        return 0;
    }
    return fail(ready_fd,
                "the size of files is limited here (RLIMIT_FSIZE, ulimit -f), and to less "
                "than the 16 MiB that a segment has: start tensorcxd where it is not");
}

/* Serves until the end, on the socket `passed_fd` or (-1) on one of its own. */
static int serve(const struct options *options, int passed_fd, int ready_fd) {
    struct listener listener;
    char text[LISTEN_TEXT_SIZE];
    int status = passed_fd >= 0 ? listener_inherit(&listener, passed_fd, text)
                                : listener_open(&listener, options->socket,
                                                options->allow_uid.count > 0, text);

    if (status == STATUS_EXISTS && options->background) {
        /* Another one was faster: who wanted a daemon has one. */
        detach_report(ready_fd, NULL);
        return 0;
    }
    if (status != STATUS_OK) {
        log_error("event=server.start error=\"%s\"", text);
        return fail(ready_fd, text);
    }
    struct server *server = malloc(sizeof *server);
    int r = server ? init_server(server, options, &listener, ready_fd) : -ENOMEM;
    if (r < 0) {
        snprintf(text, sizeof text, "%s " LIMITS, strerror(-r));
        return give_up(&listener, ready_fd, text);
    }
    if (chdir("/") != 0) {
        log_warn("event=server.chdir error=\"%s\"", strerror(errno));
    }
    detach_report(ready_fd, NULL);
    if (!options->background) { /* else the variable is the starter's, which we are not */
        systemd_notify_ready();
    }
    server_run(server);
    free(server);
    return 0;
}

int main(int argc, char **argv) {
    struct options options;
    char text[OPTIONS_TEXT_SIZE];

    int r = options_parse(&options, argc, argv, text);
    int ready_fd = options.ready_fd == UINT64_MAX ? -1 : (int)options.ready_fd;
    int passed_fd;

    if (r < 0) {
        fail(ready_fd, text);
        return 2;
    }
    if (options.help) {
        options_print_help();
        return 0;
    }
    if (options.version) {
        puts("tensorcxd " TENSORCX_VERSION);
        return 0;
    }
    if (systemd_take_socket(&options, text, &passed_fd) < 0) {
        return fail(ready_fd, text);
    }
    umask(077); /* a file that we cannot open again ourselves, as with 0777, is in our way */
    if (options.background) {
        ready_fd = detach(ready_fd);
    }
    detach_raise_limits();
    /* All devices, always in the same order: clients choose. */
    unsetenv("CUDA_VISIBLE_DEVICES");
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
    if (open_log(&options, ready_fd) != 0 || check_file_size(ready_fd) != 0) {
        return 1;
    }
    return serve(&options, passed_fd, ready_fd);
}
