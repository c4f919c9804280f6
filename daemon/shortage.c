#include "shortage.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client.h"
#include "driver.h"
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
    } else if (shortage->error == EFBIG) {
        add(text, "a segment may not be so large (raise the daemon's RLIMIT_FSIZE, ulimit -f)");
    } else if (shortage->error) {
        add(text, "the system says: %s", strerror(shortage->error));
    } else if (shortage->limit) {
        add(text, "%s is used up", shortage->limit);
    } else {
        add(text, "the capacity is used up (start the daemon with a larger --capacity)");
    }
}

static uint64_t held_by(const struct client *client, unsigned device) {
    return device ? client->holds.device_bytes : client->holds.bytes;
}

static void add_client(struct text *text, const struct client *client) {
    add(text, "; client %" PRIu64 " (pid %d, %.*s)", client->id, client->pid,
        (int)client->program_nbytes, client->program);
}

static void add_largest_holder(struct text *text, const struct server *server, unsigned device) {
    const struct client *most = NULL;

    list_for_each (link, &server->clients) {
        const struct client *client = container_of(link, struct client, link);
        if (held_by(client, device) > (most ? held_by(most, device) : 0)) {
            most = client;
        }
    }
    if (most) {
        add_client(text, most);
        add(text, " holds most%s: %s", device ? " on all devices" : "",
            size_of(held_by(most, device)).text);
    }
}

/* Who still has memory mapped that was given up; not all, if they are many. */
static void add_importers(struct text *text, const struct server *server, unsigned device) {
    enum { FEW = 4 };
    int count = 0;

    list_for_each (link, &server->clients) {
        const struct client *client = container_of(link, struct client, link);
        uint64_t nbytes = imports_dying_nbytes(&client->imports, device);
        if (nbytes > 0 && count++ < FEW) {
            add_client(text, client);
            add(text, " still has %s mapped that nobody holds", size_of(nbytes).text);
        }
    }
    if (count > FEW) {
        add(text, "; so have %d more", count - FEW);
    }
}

static void add_tickets(struct text *text, const struct server *server, unsigned device) {
    uint64_t nbytes = server->storages.on[device].sent_bytes;

    if (nbytes > 0) {
        add(text,
            "; %zu tickets that nobody has redeemed keep %s that nobody else uses: " TICKET_ADVICE,
            server->tickets.by_id.count, size_of(nbytes).text);
    }
}

static void add_queues(struct text *text, const struct server *server, unsigned device) {
    uint64_t nbytes = 0, count = 0;

    list_for_each (link, &server->channels.all) {
        const struct channel *channel = container_of(link, struct channel, link);
        if (channel->open == 0 && channel->storage && channel_device(channel) == device) {
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

/* Why a device has no memory, and which. */
static void add_device_reason(struct text *text, const struct device *device,
                              const struct shortage *shortage) {
    char uuid[CUDA_UUID_SIZE];

    if (shortage->error) {
        add(text, "the CUDA driver has none left, other programs' included");
    } else if (shortage->asked > device->nbytes) {
        add(text, "the device has not so much");
    } else {
        add(text, "the capacity is used up (start the daemon with a larger --cuda-capacity)");
    }
    add(text, "; %s, %s, has %s", device->name, cuda_uuid_text(device->uuid.bytes, uuid),
        size_of(device->nbytes).text);
}

static void add_figures(struct text *text, const struct server *server,
                        const struct segments *segments) {
    const struct stored *stored = &server->storages.on[segments->device];

    add(text, "; capacity %s", size_of(segments->capacity).text);
    add(text, ", committed %s", size_of(segments->committed).text);
    add(text, ", free %s", size_of(segments->capacity - segments->committed).text);
    add(text, ", warm %s", size_of(segments->warm_nbytes).text);
    add(text, ", in use %s by %" PRIu64 " tensors", size_of(stored->bytes).text, stored->count);
}

/* It is not memory that is missing: the driver refused otherwise. */
static int refused(const struct device *device, uint64_t nbytes, const struct shortage *shortage,
                   char ret_text[WIRE_TEXT_MAX + 1]) {
    char uuid[CUDA_UUID_SIZE];
    char words[STORE_TEXT_SIZE];

    snprintf(ret_text, WIRE_TEXT_MAX + 1,
             "no memory for %" PRIu64 " bytes on %s, %s: %s of the CUDA driver says %s", nbytes,
             device->name, cuda_uuid_text(device->uuid.bytes, uuid), shortage->limit,
             store_text(shortage->error, words));
    log_warn("event=device.refused device=%u call=%s error=\"%s\"", device->segments.device,
             shortage->limit, words);
    return STATUS_DEVICE;
}

int shortage_text(const struct server *server, const struct segments *segments, uint64_t nbytes,
                  const struct shortage *shortage, char ret_text[WIRE_TEXT_MAX + 1]) {
    const struct device *device = devices_find(&server->devices, segments->device);
    struct text text = {ret_text, WIRE_TEXT_MAX + 1};

    if (shortage->error >= STORE_DRIVER) {
        return refused(device, nbytes, shortage, ret_text);
    }
    add(&text, "no memory for %" PRIu64 " bytes (%s): ", nbytes, size_of(nbytes).text);
    if (device) {
        add_device_reason(&text, device, shortage);
    } else {
        add_reason(&text, server, shortage);
    }
    add_figures(&text, server, segments);
    add_importers(&text, server, segments->device);
    add_largest_holder(&text, server, segments->device);
    add_tickets(&text, server, segments->device);
    add_queues(&text, server, segments->device);
    add(&text, " (tensorcx clients lists all)");
    return shortage->error == EMFILE || shortage->error == ENFILE ? STATUS_SYSTEM
                                                                  : STATUS_OUT_OF_MEMORY;
}
