/*
 * catalog.c - names, from the side that looks them up: get, delete, stat, list
 */
#include <stdio.h>
#include <string.h>

#include "bundle.h"
#include "call.h"
#include "client.h"
#include "clock.h"
#include "device_list.h"
#include "error.h"
#include "name.h"
#include "step.h"
#include "tensor.h"

static int check_name(const char *name) {
    const char *wrong = name ? name_check(name, strlen(name)) : "no name given";

    return wrong ? error(STATUS_INVALID, "%s", wrong) : STATUS_OK;
}

/* A request whose tail is a name. */
#define NAMED(NAME, fixed_part, text)                                                          \
    {                                                                                          \
        .header.opcode = MESSAGE_##NAME, .fixed = (fixed_part),                                \
        .fixed_nbytes = sizeof *(fixed_part), .tail = {(text)}, .tail_nbytes = {strlen(text)}, \
        .fd = -1                                                                               \
    }

/* ------------------------------------------------------------------------------------------ get */

/* What came for a GET, out of the reply. */
struct found {
    struct wire_grant grant;
    uint64_t version;
    struct desc desc;
};

static int error_late(const char *name, const tcx_get_options_t *options) {
    char newer[48] = "";

    if (options->newer_than > 0) {
        snprintf(newer, sizeof newer, " newer than version %llu",
                 (unsigned long long)options->newer_than);
    }
    return error(STATUS_TIMEOUT, "nothing%s was put under \"%s\" within %g s", newer, name,
                 options->timeout);
}

static int look_up(struct session *session, const char *name, const tcx_get_options_t *options,
                   struct found *ret_found) {
    int waits = options->timeout != 0;
    struct wire_get fixed = {.newer_than = options->newer_than, .flags = waits ? GET_WAIT : 0};
    struct frame frame = NAMED(GET, &fixed, name);
    struct call *call;
    size_t length;
    int r;

    if (waits) {
        r = call_run_until(session, &frame,
                           options->timeout < 0 ? FOREVER : clock_from_seconds(options->timeout),
                           &call);
        r = r == STATUS_TIMEOUT ? error_late(name, options) : r;
    } else {
        r = call_run(session, &frame, 0, &call);
    }
    if (r != STATUS_OK) {
        return r;
    }
    const struct wire_get_reply *reply = call_fixed(call);
    const void *encoded = call_tail(call, &length);
    ret_found->grant = reply->grant;
    ret_found->version = reply->version;
    REACHED(GET_ANSWERED);
    const char *wrong = desc_decode(encoded, length, &ret_found->desc);
    if (wrong) {
        storage_decline(session, &reply->grant);
        r = error(STATUS_INTERNAL, "\"%s\" has a description that cannot be right: %s", name,
                  wrong);
    }
    call_free(session, call);
    return r;
}

static int open_found(struct session *session, const struct found *found,
                      const struct name_tag *tag, int readonly, tcx_tensor_t **ret_tensor,
                      tcx_bundle_t **ret_bundle) {
    struct storage *storage;

    if (found->desc.flags & DESC_BUNDLE ? !ret_bundle : !ret_tensor) {
        storage_decline(session, &found->grant);
        return error(STATUS_INVALID, "\"%s\" is %s", tag->name,
                     ret_tensor ? "a bundle, not a tensor" : "a tensor, not a bundle");
    }
    int r = storage_take(session, &found->grant, &storage);
    if (r != STATUS_OK) {
        return r;
    }
    return found->desc.flags & DESC_BUNDLE
               ? bundle_open(session, storage, &found->desc, readonly, tag, ret_bundle)
               : tensor_from_desc(storage, &found->desc, readonly, tag, ret_tensor);
}

int tcx_get(tcx_client_t *client, const char *name, const tcx_get_options_t *options,
            tcx_tensor_t **ret_tensor, tcx_bundle_t **ret_bundle) {
    static const tcx_get_options_t none;
    struct session *session;
    struct found found;
    int r = check_name(name);

    options = options ? options : &none;
    if (r == STATUS_OK && options->timeout != options->timeout) {
        r = error(STATUS_INVALID, "a timeout is a number of seconds");
    }
    if (r == STATUS_OK) {
        r = client_session(client, &session);
    }
    if (r != STATUS_OK) {
        return r;
    }
    r = look_up(session, name, options, &found);
    if (r == STATUS_OK) {
        struct name_tag tag = {name, found.version};
        r = open_found(session, &found, &tag, options->readonly, ret_tensor, ret_bundle);
    }
    session_unref(session);
    return r;
}

int tcx_delete(tcx_client_t *client, const char *name) {
    struct wire_delete fixed = {0};
    struct session *session;
    struct call *call;
    int r = check_name(name);

    if (r == STATUS_OK) {
        r = client_session(client, &session);
    }
    if (r != STATUS_OK) {
        return r;
    }
    struct frame frame = NAMED(DELETE, &fixed, name);
    r = call_run(session, &frame, 0, &call);
    if (r == STATUS_OK) {
        call_free(session, call);
    }
    session_unref(session);
    return r;
}

/* -------------------------------------------------------------------------------- stat and list */

struct tcx_entry_place {
    struct session *session;
    unsigned device; /* the daemon's number */
};

tcx_device_t tcx_entry_device(const tcx_entry_t *entry) {
    return device_name_of_index(entry->place->session, entry->place->device);
}

