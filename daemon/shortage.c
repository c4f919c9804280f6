#include "shortage.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client.h"
#include "log.h"
#include "status.h"

struct size {
    char text[24];
};

static struct size size_of(uint64_t nbytes) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    struct size size;
    double value = (double)nbytes;
    int unit = 0;

    while (value >= 1024 && unit < 4) {
        value /= 1024;
        unit++;
    }
    int whole = value == (double)(uint64_t)value;
    snprintf(size.text, sizeof size.text, "%.*f %s", whole ? 0 : 1, value, units[unit]);
    return size;
}

struct text {
    char *at;
    size_t left;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...) {
    va_list args;

    va_start(args, format);
    int n = vsnprintf(text->at, text->left, format, args);
    va_end(args);
    size_t used = n < 0 ? 0 : (size_t)n < text->left ? (size_t)n : text->left - 1;
    text->at += used;
    text->left -= used;
}

static void add_reason(struct text *text, const struct server *server,
                       const struct shortage *shortage) {
    bool store_is_full = shortage->error == ENOSPC && server->segments.store == &store_posix;
    bool capacity_is_full = !shortage->error && !shortage->limit;

    if (store_is_full || (capacity_is_full && server->is_short_of_shm)) {
        add(text,
            "/dev/shm is full (start the daemon with --backing=memfd, or make /dev/shm larger: "
            "docker run --shm-size)");
    } else if (shortage->error == EMFILE || shortage->error == ENFILE) {
        add(text, "no descriptor is left for a new segment (raise the daemon's RLIMIT_NOFILE)");
    } else if (shortage->error) {
        add(text, "the system says: %s", strerror(shortage->error));
    } else if (shortage->limit) {
        add(text, "%s is used up", shortage->limit);
    } else {
        add(text, "the capacity is used up (start the daemon with a larger --capacity)");
    }
}

static void add_largest_holder(struct text *text, const struct server *server) {
    const struct client *most = NULL;

    list_for_each (link, &server->clients) {
        const struct client *client = container_of(link, struct client, link);
        if (client->holds.bytes > (most ? most->holds.bytes : 0)) {
            most = client;
        }
    }
    if (most) {
        add(text, "; client %" PRIu64 " (pid %d, %.*s) holds most: %s", most->id, most->pid,
            (int)most->program_nbytes, most->program, size_of(most->holds.bytes).text);
    }
}

static void add_tickets(struct text *text, const struct server *server) {
    if (server->storages.sent_bytes > 0) {
        add(text,
            "; %zu tickets that nobody has redeemed keep %s that nobody else uses: " TICKET_ADVICE,
            server->tickets.by_id.count, size_of(server->storages.sent_bytes).text);
    }
}

static void add_queues(struct text *text, const struct server *server) {
    uint64_t nbytes = 0, count = 0;

    list_for_each (link, &server->channels.all) {
        const struct channel *channel = container_of(link, struct channel, link);
        if (channel->open == 0 && channel->storage) {
            count++;
            nbytes += channel->storage->nbytes;
        }
    }
    if (count > 0) {
        add(text,
            "; %" PRIu64
            " queues that nobody has open keep %s for their messages: receive them, or "
            "tensorcx rm NAME",
            count, size_of(nbytes).text);
    }
}

int shortage_text(const struct server *server, uint64_t nbytes, const struct shortage *shortage,
                  char ret_text[WIRE_TEXT_MAX + 1]) {
    const struct segments *segments = &server->segments;
    struct text text = {ret_text, WIRE_TEXT_MAX + 1};

    add(&text, "no memory for %" PRIu64 " bytes (%s): ", nbytes, size_of(nbytes).text);
    add_reason(&text, server, shortage);
    add(&text, "; capacity %s", size_of(segments->capacity).text);
    add(&text, ", committed %s", size_of(segments->committed).text);
    add(&text, ", free %s", size_of(segments->capacity - segments->committed).text);
    add(&text, ", warm %s", size_of(segments->warm_nbytes).text);
    add(&text, ", in use %s by %zu tensors", size_of(server->storages.bytes).text,
        server->storages.by_id.count);
    add_largest_holder(&text, server);
    add_tickets(&text, server);
    add_queues(&text, server);
    add(&text, " (tensorcx clients lists all)");
    log_warn("event=memory.short asked=%" PRIu64 " committed=%" PRIu64 " capacity=%" PRIu64
             " error=%d",
             nbytes, segments->committed, segments->capacity, shortage->error);
    return shortage->error == EMFILE || shortage->error == ENFILE ? STATUS_SYSTEM
                                                                  : STATUS_OUT_OF_MEMORY;
}
