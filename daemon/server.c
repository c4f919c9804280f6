#include "server.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <uv.h>

#include "bytes.h"
#include "client.h"
#include "closer.h"
#include "dispatch.h"
#include "log.h"
#include "memory.h"
#include "poller.h"
#include "reserve.h"
#include "step.h"
#include "version.h"
#include "warm.h"

struct loop {
    uv_loop_t uv;
    uv_poll_t *pages; /* NULL: there are none to watch */
    uv_timer_t timer;
    uv_signal_t terminate, interrupt;
    uint64_t due_ms; /* when the timer is set to; UINT64_MAX: it is not */
};

uint64_t server_now(const struct server *server) {
    return uv_now(&server->loop->uv);
}

static uint64_t now_of(void *server) {
    return server_now(server);
}

/* ----------------------------------------------------------------------------------------- time */

uint64_t server_destroyed(const struct server *server) {
    return server->segments.destroyed + devices_destroyed(&server->devices);
}

bool server_is_idle(const struct server *server) {
    return server->clients_count == 0 && server->catalog.count == 0 &&
           server->tickets.by_id.count == 0 && server->channels.by_id.count == 0;
}

/* Takes tickets back that nobody will redeem. Returns when to call it again. */
static uint64_t expire_tickets(struct server *server) {
    if (server->clients_count > 0 && server->tickets.lease_ms > 0) {
        return UINT64_MAX; /* when memory is short */
    }
    tickets_expire(&server->tickets);
    return tickets_due(&server->tickets);
}

bool server_make_room(struct server *server) {
    bool any = clients_return_all(server);

    any |= catalog_expire_all(&server->catalog, server_now(server));
    any |= tickets_expire(&server->tickets) > 0;
    any |= channels_sweep(&server->channels) > 0;
    return any;
}

/* When the daemon ends for want of work; UINT64_MAX: it has some. */
static uint64_t idle_end(struct server *server) {
    if (server->acceptor.is_replaced && server->clients_count == 0) {
        return 0; /* nobody can come any more */
    }
    if (!server_is_idle(server) || server->options->idle_exit_ms == 0) {
        server->idle_since_ms = 0;
        return UINT64_MAX;
    }
    if (server->idle_since_ms == 0) {
        server->idle_since_ms = server_now(server);
    }
    return server->idle_since_ms + server->options->idle_exit_ms;
}

/* What comes in many goes in steps, one a millisecond, so that others' messages come between.
 * Returns when the next is. */
static uint64_t do_step(struct server *server, uint64_t now_ms) {
    if (server->stepped_ms != now_ms) {
        server->stepped_ms = now_ms;
        clients_return_some(server);
        catalog_expire(&server->catalog, now_ms);
    }
    uint64_t due_ms = list_is_empty(&server->returning) ? catalog_due(&server->catalog) : 0;
    return due_ms > now_ms ? due_ms : now_ms + 1;
}

/* Does what is due. Returns when the next thing is. What may end clients comes first. */
static uint64_t do_due(struct server *server) {
    uint64_t now_ms = server_now(server);
    uint64_t due_ms = lifepages_do_due(&server->pages, now_ms);

    due_ms = bytes_least(due_ms, clients_resend(server, now_ms));
    due_ms = bytes_least(due_ms, do_step(server, now_ms));
    channels_settle(&server->channels);
    due_ms = bytes_least(due_ms, acceptor_do_due(&server->acceptor, now_ms));
    due_ms = bytes_least(due_ms, expire_tickets(server));
    due_ms = bytes_least(due_ms, warm_expire(&server->segments, now_ms));
    due_ms = bytes_least(due_ms, reserve_refill(&server->segments, now_ms));
    due_ms = bytes_least(due_ms, devices_do_due(&server->devices, now_ms));
    uint64_t end_ms = idle_end(server);
    if (end_ms <= now_ms) {
        server->stop_reason = server->acceptor.is_replaced ? "replaced" : "idle";
    }
    return bytes_least(due_ms, end_ms);
}

static void on_timer(uv_timer_t *timer) {
    struct server *server = timer->data;

    server->loop->due_ms = UINT64_MAX;
    server_settle(server);
}

