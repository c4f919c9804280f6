#include "segment.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "call.h"
#include "error.h"
#include "mapping.h"
#include "session.h"

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

/* Adds a segment that is mapped. Takes the mapping, also on failure. Lock held. */
static int enter(struct session *session, uint64_t id, struct mapping *mapping) {
    struct segment *segment = calloc(1, sizeof *segment);

    if (segment) {
        segment->id = id;
        segment->mapping = mapping;
    }
    if (!segment || !tsearch(segment, &session->segments, compare_id)) {
        free(segment);
        mapping_close(mapping);
        return error_plain(STATUS_OUT_OF_MEMORY);
    }
    segment->next = session->mapped;
    session->mapped = segment;
    return STATUS_OK;
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
    return r == STATUS_OK ? enter(session, id, mapping) : r;
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
    return enter(session, id, mapping);
}

int segment_map(struct session *session, uint64_t id) {
    struct wire_map fixed = {.segment = id};
    struct frame frame = REQUEST(MAP, &fixed);
    struct call *call;
    int known;

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
        if (segment->storages > 0 || !is_gone(session, segment)) {
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
        if (s->storages == 0) {
            session->asked[count++] = s->id;
        }
    }
    session->asked_count = count;
    frame.tail[0] = session->asked;
    frame.tail_nbytes[0] = count * sizeof *session->asked;
    if (count == 0 || !call_detach(session, &frame)) {
        forget_question(session);
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
