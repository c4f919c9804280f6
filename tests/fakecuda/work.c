/* Copies, fills and kernels: checked here as far as the driver does at once, done by the streams.
 */
#include "fake.h"

static int is_mapped(CUdeviceptr address, size_t nbytes) {
    pthread_rwlock_rdlock(&memory_lock);
    int is = range_covering(address, nbytes) != NULL;
    pthread_rwlock_unlock(&memory_lock);
    return is;
}

static CUresult give(CUstream stream, struct work work) {
    int writes = work.kind != COPY_OUT;
    int reads = work.kind == COPY_OUT || work.kind == COPY;

    if (work.nbytes == 0) {
        return CUDA_SUCCESS;
    }
    if ((writes && !is_mapped(work.to, work.nbytes)) ||
        (reads && !is_mapped(work.from, work.nbytes))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    work.delay_ms = work.delay_ms ? work.delay_ms : delay_ms;
    return stream_give(stream, &work);
}

static CUresult give_and_wait(struct work work) {
    CUresult result = give(CU_STREAM_LEGACY, work);

    return result ? result : stream_wait(CU_STREAM_LEGACY);
}

static struct work copy_in(CUdeviceptr to, const void *from, size_t nbytes) {
    return (struct work){.kind = COPY_IN, .to = to, .host = (void *)from, .nbytes = nbytes};
}

static struct work copy_out(void *to, CUdeviceptr from, size_t nbytes) {
    return (struct work){.kind = COPY_OUT, .host = to, .from = from, .nbytes = nbytes};
}

static struct work copy(CUdeviceptr to, CUdeviceptr from, size_t nbytes) {
    return (struct work){.kind = COPY, .to = to, .from = from, .nbytes = nbytes};
}

static struct work fill(CUdeviceptr to, unsigned char value, size_t nbytes) {
    return (struct work){.kind = FILL, .to = to, .value = value, .nbytes = nbytes};
}

/* The host's bytes are touched when the work runs: as with pinned memory, for which nobody waits.
 */
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t nbytes, CUstream stream) {
    BEGIN(CONTEXT);
    return give(stream, copy_in(to, from, nbytes));
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t nbytes, CUstream stream) {
    BEGIN(CONTEXT);
    return give(stream, copy_out(to, from, nbytes));
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t nbytes, CUstream stream) {
    BEGIN(CONTEXT);
    return give(stream, copy(to, from, nbytes));
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t nbytes, CUstream stream) {
    BEGIN(CONTEXT);
    return give(stream, fill(to, value, nbytes));
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t nbytes) {
    BEGIN(CONTEXT);
    return give_and_wait(copy_in(to, from, nbytes));
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t nbytes) {
    BEGIN(CONTEXT);
    return give_and_wait(copy_out(to, from, nbytes));
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t nbytes) {
    BEGIN(CONTEXT);
    return give_and_wait(copy(to, from, nbytes));
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t nbytes) {
    BEGIN(CONTEXT);
    return give_and_wait(fill(to, value, nbytes));
}

/* A kernel that computes for `milliseconds` and then writes; addresses are looked at only then. */
CUresult fakecuda_launch(CUstream stream, CUdeviceptr to, size_t nbytes, unsigned char value,
                         int milliseconds) {
    BEGIN(CONTEXT);
    struct work work = fill(to, value, nbytes);

    work.delay_ms = milliseconds;
    return stream_give(stream, &work);
}

/* One that reads, slowly, and gives the host what it has seen. */
CUresult fakecuda_read(CUstream stream, CUdeviceptr from, size_t nbytes, int milliseconds,
                       void *to) {
    BEGIN(CONTEXT);
    struct work work = copy_out(to, from, nbytes);

    work.delay_ms = milliseconds;
    return stream_give(stream, &work);
}