static void set_timer(struct server *server, uint64_t due_ms) {
    struct loop *loop = server->loop;
    uint64_t now_ms = server_now(server);

    if (due_ms == loop->due_ms) {
        return;
    }
    loop->due_ms = due_ms;
    if (due_ms == UINT64_MAX) {
        uv_timer_stop(&loop->timer);
    } else {
        uv_timer_start(&loop->timer, on_timer, due_ms > now_ms ? due_ms - now_ms : 0, 0);
    }
}

/* ------------------------------------------------------------------------------------------ end */

static void close_handle(void *handle) {
    uv_close(handle, NULL);
}

static void stop(struct server *server) {
    struct loop *loop = server->loop;

    log_info("event=server.stop reason=\"%s\" clients=%" PRIu64 " names=%" PRIu64
             " storages=%zu bytes=%" PRIu64,
             server->stop_reason, server->clients_count, server->catalog.count,
             server->storages.by_id.count, storages_bytes(&server->storages));
    server->stopping = true;
    REACHED(STOP_BEGUN);
    acceptor_stop(&server->acceptor);
    /* First: from here on nothing that clients have mapped is emptied. */
    segments_stop(&server->segments);
    devices_stop(&server->devices);
    REACHED(MEMORY_SPARED);
    /* Before the clients, who live: what they use in the rings stays theirs, also while some do not
     * know yet that there is no daemon. */
    channels_fini(&server->channels);
    while (!list_is_empty(&server->clients)) {
        client_close(container_of(server->clients.next, struct client, link), "the daemon ends",
                     true);
    }
    REACHED(CLIENTS_CLOSED);
    catalog_fini(&server->catalog);
    tickets_fini(&server->tickets);
    REACHED(NAMES_DROPPED);
    close_handle(&loop->timer);
    close_handle(&loop->terminate);
    close_handle(&loop->interrupt);
    if (loop->pages) {
        poller_destroy(loop->pages);
    }
}

static void free_gone(struct server *server) {
    struct list *link;

    while ((link = list_pop(&server->gone))) {
        free(container_of(link, struct client, link));
    }
}

void server_settle(struct server *server) {
    dispatch_ready(server);
    if (!server->stopping) {
        uint64_t due_ms = do_due(server);
        if (!list_is_empty(&server->ready)) {
            due_ms = server_now(server) + 1;
        }
        if (server->stop_reason) {
            stop(server);
        } else {
            set_timer(server, due_ms);
        }
    }
    free_gone(server);
}

static void settle_worker(void *server) {
    server_settle(server);
}

static void on_signal(uv_signal_t *signal, int number) {
    struct server *server = signal->data;

    server->stop_reason = number == SIGTERM ? "SIGTERM" : "SIGINT";
    if (server->acceptor.server) { /* else server_run() begins with it */
        server_settle(server);
    }
}

static void on_pages(uv_poll_t *poll, int status, int events) {
    struct server *server = poll->data;

    (void)status;
    (void)events;
    (void)lifepages_read(&server->pages); /* if there is more, the loop comes back */
    server_settle(server);
}

/* ---------------------------------------------------------------------------------------- begin */

static int watch_signal(struct server *server, uv_signal_t *signal, int number) {
    int r = uv_signal_init(server->uv, signal);

    signal->data = server;
    return r < 0 ? r : uv_signal_start(signal, on_signal, number);
}

/* What fails here ends the process, so nothing is undone. The loop runs once for what libuv itself
 * watches. */
static int open_loop(struct server *server) {
    pollers_init();

    struct loop *loop = server->loop = calloc(1, sizeof *loop);
    int r = loop ? uv_loop_init(&loop->uv) : -ENOMEM;

    if (r < 0) {
        return r;
    }
    server->uv = &loop->uv;
    loop->due_ms = UINT64_MAX;
    uv_timer_init(&loop->uv, &loop->timer);
    loop->timer.data = server;
    if ((r = watch_signal(server, &loop->terminate, SIGTERM)) < 0 ||
        (r = watch_signal(server, &loop->interrupt, SIGINT)) < 0) {
        return r;
    }
    REACHED(SIGNALS_WATCHED);
    uv_run(server->uv, UV_RUN_NOWAIT);
    if (server->pages.fd >= 0) {
        loop->pages = poller_create(server->uv, server->pages.fd, server, on_pages);
        return loop->pages ? 0 : -errno;
    }
    return 0;
}

