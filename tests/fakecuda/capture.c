/* Graph capture, as far as others can disturb it: what a capturing stream is given is dropped. */
#include "fake.h"

#include <string.h>

static __thread CUstreamCaptureMode mode; /* of the thread: 0 global, 1 its own, 2 relaxed */

void capture_invalidate(void) {
    for (struct CUstream_st *stream = streams; stream; stream = stream->next) {
        if (stream->capture == CAPTURING && stream->device == device_current()) {
            stream->capture = INVALIDATED;
        }
    }
}

static int is_capturing(CUdevice device, int only_blocking) {
    for (const struct CUstream_st *stream = streams; stream; stream = stream->next) {
        if (stream->capture == CAPTURING && stream->device == device &&
            (stream->is_blocking || !only_blocking)) {
            return 1;
        }
    }
    return 0;
}

/* Calls that a graph cannot contain; a relaxed thread may make them. */
static int is_unsafe(const char *function) {
    static const char *const unsafe[] = {
        "cuMemAlloc_v2",      "cuMemFree_v2", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle",
        "cuEventSynchronize", "cuEventQuery", "cuStreamSynchronize",   "cuStreamQuery",
    };

    for (size_t i = 0; i < sizeof unsafe / sizeof *unsafe; i++) {
        if (strcmp(function, unsafe[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

CUresult capture_check(const char *function) {
    int is_whole = strcmp(function, "cuCtxSynchronize") == 0; /* waits for captures, too: never */
    CUresult result = CUDA_SUCCESS;

    if (!is_whole && (mode == CU_STREAM_CAPTURE_MODE_RELAXED || !is_unsafe(function))) {
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&streams_lock);
    if (is_capturing(device_current(), 0)) {
        capture_invalidate();
        result = (CUresult)CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    pthread_mutex_unlock(&streams_lock);
    return result;
}

int capture_forbids(const struct CUstream_st *stream) {
    return stream->is_legacy && is_capturing(stream->device, 1);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *exchanged) {
    CUstreamCaptureMode before = mode;

    BEGIN(DRIVER);
    if ((int)*exchanged < 0 || (int)*exchanged > 2) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    mode = *exchanged;
    *exchanged = before;
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode wanted) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    (void)wanted;

    BEGIN(CONTEXT);
    pthread_mutex_lock(&streams_lock);
    struct CUstream_st *found = stream_find(stream);
    if (found && !found->is_legacy && found->capture == NOT_CAPTURING) {
        found->capture = CAPTURING;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&streams_lock);
    return result;
}

CUresult cuStreamEndCapture(CUstream stream, void **ret_graph) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;

    BEGIN(CONTEXT);
    pthread_mutex_lock(&streams_lock);
    struct CUstream_st *found = stream_find(stream);
    if (found && found->capture != NOT_CAPTURING) {
        result = found->capture == CAPTURING ? CUDA_SUCCESS
                                             : (CUresult)CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        found->capture = NOT_CAPTURING;
        *ret_graph = NULL;
    }
    pthread_mutex_unlock(&streams_lock);
    return result;
}

CUresult cuStreamIsCapturing(CUstream stream, int *ret_status) {
    CUresult result = CUDA_ERROR_INVALID_HANDLE;

    BEGIN(CONTEXT);
    pthread_mutex_lock(&streams_lock);
    const struct CUstream_st *found = stream_find(stream);
    if (found && capture_forbids(found)) {
        result = (CUresult)CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    } else if (found) {
        *ret_status = (int)found->capture;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&streams_lock);
    return result;
}
