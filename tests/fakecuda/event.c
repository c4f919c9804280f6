#include "fake.h"

#include <stdlib.h>

static struct CUevent_st *events; /* all that are not destroyed; under streams_lock, as all below */

static struct CUevent_st *event_find(CUevent event) {
    struct CUevent_st *found = events;

    while (found && found != event) {
        found = found->next;
    }
    return found;
}

void event_unuse(CUevent event) {
    if (--event->users == 0) {
        free(event);
    }
}

CUresult cuEventCreate(CUevent *ret_event, unsigned int flags) {
    BEGIN(CONTEXT);
    if (flags & ~3U) { /* interprocess events are not for us */
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct CUevent_st *event = calloc(1, sizeof *event);
    if (!event) {
        abort();
    }
    pthread_mutex_lock(&streams_lock);
    event->users = 1;
    event->next = events;
    events = event;
    pthread_mutex_unlock(&streams_lock);
    *ret_event = event;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
    BEGIN(CONTEXT);
    pthread_mutex_lock(&streams_lock);
    struct CUevent_st *found = event_find(event);
    if (found) {
        struct CUevent_st **link = &events;
        while (*link != found) {
            link = &(*link)->next;
        }
        *link = found->next;
        event_unuse(found);
    }
    pthread_mutex_unlock(&streams_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult give(CUstream stream, CUevent event, struct work work) {
    pthread_mutex_lock(&streams_lock);
    work.event = event_find(event);
    pthread_mutex_unlock(&streams_lock);
    return work.event ? stream_give(stream, &work) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    BEGIN(CONTEXT);
    return give(stream, event, (struct work){.kind = RECORD});
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    BEGIN(CONTEXT);
    return flags ? CUDA_ERROR_INVALID_VALUE : give(stream, event, (struct work){.kind = WAIT});
}

static CUresult look(CUevent event, int waits) {
    CUresult result = CUDA_ERROR_INVALID_HANDLE;

    pthread_mutex_lock(&streams_lock);
    struct CUevent_st *found = event_find(event);
    if (found) {
        unsigned long recorded = found->recorded;
        found->users++;
        while (waits && found->completed < recorded) {
            pthread_cond_wait(&streams_changed, &streams_lock);
        }
        result = found->completed < recorded ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
        event_unuse(found);
    }
    pthread_mutex_unlock(&streams_lock);
    return call_context_is_lost() ? CUDA_ERROR_ILLEGAL_ADDRESS : result;
}

CUresult cuEventSynchronize(CUevent event) {
    BEGIN(CONTEXT);
    return look(event, 1);
}

CUresult cuEventQuery(CUevent event) {
    BEGIN(CONTEXT);
    return look(event, 0);
}
