#include "fake.h"

#define DEPTH 32

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread CUcontext stack[DEPTH];
static __thread int depth;

static CUdevice device_of(CUcontext context) {
    for (CUdevice i = 0; device_find(i); i++) {
        if (&device_find(i)->context == context) {
            return i;
        }
    }
    return -1;
}

CUdevice device_current(void) {
    return depth > 0 ? device_of(stack[depth - 1]) : -1;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ret_context, CUdevice device) {
    struct device *found = device_find(device);

    BEGIN(HEALTH);
    if (!found) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    pthread_mutex_lock(&lock);
    found->context.references++;
    pthread_mutex_unlock(&lock);
    *ret_context = &found->context;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    struct device *found = device_find(device);

    BEGIN(DRIVER);
    if (!found) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    pthread_mutex_lock(&lock);
    int references = found->context.references;
    found->context.references -= references > 0;
    pthread_mutex_unlock(&lock);
    if (references == 1) {
        ipc_end(device);
    }
    return references > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *ret_flags, int *ret_active) {
    BEGIN(DRIVER);
    if (!device_find(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *ret_flags = 0;
    pthread_mutex_lock(&lock);
    *ret_active = device_find(device)->context.references > 0;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static int is_active(CUcontext context) {
    pthread_mutex_lock(&lock);
    int active = device_of(context) >= 0 && context->references > 0;
    pthread_mutex_unlock(&lock);
    return active;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
    BEGIN(DRIVER);
    if (!is_active(context) || depth == DEPTH) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *ret_context) {
    BEGIN(DRIVER);
    if (depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    depth--;
    if (ret_context) {
        *ret_context = stack[depth];
    }
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *ret_context) {
    BEGIN(DRIVER);
    *ret_context = depth > 0 ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

/* Replaces the top; NULL takes it away. */
CUresult cuCtxSetCurrent(CUcontext context) {
    BEGIN(DRIVER);
    if (context && !is_active(context)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    depth -= depth > 0;
    if (context) {
        stack[depth++] = context;
    }
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *ret_device) {
    BEGIN(CONTEXT);
    *ret_device = device_current();
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    BEGIN(CONTEXT);
    streams_wait(device_current());
    return call_context_is_lost() ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}