/* The driver's calls may take long, and must not keep the threads from others. */
static void init_devices(struct server *server) {
    const struct options *options = server->options;

    server->cuda_worker = (struct worker){
        .loop = server->uv, .settle = settle_worker, .owner = server, .is_serial = true};
    worker_init(&server->cuda_worker);
    server->devices = (struct devices){.segments = {.ready = &server->ready,
                                                    .failed = dispatch_shortage,
                                                    .now = now_of,
                                                    .owner = server,
                                                    .warm_ms = options->warm_ms},
                                       .worker = &server->cuda_worker,
                                       .mode = options->cuda,
                                       .capacity = options->cuda_capacity};
    devices_init(&server->devices);
}

static void init_nouns(struct server *server) {
    const struct options *options = server->options;
    const char *limit;
    uint64_t capacity = options->capacity ? options->capacity : memory_available("", &limit) / 2;
    uint64_t wanted = capacity;
    const struct store *store = store_choose(options->backing, &capacity);

    server->worker = (struct worker){.loop = server->uv, .settle = settle_worker, .owner = server};
    worker_start(&server->worker);
    server->segments = (struct segments){.store = store,
                                         .worker = &server->worker,
                                         .ready = &server->ready,
                                         .failed = dispatch_shortage,
                                         .now = now_of,
                                         .owner = server,
                                         .root = "",
                                         .capacity = capacity,
                                         .warm_ms = options->warm_ms,
                                         .reserve_nbytes = options->reserve};
    server->is_short_of_shm = capacity < wanted;
    segments_init(&server->segments);
    init_devices(server);
    server->storages = (struct storages){.max = options->max_storages};
    storages_init(&server->storages);
    server->catalog = (struct catalog){
        .storages = &server->storages, .ready = &server->ready, .max = options->max_names};
    catalog_init(&server->catalog);
    server->tickets = (struct tickets){.storages = &server->storages,
                                       .now = now_of,
                                       .owner = server,
                                       .lease_ms = options->ticket_lease_ms};
    tickets_init(&server->tickets);
    server->channels =
        (struct channels){.storages = &server->storages, .max = options->max_channels};
    channels_init(&server->channels);
}

int server_init(struct server *server, const struct options *options,
                const struct listener *listener) {
    char cgroup[256];

    memset(server, 0, sizeof *server);
    server->options = options;
    list_init(&server->clients);
    list_init(&server->silent);
    list_init(&server->returning);
    list_init(&server->gone);
    list_init(&server->ready);
    if (getrandom(&server->boot_id, sizeof server->boot_id, 0) != sizeof server->boot_id) {
        return -errno;
    }
    signal(SIGPIPE, SIG_IGN); /* a reader of the log went away */
    signal(SIGXFSZ, SIG_IGN); /* a segment above RLIMIT_FSIZE is an error, not our end */
    lifepages_init(&server->pages);
    int r = open_loop(server);
    if (r < 0 || (r = closer_start()) < 0) {
        return r;
    }
    server->started_ms = server_now(server);
    init_nouns(server);
    REACHED(BOOKS_OPENED);
    r = acceptor_start(&server->acceptor, server, listener);
    if (r < 0) {
        return r;
    }
    REACHED(SERVING);
    memory_cgroup("", cgroup, sizeof cgroup);
    log_info("event=server.start pid=%d version=%s socket=%s backing=%s capacity=%" PRIu64
             " cgroup=%s",
             (int)getpid(), TENSORCX_VERSION, server->acceptor.listener.path,
             server->segments.store->name, server->segments.capacity, cgroup);
    return 0;
}

void server_run(struct server *server) {
    server_settle(server);
    uv_run(server->uv, UV_RUN_DEFAULT);
    REACHED(LOOP_ENDED);

    assert(list_is_empty(&server->clients) && list_is_empty(&server->ready));
    assert(server->clients_count == 0 && server->silent_count == 0);
    assert(server->connected == 0 && server->waiting == 0);
    storages_fini(&server->storages);
    segments_fini(&server->segments);
    devices_fini(&server->devices);
    lifepages_fini(&server->pages);
    uv_loop_close(server->uv);
    free(server->loop);
    acceptor_fini(&server->acceptor);
    REACHED(LOCK_GIVEN_UP);
    log_info("event=server.end");
}
