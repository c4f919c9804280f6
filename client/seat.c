#include "seat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "call.h"
#include "channel_buffer.h"
#include "clock.h"
#include "device_list.h"
#include "error.h"
#include "mapping.h"
#include "step.h"
#include "storage.h"

#define CALL   2u /* in seat::calls */
#define CLOSED 1u

/* ----------------------------------------------------------------------------------------- join */

/* Lock of the session held. */
static void send_leave(struct session *session, uint64_t channel, uint32_t slot) {
    struct wire_leave fixed = {.channel = channel, .slot = slot};
    struct frame frame = REQUEST(LEAVE, &fixed);

    call_note(session, &frame);
    REACHED(LEAVE_SENT);
}

void seat_undo_grant(struct session *session, const struct wire_grant *grant) {
    if (grant->storage != 0) {
        storages_return(session, grant, 1);
    }
}

void seat_undo_join(struct session *session, const struct wire_join_reply *reply) {
    send_leave(session, reply->channel, reply->slot);
    seat_undo_grant(session, &reply->grant);
}

/* Maps the control block that came with `call`. Lock of the session held: a fork must not find the
 * descriptor between two owners. */
static int map_block(struct seat *seat, const struct call *call, const struct wire_join_reply *r) {
    const struct ring_shape shape = {r->flags, r->capacity, r->buffers, r->participants,
                                     r->buffer_nbytes};
    const char *wrong = ring_shape_check(&shape);
    struct stat info;

    if (call->fd == FD_DROPPED) {
        return error_system(EMFILE, "a channel's control block cannot be mapped");
    }
    if (call->fd < 0) {
        return error(STATUS_SYSTEM, "tensorcxd could not send a channel's control block: too many "
                                    "descriptors are on their way between this user's processes "
                                    "(RLIMIT_NOFILE of tensorcxd); repeat the call later");
    }
    if (wrong || r->slot >= r->participants || fstat(call->fd, &info) != 0 ||
        (uint64_t)info.st_size < ring_nbytes(&shape)) {
        return error(STATUS_INTERNAL, "tensorcxd gave a channel that cannot be right: %s",
                     wrong ? wrong : "its control block is too small");
    }
    seat->block_nbytes = ring_nbytes(&shape);
    seat->block = mmap(NULL, seat->block_nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, call->fd, 0);
    if (seat->block == MAP_FAILED) {
        seat->block = NULL;
        return error_system(errno, "a channel's control block cannot be mapped");
    }
    REACHED(BLOCK_MAPPED);
    madvise(seat->block, seat->block_nbytes, MADV_DONTDUMP);
    wrong = ring_open(seat->block, seat->block_nbytes, &shape, (uint32_t)seat->session->id, r->slot,
                      &seat->ring);
    return wrong
               ? error(STATUS_INTERNAL, "tensorcxd gave a channel that cannot be right: %s", wrong)
               : STATUS_OK;
}

static struct seat *create(struct session *session) {
    static _Atomic uint64_t serials;
    struct seat *seat = calloc(1, sizeof *seat);

    if (!seat) {
        error_plain(STATUS_OUT_OF_MEMORY);
        return NULL;
    }
    atomic_init(&seat->refs, 1);
    atomic_init(&seat->has_left, 1); /* until it has joined */
    seat->serial = atomic_fetch_add(&serials, 1) + 1;
    pthread_mutex_init(&seat->lock, NULL);
    seat->session = session_ref(session);
    return seat;
}

/* Takes the grant, which may be none, also on failure. */
static int take_buffers(struct seat *seat, const struct wire_grant *grant, uint64_t buffer_nbytes) {
    struct storage *storage;
    struct storage *none = NULL;

    if (grant->storage == 0) {
        return STATUS_OK;
    }
    int r = storage_take(seat->session, grant, &storage);
    if (r != STATUS_OK) {
        return r;
    }
    if (buffer_nbytes == 0 || storage->nbytes / seat->ring.shape.buffers != buffer_nbytes) {
        storage_unref(storage);
        return error(STATUS_INTERNAL, "tensorcxd gave buffers of another size than it says");
    }
    storage_hide(storage);
    atomic_store(&seat->buffer_nbytes, buffer_nbytes);
    if (!atomic_compare_exchange_strong(&seat->storage, &none, storage)) {
        storage_unref(storage); /* another thread was faster */
    }
    REACHED(SEAT_SIZED);
    return STATUS_OK;
}

