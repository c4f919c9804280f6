#include "segment.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "call.h"
#include "clock.h"
#include "device_list.h"
#include "error.h"
#include "mapping.h"
#include "reclaim.h"
#include "session.h"
#include "step.h"

#define IDLE_NS NS_PER_S /* that a segment on a device stays mapped */

static int compare_id(const void *a, const void *b) {
    const struct segment *left = a;
    const struct segment *right = b;

    return (left->id > right->id) - (left->id < right->id);
}

struct segment *segment_find(struct session *session, uint64_t id) {
    struct segment key = {.id = id};
    struct segment **node = tfind(&key, &session->segments, compare_id);

    return node ? *node : NULL;
}

/* Adds a segment that is mapped. Takes the mapping if it succeeds. Lock held. */
static int enter(struct session *session, uint64_t id, struct mapping *mapping) {
    struct segment *segment = calloc(1, sizeof *segment);

    if (segment) {
        segment->id = id;
        segment->mapping = mapping;
    }
    if (!segment || !tsearch(segment, &session->segments, compare_id)) {
        free(segment);
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    segment->next = session->mapped;
    session->mapped = segment;
    REACHED(SEGMENT_ENTERED);
    return STATUS_OK;
}

/* Takes the mapping also on failure. Lock held. */
static int enter_mapping(struct session *session, uint64_t id, struct mapping *mapping) {
    int r = enter(session, id, mapping);

    if (r != STATUS_OK) {
        mapping_close(mapping);
    }
    return r;
}

/* Maps the segment that came with `call`, unless another thread was faster. Lock held: a fork must
 * not find the descriptor between two owners. */
static int adopt(struct session *session, uint64_t id, const struct call *call) {
    const struct wire_map_reply *reply = call_fixed(call);
    struct mapping *mapping;
    struct stat info;

    if (segment_find(session, id)) {
        return STATUS_OK;
    }
    if (call->fd == FD_DROPPED) {
        return error_system(EMFILE, "the daemon's memory cannot be mapped");
    }
    if (call->fd < 0 || reply->nbytes == 0 || reply->nbytes > SIZE_MAX ||
        fstat(call->fd, &info) != 0 || (uint64_t)info.st_size < reply->nbytes) {
        return error(STATUS_INTERNAL, "tensorcxd gave a segment that is not as large as it says");
    }
    int r = mapping_open(session->boot_id, id, call->fd, reply->nbytes, &mapping);
    return r == STATUS_OK ? enter_mapping(session, id, mapping) : r;
}

/* Uses what another session with the same daemon has mapped. *ret_known: it has, or we had it. Lock
 * held. */
static int share(struct session *session, uint64_t id, int *ret_known) {
    struct mapping *mapping = NULL;

    *ret_known = segment_find(session, id) != NULL;
    if (!*ret_known && !atomic_load(&session->is_dead)) {
        mapping = mapping_find(session->boot_id, id);
    }
    if (!mapping) {
        return STATUS_OK;
    }
    *ret_known = 1;
    return enter_mapping(session, id, mapping);
}

/* ---------------------------------------------------------------------------------- on a device */

/* Lock held. */
static void send_unmap(struct session *session, const uint64_t *ids, size_t count) {
    struct wire_unmap fixed = {0};
    struct frame frame = REQUEST(UNMAP, &fixed);

    if (count > 0 && !atomic_load(&session->is_dead)) {
        frame.tail[0] = ids;
        frame.tail_nbytes[0] = count * sizeof *ids;
        call_note(session, &frame);
        REACHED(UNMAP_SENT);
    }
}

void segment_undo_map(struct session *session, uint64_t id) {
    if (segment_device(id)) {
        send_unmap(session, &id, 1);
    }
}

/* What the reply to MAP brought. May ask the daemon. */
static int open_on_device(struct session *session, uint64_t id, const struct call *call,
                          struct mapping **ret_mapping) {
    const struct wire_map_reply *reply = call_fixed(call);
    struct device_memory memory = {.nbytes = reply->nbytes, .kind = reply->mapping, .fd = call->fd};
    size_t nbytes;

    memory.handle = call_tail(call, &nbytes);
    if (reply->mapping == MAPPING_VMM && call->fd == FD_DROPPED) {
        return error_system(EMFILE, "the daemon's memory cannot be mapped");
    }
    if (reply->segment != id || reply->device != segment_device(id) || reply->nbytes == 0 ||
        (reply->mapping == MAPPING_VMM
             ? call->fd < 0
             : reply->mapping != MAPPING_IPC || nbytes != WIRE_IPC_HANDLE)) {
        return error(STATUS_INTERNAL, "tensorcxd gave a segment on a device that cannot be right");
    }
    int r = device_of_index(session, reply->device, &memory.device);
    return r == STATUS_OK ? mapping_open_device(session->boot_id, id, &memory, ret_mapping) : r;
}

/* Enters the mapping, unless another thread was faster. *ret_used: it is the session's now. */
static int adopt_on_device(struct session *session, uint64_t id, struct mapping *mapping,
                           int *ret_used) {
    int r = STATUS_OK;

    session_lock(session);
    if (!segment_find(session, id)) {
        r = atomic_load(&session->is_dead) ? session_error_lost(session)
                                           : enter(session, id, mapping);
        *ret_used = r == STATUS_OK;
        if (*ret_used) {
            session->mapped->idle_since = clock_now();
            reclaim_watch(session);
        }
    }
    session_unlock(session);
    return r;
}

/* Every answer to MAP is to be returned by one UNMAP. */
static int map_on_device(struct session *session, uint64_t id) {
    struct wire_map fixed = {.segment = id};
    struct frame frame = REQUEST(MAP, &fixed);
    struct mapping *mapping = NULL;
    struct call *call;
    int is_used = 0;

    session_lock(session);
    int is_known = segment_find(session, id) != NULL;
    session_unlock(session);
    if (is_known) {
        return STATUS_OK;
    }
    int r = call_run(session, &frame, 0, &call);
    if (r != STATUS_OK && r != STATUS_SYSTEM) {
        return r;
    }
    if (r == STATUS_OK) {
        r = open_on_device(session, id, call, &mapping);
        call_free(session, call);
    }
    if (r == STATUS_OK) {
        r = adopt_on_device(session, id, mapping, &is_used);
    }
    if (!is_used) {
        int is_unmapped = !mapping || mapping_close(mapping);
        session_lock(session);
        send_unmap(session, &id, is_unmapped);
        session_unlock(session);
    }
    return r;
}

void segment_leave(struct segment *segment) {
    segment->storages--;
    if (segment->mapping->device && segment->storages == 0) {
        segment->idle_since = clock_now();
        reclaim_wake();
    }
}

/* Takes one that is to be unmapped out of the session; NULL: none. *ret_due: when the next will be.
 * Lock held. */
static struct segment *take_idle(struct session *session, int64_t *ret_due) {
    int is_over = atomic_load(&session->is_dead) || atomic_load(&session->refs) == 1;
    int64_t idle_ns = is_over || reclaim_is_hurried() ? 0 : IDLE_NS;
    int64_t now = clock_now();

    *ret_due = 0;
    for (struct segment **link = &session->mapped; *link; link = &(*link)->next) {
        struct segment *segment = *link;
        if (!segment->mapping->device) {
            continue;
        }
        if (segment->storages == 0 && now - segment->idle_since >= idle_ns) {
            *link = segment->next;
            tdelete(segment, &session->segments, compare_id);
            return segment;
        }
        int64_t due = segment->storages > 0 ? FOREVER : segment->idle_since + idle_ns;
        *ret_due = *ret_due == 0 || due < *ret_due ? due : *ret_due;
    }
    return NULL;
}

int64_t segments_tidy_devices(struct session *session) {
    struct segment *idle;
    int64_t due;

    session_lock(session);
    while ((idle = take_idle(session, &due))) {
        session_unlock(session);
        int is_unmapped = mapping_close(idle->mapping);
        session_lock(session);
        send_unmap(session, &idle->id, is_unmapped);
        free(idle);
    }
    if (due == 0) {
        reclaim_unwatch(session);
    }
    session_unlock(session);
    return due;
}

/* -------------------------------------------------------------------------------------- mapping */

int segment_map(struct session *session, uint64_t id) {
    struct wire_map fixed = {.segment = id};
    struct frame frame = REQUEST(MAP, &fixed);
    struct call *call;
    int known;

    if (segment_device(id)) {
        return map_on_device(session, id);
    }
    session_lock(session);
    int r = share(session, id, &known);
    session_unlock(session);
    if (known) {
        return r;
    }
    r = call_run(session, &frame, 0, &call);
    if (r != STATUS_OK) {
        return r;
    }
    session_lock(session);
    r = adopt(session, id, call);
    session_unlock(session);
    call_free(session, call);
    return r;
}

/* ----------------------------------------------------------------------- when segments are gone */

/* Moves segments for which `is_gone` holds from session::mapped to session::doomed. */
static void doom(struct session *session, int (*is_gone)(struct session *, struct segment *)) {
    struct segment **link = &session->mapped;

    while (*link) {
        struct segment *segment = *link;
        /* What is on a device is reclaimed; in a child of fork() it only is forgotten. */
        int is_kept = segment->mapping->device && !session->is_parents;
        if (segment->storages > 0 || is_kept || !is_gone(session, segment)) {
            link = &segment->next;
            continue;
        }
        *link = segment->next;
        tdelete(segment, &session->segments, compare_id);
        segment->next = session->doomed;
        session->doomed = segment;
    }
}

static int is_any(struct session *session, struct segment *segment) {
    (void)session;
    (void)segment;
    return 1;
}

void segments_doom_unused(struct session *session) {
    doom(session, is_any);
}

static void forget_question(struct session *session) {
    free(session->asked);
    session->asked = NULL;
    session->asked_count = 0;
}

/* Asks about segments that are mapped and not used, without waiting for the answer. */
static void ask(struct session *session) {
    struct wire_alive fixed = {0};
    struct frame frame = REQUEST(ALIVE, &fixed);
    size_t count = 0;

    session->asks_again = 0;
    session->asked = malloc(WIRE_IDS_MAX * sizeof *session->asked);
    if (!session->asked) {
        return;
    }
    for (struct segment *s = session->mapped; s && count < WIRE_IDS_MAX; s = s->next) {
        if (s->storages == 0 && !s->mapping->device) {
            session->asked[count++] = s->id;
        }
    }
    session->asked_count = count;
    frame.tail[0] = session->asked;
    frame.tail_nbytes[0] = count * sizeof *session->asked;
    if (count == 0 || !call_detach(session, &frame)) {
        forget_question(session);
    } else {
        REACHED(ALIVE_ASKED);
    }
}

void segments_notice(struct session *session, uint64_t destroyed) {
    if (destroyed == session->destroyed) {
        return;
    }
    session->destroyed = destroyed;
    if (session->asked) {
        session->asks_again = 1;
    } else {
        ask(session);
    }
}

/* Answered ids are set to 0 where the segment lives, so what is left is gone. */
static int is_asked(struct session *session, struct segment *segment) {
    for (size_t i = 0; i < session->asked_count; i++) {
        if (session->asked[i] == segment->id) {
            return 1;
        }
    }
    return 0;
}

void segments_bury(struct session *session, const char *alive, size_t count) {
    size_t gone = 0;

    if (count == session->asked_count) {
        for (size_t i = 0; i < count; i++) {
            if (!alive[i]) {
                session->asked[gone++] = session->asked[i];
            }
        }
        session->asked_count = gone;
        doom(session, is_asked);
        REACHED(SEGMENTS_BURIED);
    }
    forget_question(session);
    if (session->asks_again) {
        ask(session);
    }
}

void segments_unmap(struct segment *doomed) {
    while (doomed) {
        struct segment *next = doomed->next;
        mapping_close(doomed->mapping);
        free(doomed);
        doomed = next;
    }
}

void segments_destroy(struct session *session) {
    doom(session, is_any);
    segments_unmap(session->doomed);
    session->doomed = NULL;
    forget_question(session);
}
