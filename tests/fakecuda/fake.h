/*
 * fake.h - the parts of the fake driver (README.md) and what they know of each other
 *
 * call.c: each call's beginning; device.c, context.c; ledger.c: memory that processes share;
 * memory.c: what is mapped in this one; vmm.c, ipc.c: the two kinds of memory; stream.c: threads
 * that do work; work.c: the calls that give it to them; capture.c; event.c.
 */
#pragma once

#include <pthread.h>
#include <stdint.h>

#include "abi.h"

#pragma GCC visibility push(default)
#define FUNCTION(name, symbol, parameters) CUresult symbol parameters;
#include "functions.def"
#include "more.def"
#undef FUNCTION
#pragma GCC visibility pop

enum {
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CU_STREAM_NON_BLOCKING = 1,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_MEMORYTYPE_DEVICE = 2,
};

#define DEVICES_MAX 8
#define BLOCK       ((size_t)2 << 20) /* the granularity */

/* ------------------------------------------------------------------------------------- call.c */

enum needs {
    NOTHING, /* may be called at any time */
    DRIVER,  /* cuInit() */
    HEALTH,  /* and that no context is lost */
    CONTEXT, /* and that one is current */
};

/* First in every function: traces, injects faults, checks. Returns from the function if it may not
 * go on. */
#define BEGIN(needs)                                         \
    do {                                                     \
        CUresult begin_result = call_begin(__func__, needs); \
        if (begin_result != CUDA_SUCCESS) {                  \
            return begin_result;                             \
        }                                                    \
    } while (0)

CUresult call_begin(const char *function, enum needs needs);
void call_lose_context(void); /* an error that stays */
int call_context_is_lost(void);

/* ---------------------------------------------------------------- device.c, context.c */

struct CUctx_st {
    int references;
};

struct device {
    CUuuid uuid;
    size_t nbytes;
    int has_vmm, has_descriptors, has_rdma;
    struct CUctx_st context; /* the primary one */
};

CUresult devices_read(void);                 /* from the environment */
struct device *device_find(CUdevice device); /* NULL: none */
CUdevice device_of_uuid(const CUuuid *uuid); /* -1: none, or not visible */
CUdevice device_current(void);               /* -1: this thread has no current context */

/* ----------------------------------------------------------------------------------- ledger.c */

struct identity { /* of memory, in all processes */
    CUuuid uuid;
    int pid; /* of its maker */
    int number;
};

/* Its descriptor, or -1 and errno: ENOMEM, the device is full; else the host is. */
int ledger_create(const struct device *device, size_t nbytes, struct identity *ret_identity);
int ledger_open(const struct identity *identity); /* -1: nobody has it, or it was freed */
void ledger_free(
    const struct identity *identity); /* poisons it if others have it; caller has closed it */
size_t ledger_used(const CUuuid *uuid);
/* Whether a descriptor is memory of ours, and of which device. */
int ledger_identify(int fd, CUuuid *ret_uuid, size_t *ret_nbytes);

/* ----------------------------------------------------------------------------------- memory.c */

struct range { /* addresses of this process */
    enum { RESERVED, MAPPED, ALLOCATED, IMPORTED } kind;
    char *host;
    size_t nbytes;
    CUdevice device;
    int access;               /* of CUmemAccess_flags */
    struct identity identity; /* ALLOCATED, IMPORTED */
    int count;                /* IMPORTED: opened; ALLOCATED: pieces in use */
    size_t used;              /* ALLOCATED: of its bytes, by pieces */
    struct range *next;
};

CUdeviceptr device_address(const char *host);
char *host_address(CUdeviceptr address);

/* Work reads the table, whoever changes it writes. */
extern pthread_rwlock_t memory_lock;
extern struct range *memory_ranges;

/* All below: with the lock. */
struct range *range_add(const struct range *range);               /* a copy */
void range_remove(struct range *range);                           /* frees it */
struct range *range_covering(CUdeviceptr address, size_t nbytes); /* not a RESERVED one; or NULL */
/* Where the host has it, or NULL unless all of it may be accessed so (1 read, 3 write). */
char *range_host(CUdeviceptr address, size_t nbytes, int access);
/* Maps a descriptor's memory at its own address; NULL: cannot. */
char *range_map_anywhere(int fd, size_t nbytes);

/* ------------------------------------------------------------------------------------- ipc.c */

/* Frees what was allocated in the context of the device. */
void ipc_end(CUdevice device);

/* ----------------------------------------------------------------------- stream.c, capture.c */

struct work {
    enum { COPY_IN, COPY_OUT, COPY, FILL, RECORD, WAIT } kind;
    CUdeviceptr to, from;
    void *host; /* COPY_IN: source, COPY_OUT: destination */
    size_t nbytes;
    unsigned char value;
    int delay_ms;
    CUevent event;
    unsigned long wanted; /* WAIT: the record it waits for */
    unsigned long order;  /* among all work of the process */
    struct work *next;
};

struct CUstream_st {
    CUdevice device;
    int is_legacy, is_blocking, is_destroyed, has_thread;
    enum { NOT_CAPTURING, CAPTURING, INVALIDATED } capture;
    struct work *first; /* stays while it runs */
    struct work **last;
    struct CUstream_st *next;
};

struct CUevent_st {
    unsigned long recorded, completed; /* how often */
    int users;
    struct CUevent_st *next;
};

extern pthread_mutex_t streams_lock;
extern pthread_cond_t streams_changed;
extern struct CUstream_st *streams;

struct CUstream_st *stream_find(CUstream stream); /* with the lock; NULL: none */
/* Appends a copy of `work`. */
CUresult stream_give(CUstream stream, const struct work *work);
CUresult stream_wait(CUstream stream);                 /* for all it was given */
void streams_wait(CUdevice device);                    /* for all work of a device */
void event_unuse(CUevent event);                       /* with the lock */
CUresult capture_check(const char *function);          /* whether a capture forbids it */
void capture_invalidate(void);                         /* with the lock: all of this device */
int capture_forbids(const struct CUstream_st *stream); /* with the lock: it is the legacy one, and a
                                                        * blocking one captures */
extern int delay_ms;
