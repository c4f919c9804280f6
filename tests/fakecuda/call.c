#include "fake.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RULES_MAX 16

struct rule {
    char function[48];
    int from; /* the call that fails, counted from 1 */
    int on;   /* also all later ones */
    int error;
    atomic_int calls;
};

static pthread_mutex_t rules_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rule rules[RULES_MAX];
static int rule_count;
static _Atomic pid_t owner; /* who called cuInit() */
static atomic_int is_lost;
static atomic_int is_ending;
static pthread_once_t once = PTHREAD_ONCE_INIT;
int delay_ms;

static void read_rules(const char *text) {
    pthread_mutex_lock(&rules_lock);
    rule_count = 0;
    while (text && *text && rule_count < RULES_MAX) {
        struct rule *rule = &rules[rule_count];
        int nbytes = 0;
        char on = 0;

        atomic_store(&rule->calls, 0);
        if (sscanf(text, "%47[^:]:%d%n", rule->function, &rule->from, &nbytes) != 2 ||
            (sscanf(text + nbytes, ":%d", &rule->error) != 1 &&
             sscanf(text + nbytes, "%c:%d", &on, &rule->error) != 2)) {
            fprintf(stderr, "fakecuda: cannot read FAKECUDA_FAIL at \"%s\"\n", text);
            abort();
        }
        rule->on = on == '+';
        rule_count++;
        text = strchr(text, ',');
        text = text ? text + 1 : NULL;
    }
    pthread_mutex_unlock(&rules_lock);
}

static void read_environment(void) {
    const char *delay = getenv("FAKECUDA_DELAY_MS");

    read_rules(getenv("FAKECUDA_FAIL"));
    delay_ms = delay ? atoi(delay) : 0;
}

static void trace(const char *function) {
    const char *path = getenv("FAKECUDA_TRACE");
    char line[80];

    if (path) {
        int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        int nbytes = snprintf(line, sizeof line, "%d %s\n", (int)getpid(), function);
        if (fd < 0 || write(fd, line, (size_t)nbytes) != nbytes) {
            abort();
        }
        close(fd);
    }
}

static CUresult injected(const char *function) {
    CUresult result = CUDA_SUCCESS;

    pthread_mutex_lock(&rules_lock);
    for (int i = 0; i < rule_count; i++) {
        struct rule *rule = &rules[i];
        if (strcmp(rule->function, function) == 0) {
            int call = atomic_fetch_add(&rule->calls, 1) + 1;
            if (call == rule->from || (rule->on && call > rule->from)) {
                result = (CUresult)rule->error;
            }
        }
    }
    pthread_mutex_unlock(&rules_lock);
    if ((int)result == -SIGKILL) {
        raise(SIGKILL);
    }
    if (result == CUDA_ERROR_ILLEGAL_ADDRESS) {
        call_lose_context();
    }
    return result;
}

CUresult call_begin(const char *function, enum needs needs) {
    pid_t pid = atomic_load(&owner);

    pthread_once(&once, read_environment);
    trace(function);
    if (pid && pid != getpid()) {
        return needs == NOTHING ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    }
    if (atomic_load(&is_ending) && needs != NOTHING) {
        return CUDA_ERROR_DEINITIALIZED;
    }
    CUresult result = injected(function);
    if (result != CUDA_SUCCESS || needs == NOTHING) {
        return result;
    }
    if (!pid) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (needs >= HEALTH && call_context_is_lost()) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    if (needs == CONTEXT && device_current() < 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return capture_check(function);
}

void call_lose_context(void) {
    atomic_store(&is_lost, 1);
}

int call_context_is_lost(void) {
    return atomic_load(&is_lost);
}

static void end(void) {
    atomic_store(&is_ending, 1);
}

CUresult cuInit(unsigned int flags) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pid_t pid = atomic_load(&owner);

    BEGIN(NOTHING);
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (pid) {
        return pid == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    }
    pthread_mutex_lock(&lock);
    CUresult result = atomic_load(&owner) ? CUDA_SUCCESS : devices_read();
    if (result == CUDA_SUCCESS && !atomic_load(&owner)) {
        atomic_store(&owner, getpid());
        atexit(end);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuDriverGetVersion(int *ret_version) {
    const char *version = getenv("FAKECUDA_VERSION");

    BEGIN(NOTHING);
    *ret_version = version ? atoi(version) : 13000;
    return CUDA_SUCCESS;
}

static const struct {
    int error;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM",
     "OS call failed or operation not supported on this OS"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult describe(int error, const char **ret_name, const char **ret_text) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (errors[i].error == error) {
            *ret_name = errors[i].name;
            *ret_text = errors[i].text;
            return CUDA_SUCCESS;
        }
    }
    *ret_name = *ret_text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult error, const char **ret_text) {
    const char *text;

    return describe(error, ret_text, &text);
}

CUresult cuGetErrorString(CUresult error, const char **ret_text) {
    const char *name;

    return describe(error, &name, ret_text);
}

CUresult fakecuda_fail(const char *text) {
    pthread_once(&once, read_environment);
    read_rules(text);
    return CUDA_SUCCESS;
}

CUresult fakecuda_delay(int milliseconds) {
    pthread_once(&once, read_environment);
    delay_ms = milliseconds;
    return CUDA_SUCCESS;
}
