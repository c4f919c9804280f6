/*
 * ticket.c - tensors and bundles as plain bytes that another process turns into the same memory
 *
 * The bytes pass through strangers' hands (pipes, pickles, files): the check value finds what was
 * damaged, and what the daemon and the storage say decides.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "bundle.h"
#include "call.h"
#include "client.h"
#include "copy.h"
#include "error.h"
#include "hold.h"
#include "layout.h"
#include "step.h"

#define MAGIC 0x31544b4354584354u /* "TCXTCKT1" */

struct ticket { /* then the encoded description */
    uint64_t magic;
    uint64_t check; /* of all that follows */
    uint64_t boot_id;
    uint64_t ticket;
    uint64_t storage;
};

_Static_assert(sizeof(struct ticket) + WIRE_DESC_MAX == TCX_TICKET_MAX, "what the header promises");

/* FNV-1a: any single byte that differs makes a difference. */
static uint64_t check_value(const char *bytes, size_t nbytes) {
    uint64_t value = 0xcbf29ce484222325u ^ nbytes;

    for (size_t i = offsetof(struct ticket, boot_id); i < nbytes; i++) {
        value = (value ^ (unsigned char)bytes[i]) * 0x100000001b3u;
    }
    return value;
}

/* --------------------------------------------------------------------------------------- making */

/* A ticket for what `desc` describes in the storage. Asks the daemon. */
static int issue(const struct storage *storage, const struct desc *desc, void *ret_ticket,
                 size_t *ret_nbytes) {
    struct session *session = storage->session;
    struct wire_ticket fixed = {.storage = storage->id};
    struct frame frame = REQUEST(TICKET, &fixed);
    char bytes[TCX_TICKET_MAX];
    struct call *call;
    int r = call_run(session, &frame, 0, &call);

    if (r != STATUS_OK) {
        return r;
    }
    struct ticket head = {
        .magic = MAGIC,
        .boot_id = session->boot_id,
        .ticket = ((const struct wire_ticket_reply *)call_fixed(call))->ticket,
        .storage = storage->id,
    };
    call_free(session, call);
    size_t nbytes = sizeof head + desc_encode(desc, bytes + sizeof head);
    memcpy(bytes, &head, sizeof head);
    head.check = check_value(bytes, nbytes);
    memcpy(bytes, &head, sizeof head);
    memcpy(ret_ticket, bytes, nbytes);
    *ret_nbytes = nbytes;
    return STATUS_OK;
}

/* The tensor's storage as `session` holds it, or a new one with a copy of its elements. */
static int find_memory(struct session *session, const struct tcx_tensor *tensor,
                       struct storage **ret_storage) {
    const tcx_array_t *array = &tensor->array;
    struct storage *storage = NULL;
    struct device *device;
    int r = tensor->storage ? hold_again(session, tensor->storage, &storage) : STATUS_OK;

    if (r == STATUS_OK && !storage) {
        r = hold_array(session, array, tensor->nbytes, &storage);
    }
    if (r == STATUS_OK && storage) {
        r = copy_wait(array);
    } else if (r == STATUS_OK) {
        r = device_find(array->device, &device);
        return r == STATUS_OK ? storage_fill(session, device, array, tensor->nbytes, ret_storage)
                              : r;
    }
    if (r != STATUS_OK) {
        storage_unref(storage);
        return r;
    }
    *ret_storage = storage;
    return STATUS_OK;
}

static int issue_tensor(const struct tcx_tensor *tensor, const struct storage *storage,
                        void *ret_ticket, size_t *ret_nbytes) {
    const char *data = tensor->array.data;
    const char *begin = storage->address;
    int is_inside = data && begin && data >= begin && data <= begin + storage->nbytes;
    struct desc desc;

    /* A fresh copy lies elsewhere, and begins with the first element. */
    layout_describe(&tensor->array, storage->device_index, is_inside ? (uint64_t)(data - begin) : 0,
                    tensor->array.readonly ? DESC_READONLY : 0u, &desc);
    return issue(storage, &desc, ret_ticket, ret_nbytes);
}

