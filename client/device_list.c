#include "device_list.h"

#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "client.h"
#include "clock.h"
#include "error.h"

struct device_list {
    size_t count;
    struct wire_device devices[];
};

/* The daemon may have to load the driver first. */
#define LOADING_NS (60 * NS_PER_S)

/* Asks for the devices as they are now. *ret_list is the caller's, to be freed. */
static int ask(struct session *session, struct device_list **ret_list) {
    struct wire_devices fixed = {0};
    struct frame frame = REQUEST(DEVICES, &fixed);
    struct call *call;
    size_t nbytes;
    int r = call_run(session, &frame, LOADING_NS, &call);

    if (r != STATUS_OK) {
        return r;
    }
    size_t count = ((const struct wire_devices_reply *)call_fixed(call))->count;
    const void *from = call_tail(call, &nbytes);
    struct device_list *list = malloc(sizeof *list + nbytes);
    if (!list) {
        r = error_plain(STATUS_OUT_OF_MEMORY);
    } else if (count * sizeof *list->devices != nbytes) {
        r = error(STATUS_INTERNAL, "tensorcxd sent a list that is cut short");
    }
    if (r == STATUS_OK) {
        list->count = count;
        memcpy(list->devices, from, nbytes);
        for (size_t i = 0; i < count; i++) {
            list->devices[i].name[sizeof list->devices[i].name - 1] = '\0';
        }
        *ret_list = list;
    } else {
        free(list);
    }
    call_free(session, call);
    return r;
}

/* The session's list. */
static int know(struct session *session, const struct device_list **ret_list) {
    struct device_list *list = atomic_load(&session->devices);
    struct device_list *none = NULL;

    if (!list) {
        int r = ask(session, &list);
        if (r != STATUS_OK) {
            return r;
        }
        if (!atomic_compare_exchange_strong(&session->devices, &none, list)) {
            free(list); /* another thread was faster */
            list = none;
        }
    }
    *ret_list = list;
    return STATUS_OK;
}

static const struct wire_device *find(const struct device_list *list, unsigned index) {
    for (size_t i = 0; i < list->count; i++) {
        if (list->devices[i].device == index) {
            return &list->devices[i];
        }
    }
    return NULL;
}

int device_of_index(struct session *session, unsigned index, struct device **ret_device) {
    const struct device_list *list;

    if (index == 0) {
        *ret_device = NULL;
        return STATUS_OK;
    }
    int r = know(session, &list);
    if (r != STATUS_OK) {
        return r;
    }
    const struct wire_device *found = find(list, index);
    return found ? device_find_uuid(found->uuid, ret_device)
                 : error(STATUS_INTERNAL,
                         "tensorcxd gave memory on device %u, which it does not have", index);
}

int device_index(struct session *session, const struct device *device, uint16_t *ret_index) {
    const struct device_list *list;
    char text[CUDA_UUID_SIZE];

    if (!device) {
        *ret_index = 0;
        return STATUS_OK;
    }
    int r = know(session, &list);
    if (r != STATUS_OK) {
        return r;
    }
    for (size_t i = 0; i < list->count; i++) {
        if (memcmp(list->devices[i].uuid, device->uuid.bytes, sizeof device->uuid) == 0) {
            *ret_index = list->devices[i].device;
            return STATUS_OK;
        }
    }
    return error(STATUS_DEVICE, "cuda:%d (%s): tensorcxd does not see this device", device->ordinal,
                 cuda_uuid_text(device->uuid.bytes, text));
}

tcx_device_t device_name_of_index(struct session *session, unsigned index) {
    struct device *device;

    return device_of_index(session, index, &device) == STATUS_OK ? device_name(device)
                                                                 : (tcx_device_t){TCX_CUDA, -1};
}

/* --------------------------------------------------------------------------------------- public */

static int report(const struct wire_device *wire, tcx_device_fn fn, void *context) {
    struct device *device;
    char uuid[CUDA_UUID_SIZE];
    tcx_device_entry_t entry = {
        .device = device_find_uuid(wire->uuid, &device) == STATUS_OK ? device_name(device)
                                                                     : (tcx_device_t){TCX_CUDA, -1},
        .uuid = cuda_uuid_text(wire->uuid, uuid),
        .name = wire->name,
        .mode = wire->mapping == MAPPING_IPC ? "ipc" : "vmm",
        .total_bytes = wire->total_bytes,
        .capacity_bytes = wire->capacity_bytes,
        .committed_bytes = wire->committed_bytes,
        .warm_bytes = wire->warm_bytes,
        .dying_bytes = wire->dying_bytes,
        .storages = wire->storages,
        .bytes = wire->bytes,
    };

    return fn(context, &entry);
}

int tcx_devices(tcx_client_t *client, tcx_device_fn fn, void *context) {
    struct session *session;
    struct device_list *list;
    int stop = 0;
    int r = client_session(client, &session);

    if (r != STATUS_OK) {
        return r;
    }
    r = ask(session, &list);
    if (r == STATUS_OK) {
        for (size_t i = 0; i < list->count && !stop; i++) {
            stop = report(&list->devices[i], fn, context);
        }
        free(list);
    }
    session_unref(session);
    return r;
}
