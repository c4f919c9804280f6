/*
 * handle_device.c - DEVICES, UNMAP
 */
#include <errno.h>
#include <string.h>

#include "call.h"
#include "handle.h"

/* STATUS_OK, or what the handler returns. */
static int load(struct call *call) {
    struct devices *devices = &call->server->devices;
    int r = devices_load(devices);

    if (r == -EAGAIN) {
        return call_wait(call, &devices->waiters);
    }
    return r == STATUS_OK ? r : call_fail(call, r, "tensorcxd cannot use CUDA: %s", devices->why);
}

int find_memory(struct call *call, unsigned device, struct segments **ret_segments) {
    if (device == 0) {
        *ret_segments = &call->server->segments;
        return STATUS_OK;
    }
    int r = load(call);
    if (r != STATUS_OK) {
        return r;
    }
    struct device *found = devices_find(&call->server->devices, device);
    if (!found) {
        return call_fail(call, STATUS_INVALID, "CUDA device %u: this daemon has %u, from 1 on",
                         device, devices_count(&call->server->devices));
    }
    *ret_segments = &found->segments;
    return STATUS_OK;
}

static struct wire_device describe(const struct server *server, const struct device *device) {
    const struct segments *segments = &device->segments;
    const struct stored *stored = &server->storages.on[segments->device];
    struct wire_device entry = {.device = segments->device,
                                .mapping = device->store.mapping,
                                .total_bytes = device->nbytes,
                                .capacity_bytes = segments->capacity,
                                .committed_bytes = segments->committed,
                                .warm_bytes = segments->warm_nbytes,
                                .dying_bytes = segments->lingering_nbytes,
                                .storages = stored->count,
                                .bytes = stored->bytes};

    memcpy(entry.uuid, device->uuid.bytes, sizeof entry.uuid);
    memcpy(entry.name, device->name, sizeof entry.name);
    return entry;
}

_Static_assert(sizeof((struct wire_device){0}.name) == sizeof((struct device){0}.name), "the same");

int handle_devices(struct call *call, const struct wire_devices *request,
                   struct wire_devices_reply *reply) {
    struct wire_device *entries = (struct wire_device *)call->server->page;
    const struct device *device;
    int r = load(call);

    (void)request;
    if (r != STATUS_OK) {
        return r;
    }
    while ((device = devices_find(&call->server->devices, reply->count + 1))) {
        entries[reply->count++] = describe(call->server, device);
    }
    call->reply_tail = entries;
    call->reply_tail_nbytes = reply->count * sizeof *entries;
    return STATUS_OK;
}

int handle_unmap(struct call *call, const struct wire_unmap *request) {
    int count = count_ids(call);

    (void)request;
    if (count < 0) {
        return call_broken(call, "UNMAP: the tail is no list of ids");
    }
    for (int i = 0; i < count; i++) {
        if (!imports_remove(&call->client->imports, id_at(call, i))) {
            return call_broken(call, "UNMAP: a segment that is not mapped");
        }
    }
    return STATUS_OK;
}
