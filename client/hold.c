#include "hold.h"

#include <string.h>

#include "call.h"
#include "device.h"
#include "error.h"
#include "fork.h"
#include "step.h"

/* Asks for holds on `count` storages. What comes is turned into storages, or given back. */
static int ask(struct session *session, const uint64_t *ids, size_t count,
               struct storage **ret_storages) {
    struct wire_hold fixed = {0};
    struct frame frame = REQUEST(HOLD, &fixed);
    struct wire_grant grant;
    struct call *call;
    size_t nbytes;

    frame.tail[0] = ids;
    frame.tail_nbytes[0] = count * sizeof *ids;
    int r = call_run(session, &frame, 0, &call);
    if (r != STATUS_OK) {
        return r;
    }
    REACHED(HOLD_ANSWERED);
    const char *grants = call_tail(call, &nbytes);
    size_t granted = nbytes / sizeof grant;
    if (granted != count) {
        r = error(STATUS_INTERNAL, "tensorcxd granted other storages than asked");
    }
    for (size_t i = 0; i < granted; i++) {
        memcpy(&grant, grants + i * sizeof grant, sizeof grant);
        if (r == STATUS_OK && grant.storage != ids[i]) {
            r = error(STATUS_INTERNAL, "tensorcxd granted other storages than asked");
        }
        if (r == STATUS_OK) {
            r = storage_take(session, &grant, &ret_storages[i]);
        } else {
            storage_decline(session, &grant);
        }
    }
    call_free(session, call);
    return r;
}

int hold_ids(struct session *session, const uint64_t *ids, size_t count,
             struct storage **ret_storages) {
    uint64_t missing[WIRE_HOLDS_MAX];
    struct storage *found[WIRE_HOLDS_MAX];
    size_t places[WIRE_HOLDS_MAX];
    size_t n = 0;
    int r = STATUS_OK;

    for (size_t i = 0; i < count && r == STATUS_OK; i++) {
        ret_storages[i] = storage_find(session, ids[i]);
        if (!ret_storages[i]) {
            missing[n] = ids[i];
            places[n++] = i;
        }
        if (n == WIRE_HOLDS_MAX || (i == count - 1 && n > 0)) {
            memset(found, 0, sizeof found);
            r = ask(session, missing, n, found);
            for (size_t k = 0; k < n; k++) {
                ret_storages[places[k]] = found[k];
            }
            n = 0;
        }
    }
    return r;
}

struct storage *hold_find(struct session *session, const void *data, size_t nbytes) {
    struct storage *found = NULL;
    uint64_t cursor = 0;
    struct session *other;

    if (!data || nbytes == 0) {
        return NULL;
    }
    if (session_shares(session)) {
        found = storage_find_bytes(session, data, nbytes);
    }
    while (!found && (other = fork_next_session(session->boot_id, &cursor))) {
        if (other != session && session_shares(other)) {
            found = storage_find_bytes(other, data, nbytes);
        }
        session_unref(other);
    }
    return found;
}

/* Lets the daemon know of one of ours that so far only a buffer keeps. */
static int hold_pinned(struct storage *storage) {
    struct storage *again = NULL;
    int r =
        storage_is_granted(storage) ? STATUS_OK : ask(storage->session, &storage->id, 1, &again);

    storage_unref(again);
    return r;
}

int hold_again(struct session *session, struct storage *storage, struct storage **ret_storage) {
    struct storage *again = NULL;

    if (storage->session == session) {
        int r = hold_pinned(storage);
        if (r == STATUS_OK) {
            *ret_storage = storage_ref(storage);
        }
        return r;
    }
    if (storage->session->boot_id != session->boot_id || !session_shares(storage->session)) {
        *ret_storage = NULL;
        return STATUS_OK;
    }
    int r = hold_ids(session, &storage->id, 1, &again);
    if (r == STATUS_OK && again->address != storage->address) {
        storage_unref(again);
        r = error(STATUS_INTERNAL, "tensorcxd gave a storage two addresses");
    }
    if (r == STATUS_OK) {
        *ret_storage = again;
    }
    return r;
}

int hold_check_device(const struct storage *storage, const tcx_array_t *array) {
    tcx_device_t is = device_name(storage->device);
    tcx_device_t said = array->device;
    char is_text[DEVICE_TEXT_SIZE];
    char said_text[DEVICE_TEXT_SIZE];

    if (is.id == said.id && (is.type == TCX_CUDA) == (said.type == TCX_CUDA)) {
        return STATUS_OK;
    }
    return error(STATUS_INVALID, "the array is said to be on %s, and its memory is on %s",
                 device_text(said, said_text), device_text(is, is_text));
}

int hold_array(struct session *session, const tcx_array_t *array, size_t nbytes,
               struct storage **ret_storage) {
    struct storage *found = hold_find(session, array->data, nbytes);

    if (!found) {
        *ret_storage = NULL;
        return STATUS_OK;
    }
    int r = hold_check_device(found, array);
    r = r == STATUS_OK ? hold_again(session, found, ret_storage) : r;
    storage_unref(found);
    return r;
}