int tcx_tensor_ticket(tcx_client_t *client, tcx_tensor_t *tensor, void *ret_ticket,
                      size_t *ret_nbytes) {
    struct session *session;
    struct storage *storage;
    int r = client_session(client, &session);

    if (r != STATUS_OK) {
        return r;
    }
    r = find_memory(session, tensor, &storage);
    if (r == STATUS_OK) {
        r = issue_tensor(tensor, storage, ret_ticket, ret_nbytes);
        storage_unref(storage);
    }
    session_unref(session);
    return r;
}

/* The same bundle in the daemon of `client`: what is private there is copied. */
static int copy_bundle(tcx_client_t *client, const struct tcx_bundle *bundle,
                       struct tcx_bundle **ret_copy) {
    tcx_put_options_t options = {.flags = bundle->is_readonly ? TCX_PUT_READONLY : 0u};
    tcx_item_t *items = calloc(bundle->count + 1, sizeof *items);

    if (!items) {
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    for (size_t i = 0; i < bundle->count; i++) {
        const struct bundle_item *item = &bundle->items[i];
        items[i] =
            (tcx_item_t){item->path, item->depth, item->tensor ? &item->tensor->array : NULL};
    }
    int r = tcx_put_bundle(client, NULL, items, bundle->count, &options, ret_copy);
    free(items);
    return r;
}

static int issue_bundle(const struct tcx_bundle *bundle, const struct storage *storage,
                        void *ret_ticket, size_t *ret_nbytes) {
    int64_t length = (int64_t)bundle->index_nbytes;
    tcx_array_t index = {.dtype = {TCX_UINT, 8, 1}, .ndim = 1, .shape = &length};
    struct desc desc;

    for (size_t i = 0; i < bundle->count; i++) {
        const struct tcx_tensor *tensor = bundle->items[i].tensor;
        int r = tensor ? copy_wait(&tensor->array) : STATUS_OK;
        if (r != STATUS_OK) {
            return r;
        }
    }

    layout_describe(&index, 0, bundle->index_offset,
                    DESC_BUNDLE | (bundle->is_readonly ? DESC_READONLY : 0u), &desc);
    return issue(storage, &desc, ret_ticket, ret_nbytes);
}

int tcx_bundle_ticket(tcx_client_t *client, tcx_bundle_t *bundle, void *ret_ticket,
                      size_t *ret_nbytes) {
    struct tcx_bundle *copy = NULL;
    struct storage *storage = NULL;
    struct session *session;
    int r = client_session(client, &session);

    if (r != STATUS_OK) {
        return r;
    }
    r = bundle->storage ? hold_again(session, bundle->storage, &storage) : STATUS_OK;
    if (r == STATUS_OK && storage) {
        r = issue_bundle(bundle, storage, ret_ticket, ret_nbytes);
        storage_unref(storage);
    } else if (r == STATUS_OK) {
        r = copy_bundle(client, bundle, &copy);
        r = r == STATUS_OK ? issue_bundle(copy, copy->storage, ret_ticket, ret_nbytes) : r;
        tcx_bundle_unref(copy);
    }
    session_unref(session);
    return r;
}

/* ------------------------------------------------------------------------------------ redeeming */

static int parse(const void *ticket, size_t nbytes, struct ticket *ret_head,
                 struct desc *ret_desc) {
    const char *wrong = "it has another length than tickets have";

    if (ticket && nbytes > sizeof *ret_head && nbytes <= TCX_TICKET_MAX) {
        memcpy(ret_head, ticket, sizeof *ret_head);
        wrong = ret_head->magic != MAGIC ? "it does not begin like one"
                : ret_head->check != check_value(ticket, nbytes)
                    ? "its bytes have been changed"
                    : desc_decode((const char *)ticket + sizeof *ret_head,
                                  nbytes - sizeof *ret_head, ret_desc);
    }
    return wrong ? error(STATUS_INVALID, "this is no ticket of tensorcx: %s", wrong) : STATUS_OK;
}

/* The storage that the ticket is for. Asks the daemon. */
static int redeem(struct session *session, const struct ticket *head, const struct desc *desc,
                  struct storage **ret_storage) {
    struct wire_redeem fixed = {.ticket = head->ticket, .storage = head->storage};
    struct frame frame = REQUEST(REDEEM, &fixed);
    struct call *call;

    if (head->boot_id != session->boot_id) {
        return error(STATUS_STALE,
                     "the ticket is from another daemon than the one at %s: that one has ended, or "
                     "serves another socket",
                     session->path);
    }
    int r = call_run(session, &frame, 0, &call);
    if (r != STATUS_OK) {
        return r;
    }
    struct wire_grant grant = ((const struct wire_redeem_reply *)call_fixed(call))->grant;
    call_free(session, call);
    REACHED(REDEEM_ANSWERED);
    const char *wrong = desc_check(desc, grant.nbytes);
    if (grant.storage != head->storage) {
        r = error(STATUS_INTERNAL, "tensorcxd granted another storage than asked");
    } else if (wrong) {
        r = error(STATUS_INVALID, "this is no ticket of tensorcx: %s", wrong);
    } else {
        r = storage_enter(session, &grant, ret_storage);
        if (r == STATUS_OK) {
            return r;
        }
        session_lock(session);
        storage_put_off(session, grant.storage);
        session_unlock(session);
    }
    storage_decline(session, &grant);
    return r;
}

/* Opens what the ticket was for. Takes the storage, also on failure. */
static int open_redeemed(struct session *session, struct storage *storage, const struct desc *desc,
                         tcx_tensor_t **ret_tensor, tcx_bundle_t **ret_bundle) {
    static const struct name_tag no_name;

    storage_ref(storage);
    int r = desc->flags & DESC_BUNDLE ? bundle_open(session, storage, desc, 0, &no_name, ret_bundle)
                                      : tensor_from_desc(storage, desc, 0, &no_name, ret_tensor);
    if (r != STATUS_OK) {
        session_lock(session);
        storage_put_off(session, storage->id);
        session_unlock(session);
    }
    storage_unref(storage);
    return r;
}

/* The session to redeem the ticket with. If it is from another daemon than ours, ours may have
 * ended and this be the next one's. */
static int find_session(tcx_client_t *client, const struct ticket *head,
                        struct session **ret_session) {
    int r = client_session_running(client, ret_session);

    if (r == STATUS_OK && head->boot_id != (*ret_session)->boot_id &&
        !session_is_alive(*ret_session)) {
        session_unref(*ret_session);
        r = client_session_running(client, ret_session);
    }
    return r;
}

int tcx_redeem(tcx_client_t *client, const void *ticket, size_t nbytes, tcx_tensor_t **ret_tensor,
               tcx_bundle_t **ret_bundle) {
    struct ticket head;
    struct desc desc;
    struct session *session;
    struct storage *storage;
    int r = parse(ticket, nbytes, &head, &desc);

    if (r != STATUS_OK) {
        return r;
    }
    int is_bundle = (desc.flags & DESC_BUNDLE) != 0;
    if (is_bundle ? !ret_bundle : !ret_tensor) {
        return error(STATUS_INVALID, "the ticket is of %s",
                     is_bundle ? "a bundle, not of a tensor" : "a tensor, not of a bundle");
    }
    r = find_session(client, &head, &session);
    if (r != STATUS_OK) {
        return r;
    }
    r = redeem(session, &head, &desc, &storage);
    if (r == STATUS_OK) {
        r = open_redeemed(session, storage, &desc, ret_tensor, ret_bundle);
    }
    session_unref(session);
    return r;
}
