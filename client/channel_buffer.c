#include "channel_buffer.h"

#include <stdlib.h>

#include "call.h"
#include "error.h"
#include "seat.h"
#include "step.h"
#include "storage.h"

struct channel_buffer *channel_buffer_create(struct seat *seat) {
    struct channel_buffer *buffer = malloc(sizeof *buffer); /* faster than calloc(): cached */

    if (!buffer) {
        error_plain(STATUS_OUT_OF_MEMORY);
        return NULL;
    }
    *buffer = (struct channel_buffer){.refs = 1, .state = BUFFER_SENT, .seat = seat_ref(seat)};
    return buffer;
}

void channel_buffer_set(struct channel_buffer *buffer, enum channel_buffer_state state,
                        uint32_t number) {
    buffer->number = number;
    /* A fork from now on finds it; one before, which did not, makes no difference. */
    buffer->forked = atomic_load(&buffer->seat->session->forked);
    atomic_store(&buffer->state, state);
}

void channel_buffer_keep_bytes(struct channel_buffer *buffer) {
    struct storage *storage = atomic_load(&buffer->seat->storage);

    if (storage && !buffer->storage) {
        buffer->storage = storage_ref(storage);
    }
}

struct channel_buffer *channel_buffer_ref(struct channel_buffer *buffer) {
    atomic_fetch_add_explicit(&buffer->refs, 1, memory_order_relaxed);
    return buffer;
}

static void destroy(struct channel_buffer *buffer) {
    storage_unref(buffer->storage);
    seat_unref(buffer->seat);
    free(buffer);
}

/* Whether the daemon is to be told. */
static int release(struct channel_buffer *buffer, const struct session *session) {
    int state = atomic_load(&buffer->state);

    if (session->is_parents || state == BUFFER_SENT) {
        return 0;
    }
    if (state == BUFFER_RECEIVED && buffer->forked != atomic_load(&session->forked)) {
        atomic_store(&buffer->state, BUFFER_RETURNED);
        return 1;
    }
    return ring_release(&buffer->seat->ring, buffer->number);
}

void channel_buffer_unref(void *object) {
    struct channel_buffer *buffer = object;

    if (!buffer || atomic_fetch_sub_explicit(&buffer->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    struct session *session = buffer->seat->session;
    if (!release(buffer, session)) {
        destroy(buffer);
        return;
    }
    /* Once it is on the list it is not ours to touch. */
    session_ref(session);
    buffer->next = atomic_load(&session->spent);
    while (!atomic_compare_exchange_weak(&session->spent, &buffer->next, buffer)) {
    }
    REACHED(BUFFER_SPENT);
    session_tidy(session);
    session_unref(session);
}

static void send_return(struct session *session, const struct channel_buffer *buffer) {
    struct wire_return fixed = {
        .channel = buffer->seat->channel,
        .slot = buffer->seat->ring.member,
        .buffer = buffer->number,
    };
    struct frame frame = REQUEST(RETURN, &fixed);

    call_note(session, &frame);
    REACHED(RETURN_SENT);
}

struct channel_buffer *channel_buffers_drain(struct session *session) {
    struct channel_buffer *spent = NULL;

    if (atomic_load(&session->spent)) {
        spent = atomic_exchange(&session->spent, NULL);
    }
    for (struct channel_buffer *buffer = spent; buffer; buffer = buffer->next) {
        if (atomic_load(&buffer->state) == BUFFER_RETURNED) {
            send_return(session, buffer);
        } else {
            seat_note_done(buffer->seat, buffer->number);
        }
    }
    return spent;
}

void channel_buffers_free(struct channel_buffer *buffers) {
    while (buffers) {
        struct channel_buffer *next = buffers->next;
        destroy(buffers);
        buffers = next;
    }
}