/* A new channel's buffers are committed while we wait. */
static int64_t commit_ns(uint64_t buffers, uint64_t buffer_nbytes) {
    uint64_t nbytes;

    return storage_commit_ns(__builtin_mul_overflow(buffers, buffer_nbytes, &nbytes) ? UINT64_MAX
                                                                                     : nbytes);
}

/* Makes the seat what the reply says. */
static int take_reply(struct seat *seat, const struct call *call) {
    const struct wire_join_reply *reply = call_fixed(call);

    session_lock(seat->session);
    int r = map_block(seat, call, reply);
    if (r != STATUS_OK) {
        seat_undo_join(seat->session, reply);
    }
    session_unlock(seat->session);
    if (r != STATUS_OK) {
        return r;
    }
    seat->channel = reply->channel;
    atomic_store(&seat->has_left, 0);
    REACHED(SEAT_TAKEN);
    return take_buffers(seat, &reply->grant, reply->buffer_nbytes);
}

/* Few threads join at a time: the daemon refuses who leaves many descriptors unread. */
static int begin_join(struct session *session) {
    const struct patience *patience = &session->patience;
    struct timespec until;

    for (;;) {
        clock_gettime(CLOCK_REALTIME, &until);
        int64_t end = until.tv_nsec + SLICE_NS;
        until.tv_sec += end / NS_PER_S;
        until.tv_nsec = end % NS_PER_S;
        if (sem_timedwait(&session->joins, &until) == 0) {
            return STATUS_OK;
        }
        if (patience->interrupt && patience->interrupt(patience->context)) {
            return error_plain(STATUS_INTERRUPTED);
        }
    }
}

static int ask_to_join(struct session *session, const struct frame *frame, int64_t extra_ns,
                       struct call **ret_call) {
    int r = begin_join(session);

    if (r == STATUS_OK) {
        r = call_run(session, frame, extra_ns, ret_call);
        sem_post(&session->joins);
    }
    return r;
}

int seat_join(struct session *session, const struct wire_join *request, const char *name,
              struct seat **ret_seat) {
    struct frame frame = REQUEST(JOIN, request);
    struct seat *seat = create(session);
    struct call *call;

    if (!seat) {
        return STATUS_OUT_OF_MEMORY;
    }
    frame.tail[0] = name;
    frame.tail_nbytes[0] = strlen(name);
    uint64_t buffers = request->buffers ? request->buffers : RING_BUFFERS_MAX;
    int r = ask_to_join(session, &frame, commit_ns(buffers, request->buffer_nbytes), &call);
    if (r == STATUS_OK) {
        REACHED(JOIN_ANSWERED);
        r = take_reply(seat, call);
        call_free(session, call);
    }
    if (r != STATUS_OK) {
        seat_close(seat);
        seat_unref(seat);
        return r;
    }
    *ret_seat = seat;
    return STATUS_OK;
}

/* ---------------------------------------------------------------------------------------- leave */

struct seat *seat_ref(struct seat *seat) {
    atomic_fetch_add_explicit(&seat->refs, 1, memory_order_relaxed);
    return seat;
}

