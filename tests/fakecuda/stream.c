/* Streams: each has a thread that does its work in order. */
#include "fake.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t streams_changed = PTHREAD_COND_INITIALIZER;
struct CUstream_st *streams;

static unsigned long orders;
static struct CUstream_st *legacy[DEVICES_MAX];
static __thread struct CUstream_st *per_thread[DEVICES_MAX];

static struct CUstream_st *stream_add(CUdevice device, int is_legacy, int is_blocking) {
    struct CUstream_st *stream = calloc(1, sizeof *stream);

    if (!stream) {
        abort();
    }
    stream->device = device;
    stream->is_legacy = is_legacy;
    stream->is_blocking = is_blocking;
    stream->last = &stream->first;
    stream->next = streams;
    streams = stream;
    return stream;
}

struct CUstream_st *stream_find(CUstream stream) {
    CUdevice device = device_current();

    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
        struct CUstream_st **own = stream == CU_STREAM_PER_THREAD ? per_thread : legacy;
        if (!own[device]) {
            own[device] = stream_add(device, own == legacy, own == per_thread);
        }
        return own[device];
    }
    for (struct CUstream_st *found = streams; found; found = found->next) {
        if (found == stream) {
            return found->is_destroyed ? NULL : found;
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------------------- the threads */

/* The legacy stream waits for what blocking streams were given before, and they for it. */
static int is_behind(const struct CUstream_st *stream, const struct work *work) {
    if (!stream->is_legacy && !stream->is_blocking) {
        return 0;
    }
    for (const struct CUstream_st *other = streams; other; other = other->next) {
        int counts = stream->is_legacy ? other->is_blocking : other->is_legacy;
        if (counts && other->device == stream->device && other->first &&
            other->first->order < work->order) {
            return 1;
        }
    }
    return 0;
}

static int is_ready(const struct CUstream_st *stream) {
    const struct work *work = stream->first;

    if (!work || is_behind(stream, work)) {
        return 0;
    }
    return work->kind != WAIT || work->event->completed >= work->wanted;
}

/* What the memory of this process is when the work runs decides, not what it was when it was given.
 */
static void touch_memory(const struct work *work) {
    pthread_rwlock_rdlock(&memory_lock);
    char *to = work->kind == COPY_OUT ? work->host : range_host(work->to, work->nbytes, 3);
    const char *from = work->kind == COPY_IN || work->kind == FILL
                           ? work->host
                           : range_host(work->from, work->nbytes, 1);

    if (!to || (!from && work->kind != FILL)) {
        call_lose_context();
    } else if (work->kind == FILL) {
        memset(to, work->value, work->nbytes);
    } else if (to < from + work->nbytes && from < to + work->nbytes) {
        memset(to, 0xdd, work->nbytes); /* undefined in the driver */
    } else {
        memcpy(to, from, work->nbytes);
    }
    pthread_rwlock_unlock(&memory_lock);
}

static void wait_ms(int milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};

    while (milliseconds > 0 && nanosleep(&time, &time) < 0) {
    }
}

static void finish(struct CUstream_st *stream) {
    struct work *work = stream->first;

    if (work->kind == RECORD) {
        work->event->completed++;
    }
    if (work->event) {
        event_unuse(work->event);
    }
    stream->first = work->next;
    if (!stream->first) {
        stream->last = &stream->first;
    }
    free(work);
    pthread_cond_broadcast(&streams_changed);
}

static void stream_remove(struct CUstream_st *stream) {
    struct CUstream_st **link = &streams;

    while (*link != stream) {
        link = &(*link)->next;
    }
    *link = stream->next;
    free(stream);
}

static void *run(void *argument) {
    struct CUstream_st *stream = argument;

    pthread_mutex_lock(&streams_lock);
    for (;;) {
        if (is_ready(stream)) {
            const struct work *work = stream->first;
            pthread_mutex_unlock(&streams_lock);
            wait_ms(work->delay_ms);
            if (work->kind != RECORD && work->kind != WAIT && !call_context_is_lost()) {
                touch_memory(work);
            }
            pthread_mutex_lock(&streams_lock);
            finish(stream);
        } else if (stream->is_destroyed && !stream->first) {
            break;
        } else {
            pthread_cond_wait(&streams_changed, &streams_lock);
        }
    }
    stream_remove(stream);
    pthread_mutex_unlock(&streams_lock);
    return NULL;
}

static void start_thread(struct CUstream_st *stream) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    if (pthread_create(&thread, &attributes, run, stream) != 0) {
        abort();
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    stream->has_thread = 1;
}

/* ------------------------------------------------------------------------------ what is given */

static CUresult give(struct CUstream_st *stream, const struct work *work) {
    if (!stream) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (capture_forbids(stream)) {
        capture_invalidate();
        return (CUresult)CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (stream->capture != NOT_CAPTURING) {
        return stream->capture == CAPTURING ? CUDA_SUCCESS
                                            : (CUresult)CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    struct work *copy = malloc(sizeof *copy);
    if (!copy) {
        abort();
    }
    *copy = *work;
    copy->next = NULL;
    copy->order = ++orders;
    if (copy->event) {
        copy->event->users++;
        copy->event->recorded += copy->kind == RECORD;
        copy->wanted = copy->event->recorded;
    }
    *stream->last = copy;
    stream->last = &copy->next;
    if (!stream->has_thread) {
        start_thread(stream);
    }
    pthread_cond_broadcast(&streams_changed);
    return CUDA_SUCCESS;
}

CUresult stream_give(CUstream stream, const struct work *work) {
    pthread_mutex_lock(&streams_lock);
    CUresult result = give(stream_find(stream), work);
    pthread_mutex_unlock(&streams_lock);
    return result;
}

/* Whether a stream (NULL: any of the device) still has work that was given up to `order`. */
static int has_work(const struct CUstream_st *stream, CUdevice device, unsigned long order) {
    for (const struct CUstream_st *other = streams; other; other = other->next) {
        if ((stream ? other == stream : other->device == device) && other->first &&
            other->first->order <= order) {
            return 1;
        }
    }
    return 0;
}

static void wait_for(const struct CUstream_st *stream, CUdevice device) {
    unsigned long order = orders;

    while (has_work(stream, device, order)) {
        pthread_cond_wait(&streams_changed, &streams_lock);
    }
}

void streams_wait(CUdevice device) {
    pthread_mutex_lock(&streams_lock);
    wait_for(NULL, device);
    pthread_mutex_unlock(&streams_lock);
}

/* ---------------------------------------------------------------------------------- the calls */

CUresult cuStreamCreate(CUstream *ret_stream, unsigned int flags) {
    BEGIN(CONTEXT);
    if (flags & ~CU_STREAM_NON_BLOCKING) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&streams_lock);
    *ret_stream = stream_add(device_current(), 0, !(flags & CU_STREAM_NON_BLOCKING));
    pthread_mutex_unlock(&streams_lock);
    return CUDA_SUCCESS;
}

/* What it was given is still done. */
CUresult cuStreamDestroy_v2(CUstream stream) {
    BEGIN(CONTEXT);
    pthread_mutex_lock(&streams_lock);
    struct CUstream_st *found = (uintptr_t)stream > 2 ? stream_find(stream) : NULL;
    if (found) {
        found->is_destroyed = 1;
        if (!found->has_thread) {
            stream_remove(found);
        }
        pthread_cond_broadcast(&streams_changed);
    }
    pthread_mutex_unlock(&streams_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult look(CUstream stream, int waits) {
    CUresult result = CUDA_ERROR_INVALID_HANDLE;

    pthread_mutex_lock(&streams_lock);
    const struct CUstream_st *found = stream_find(stream);
    if (found && (found->capture != NOT_CAPTURING || capture_forbids(found))) {
        capture_invalidate();
        result = (CUresult)CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else if (found) {
        if (waits) {
            wait_for(found, found->device);
        }
        result = found->first ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&streams_lock);
    return call_context_is_lost() ? CUDA_ERROR_ILLEGAL_ADDRESS : result;
}

CUresult stream_wait(CUstream stream) {
    CUresult result = look(stream, 1);

    return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result; /* given while we waited */
}

CUresult cuStreamSynchronize(CUstream stream) {
    BEGIN(CONTEXT);
    return stream_wait(stream);
}

CUresult cuStreamQuery(CUstream stream) {
    BEGIN(CONTEXT);
    return look(stream, 0);
}