/* Reports one entry. STATUS_INTERNAL: its description makes no sense. */
static int report(struct session *session, const struct wire_entry *wire, const char *encoded,
                  const char *name, tcx_entry_fn fn, void *context, int *ret_stop) {
    struct desc desc;
    const char *wrong = desc_decode(encoded, wire->desc_nbytes, &desc);

    if (wrong) {
        return error(STATUS_INTERNAL, "\"%s\" has a description that cannot be right: %s", name,
                     wrong);
    }
    struct tcx_entry_place place = {session, desc.device};
    tcx_entry_t entry = {
        .name = name,
        .version = wire->version,
        .storage_id = wire->storage,
        .nbytes = wire->nbytes,
        .is_bundle = (desc.flags & DESC_BUNDLE) != 0,
        .readonly = (desc.flags & DESC_READONLY) != 0,
        .ephemeral = (wire->flags & ENTRY_EPHEMERAL) != 0,
        .place = &place,
        .dtype = {desc.dtype.code, desc.dtype.bits, desc.dtype.lanes},
        .ndim = desc.ndim,
        .shape = desc.shape,
        .age = (double)wire->age_ms / 1e3,
        .ttl_left = wire->flags & ENTRY_EXPIRES ? (double)wire->ttl_left_ms / 1e3 : -1,
        .holders = wire->holders,
        .publisher = (int)wire->publisher,
    };
    *ret_stop = fn(context, &entry);
    return STATUS_OK;
}

int tcx_stat(tcx_client_t *client, const char *name, tcx_entry_fn fn, void *context) {
    struct wire_stat fixed = {0};
    struct session *session;
    struct call *call;
    size_t length;
    int stop;
    int r = check_name(name);

    if (r == STATUS_OK) {
        r = client_session(client, &session);
    }
    if (r != STATUS_OK) {
        return r;
    }
    struct frame frame = NAMED(STAT, &fixed, name);
    r = call_run(session, &frame, 0, &call);
    if (r == STATUS_OK) {
        struct wire_entry entry = ((const struct wire_stat_reply *)call_fixed(call))->entry;
        const char *encoded = call_tail(call, &length);
        entry.desc_nbytes = (uint16_t)length;
        r = report(session, &entry, encoded, name, fn, context, &stop);
        call_free(session, call);
    }
    session_unref(session);
    return r;
}

/* Where a page of a list stands. */
struct page {
    const char *at;
    size_t left;
    char last[WIRE_NAME_MAX + 1]; /* name of the last entry reported, ends with 0 */
    size_t last_nbytes;
};

static int report_next(struct session *session, struct page *page, tcx_entry_fn fn, void *context,
                       int *ret_stop) {
    struct wire_entry entry;

    if (page->left < sizeof entry) {
        return error(STATUS_INTERNAL, "tensorcxd sent a list that is cut short");
    }
    memcpy(&entry, page->at, sizeof entry);
    size_t nbytes = sizeof entry + (size_t)entry.desc_nbytes + entry.name_nbytes;
    nbytes += -nbytes & 7;
    if (nbytes > page->left || entry.name_nbytes > WIRE_NAME_MAX) {
        return error(STATUS_INTERNAL, "tensorcxd sent a list that is cut short");
    }
    const char *encoded = page->at + sizeof entry;
    memcpy(page->last, encoded + entry.desc_nbytes, entry.name_nbytes);
    page->last[entry.name_nbytes] = '\0';
    page->last_nbytes = entry.name_nbytes;
    page->at += nbytes;
    page->left -= nbytes;
    return report(session, &entry, encoded, page->last, fn, context, ret_stop);
}

/* Asks for the entries after the last one and reports them. *ret_more: there are others. */
static int report_page(struct session *session, const char *prefix, struct page *page,
                       tcx_entry_fn fn, void *context, int *ret_more) {
    struct wire_list fixed = {
        .prefix_nbytes = (uint16_t)strlen(prefix),
        .after_nbytes = (uint16_t)page->last_nbytes,
    };
    struct frame frame = REQUEST(LIST, &fixed);
    struct page before = *page;
    struct call *call;
    int stop = 0;

    frame.tail[0] = prefix;
    frame.tail_nbytes[0] = fixed.prefix_nbytes;
    frame.tail[1] = before.last;
    frame.tail_nbytes[1] = fixed.after_nbytes;
    int r = call_run(session, &frame, 0, &call);
    if (r != STATUS_OK) {
        return r;
    }
    const struct wire_list_reply *reply = call_fixed(call);
    page->at = call_tail(call, &page->left);
    for (uint32_t i = 0; r == STATUS_OK && !stop && i < reply->count; i++) {
        r = report_next(session, page, fn, context, &stop);
    }
    *ret_more = reply->more && !stop;
    if (r == STATUS_OK && *ret_more && strcmp(page->last, before.last) <= 0) {
        r = error(STATUS_INTERNAL, "tensorcxd sent a list that does not go on");
    }
    call_free(session, call);
    return r;
}

int tcx_list(tcx_client_t *client, const char *prefix, tcx_entry_fn fn, void *context) {
    struct page page = {.last_nbytes = 0};
    struct session *session;
    int more = 1;
    int r;

    prefix = prefix ? prefix : "";
    if (strlen(prefix) > WIRE_NAME_MAX) {
        return error(STATUS_INVALID, "a name has at most %d bytes, so a prefix, too",
                     WIRE_NAME_MAX);
    }
    r = client_session(client, &session);
    if (r != STATUS_OK) {
        return r;
    }
    while (r == STATUS_OK && more) {
        r = report_page(session, prefix, &page, fn, context, &more);
    }
    session_unref(session);
    return r;
}