void seat_unref(struct seat *seat) {
    if (!seat || atomic_fetch_sub_explicit(&seat->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    seat_unref(seat->before);
    storage_unref(atomic_load(&seat->storage));
    if (seat->block) {
        munmap(seat->block, seat->block_nbytes);
        REACHED(BLOCK_UNMAPPED);
    }
    session_unref(seat->session);
    pthread_mutex_destroy(&seat->lock);
    free(seat);
}

static void drop_pending(struct seat *seat) {
    struct channel_buffer *buffer = atomic_exchange(&seat->pending, NULL);

    while (buffer) {
        struct channel_buffer *next = buffer->next;
        channel_buffer_unref(buffer);
        buffer = next;
    }
}

/* Once, after the last call. */
static void tell_left(struct seat *seat) {
    if (atomic_exchange(&seat->has_left, 1)) {
        return;
    }
    drop_pending(seat);
    seat_retire(seat);
    REACHED(SEAT_RETIRED);
    session_lock(seat->session);
    send_leave(seat->session, seat->channel, seat->ring.member);
    session_unlock(seat->session);
}

int seat_enter(struct seat *seat) {
    if (atomic_fetch_add(&seat->calls, CALL) & CLOSED) {
        seat_exit(seat);
        return 0;
    }
    return 1;
}

void seat_exit(struct seat *seat) {
    if (atomic_fetch_sub(&seat->calls, CALL) == (CALL | CLOSED)) {
        tell_left(seat);
    }
}

void seat_close(struct seat *seat) {
    if (seat->session->is_parents) { /* the parent's: its threads' calls do not end here */
        atomic_fetch_or(&seat->calls, CLOSED);
        drop_pending(seat);
        return;
    }
    if (!seat_enter(seat)) {
        return;
    }
    /* As a call of its own: no other may tell the daemon before the seat is left. */
    if (!(atomic_fetch_or(&seat->calls, CLOSED) & CLOSED) && !atomic_load(&seat->has_left)) {
        REACHED(SEAT_CLOSED);
        ring_leave(&seat->ring);
    }
    seat_exit(seat);
}

int seat_is_closed(const struct seat *seat) {
    return atomic_load(&seat->calls) & CLOSED;
}

void seat_retire(struct seat *seat) {
    storage_unref(atomic_exchange(&seat->storage, NULL));
}

/* -------------------------------------------------------------------------------------- buffers */

static int ask_size(struct seat *seat, uint64_t nbytes, const struct device *device) {
    struct wire_buffers fixed = {.channel = seat->channel, .nbytes = nbytes};
    struct frame frame = REQUEST(BUFFERS, &fixed);
    struct call *call;
    int64_t extra_ns = commit_ns(seat->ring.shape.buffers, nbytes);
    uint16_t index;
    int r = device_index(seat->session, device, &index);

    if (r == STATUS_OK) {
        fixed.device = index;
        r = call_run(seat->session, &frame, extra_ns, &call);
    }
    if (r != STATUS_OK) {
        return r;
    }
    REACHED(BUFFERS_ANSWERED);
    struct wire_buffers_reply reply = *(const struct wire_buffers_reply *)call_fixed(call);
    call_free(seat->session, call);
    return take_buffers(seat, &reply.grant, reply.buffer_nbytes);
}

int seat_size(struct seat *seat, uint64_t nbytes, const struct device *device) {
    return atomic_load(&seat->storage) ? STATUS_OK : ask_size(seat, nbytes, device);
}

uint64_t seat_buffer_nbytes(const struct seat *seat) {
    return atomic_load_explicit(&seat->buffer_nbytes, memory_order_acquire);
}

char *seat_buffer(struct seat *seat, uint32_t buffer) {
    const struct storage *storage = atomic_load(&seat->storage);

    return storage ? storage->address + buffer * seat_buffer_nbytes(seat) : NULL;
}

void seat_populate(struct seat *seat, uint32_t buffer, uint64_t nbytes) {
    struct storage *storage = atomic_load(&seat->storage);
    _Atomic uint64_t *word = &seat->populated[buffer / 64];
    uint64_t bit = UINT64_C(1) << buffer % 64;

    if (nbytes >= MAPPING_POPULATE_MIN && !(atomic_load(word) & bit)) {
        uint64_t each = seat_buffer_nbytes(seat);
        storage_populate_part(storage, buffer * each, each);
        atomic_fetch_or(word, bit);
    }
}

void seat_note_done(struct seat *seat, uint32_t buffer) {
    struct wire_done fixed = {.channel = seat->channel, .buffer = buffer};
    struct frame frame = REQUEST(DONE, &fixed);

    call_note(seat->session, &frame);
    REACHED(DONE_SENT);
}

/* -------------------------------------------------------------------------------------- pending */

void seat_put_off(struct seat *seat, struct channel_buffer *buffer) {
    pthread_mutex_lock(&seat->lock);
    buffer->next = atomic_load(&seat->pending);
    atomic_store(&seat->pending, buffer);
    REACHED(MESSAGE_PUT_OFF);
    pthread_mutex_unlock(&seat->lock);
}

struct channel_buffer *seat_take_pending(struct seat *seat) {
    struct channel_buffer *buffer;

    if (!atomic_load(&seat->pending)) {
        return NULL;
    }
    pthread_mutex_lock(&seat->lock);
    buffer = atomic_load(&seat->pending);
    if (buffer) {
        atomic_store(&seat->pending, buffer->next);
    }
    pthread_mutex_unlock(&seat->lock);
    return buffer;
}
