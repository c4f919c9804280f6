#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#define FORKED                                                                               \
    "this process is the child of a fork, and its parent used CUDA before it forked: start " \
    "processes with spawn or forkserver, or use CUDA in children only"

static struct cuda_driver driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic pid_t loaded_by; /* 0: not loaded */
static char why[256];           /* empty: it works */

/* NULL, or the symbol that is missing. */
static const char *find_functions(void *library) {
#define FUNCTION(name, symbol, parameters)            \
    *(void **)&driver.name = dlsym(library, #symbol); \
    if (!driver.name) {                               \
        return #symbol;                               \
    }
#include "functions.def"
#undef FUNCTION
    return NULL;
}

static void refuse(const char *what, CUresult result) {
    char text[CUDA_TEXT_SIZE];

    snprintf(why, sizeof why, "%s: %s", what, cuda_text(result, text));
}

static void initialise(void) {
    CUresult result = driver.init(0);

    if (result == CUDA_ERROR_STUB_LIBRARY) {
        snprintf(why, sizeof why, "libcuda.so.1 is the toolkit's stub, not a driver");
        return;
    }
    if (result == CUDA_ERROR_NOT_INITIALIZED) { /* by somebody else in the parent */
        snprintf(why, sizeof why, "%s", FORKED);
        return;
    }
    if (result == CUDA_SUCCESS) {
        result = driver.driver_version(&driver.version);
    }
    if (result == CUDA_SUCCESS && driver.version < CUDA_VERSION_MIN) {
        snprintf(why, sizeof why,
                 "the CUDA driver speaks CUDA %d.%d, and 12.0 is needed: upgrade it",
                 driver.version / 1000, driver.version % 1000 / 10);
        return;
    }
    if (result == CUDA_SUCCESS) {
        result = driver.device_count(&driver.devices);
    }
    if (result == CUDA_ERROR_NO_DEVICE || (result == CUDA_SUCCESS && driver.devices == 0)) {
        snprintf(why, sizeof why,
                 "the CUDA driver sees no device (CUDA_VISIBLE_DEVICES may hide it)");
    } else if (result != CUDA_SUCCESS) {
        refuse("the CUDA driver cannot be initialised", result);
    }
}

/* Never closed: unloading the driver while its threads run is undefined. */
static void load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (!library) {
        snprintf(why, sizeof why, "no CUDA driver: %s", dlerror());
        return;
    }
    const char *missing = find_functions(library);
    if (missing) {
        snprintf(why, sizeof why, "the CUDA driver has no %s: upgrade it", missing);
        return;
    }
    atomic_store(&loaded_by, getpid());
    initialise();
}

const struct cuda_driver *cuda_driver(const char **ret_why) {
    pthread_once(&once, load);
    if (why[0]) {
        *ret_why = why;
        return NULL;
    }
    if (!cuda_driver_is_loaded()) {
        *ret_why = FORKED;
        return NULL;
    }
    return &driver;
}

int cuda_driver_is_loaded(void) {
    return atomic_load(&loaded_by) == getpid();
}

const char *cuda_text(CUresult result, char text[CUDA_TEXT_SIZE]) {
    const char *name = NULL;
    const char *words = NULL;

    if (!driver.error_name || driver.error_name(result, &name) != CUDA_SUCCESS || !name) {
        snprintf(text, CUDA_TEXT_SIZE, "CUDA error %d", (int)result);
        return text;
    }
    driver.error_string(result, &words);
    snprintf(text, CUDA_TEXT_SIZE, "%s: %s", name, words ? words : "no text");
    return text;
}

const char *cuda_uuid_text(const unsigned char uuid[16], char text[CUDA_UUID_SIZE]) {
    char *to = text + sprintf(text, "GPU-");

    for (int i = 0; i < 16; i++) {
        to += sprintf(to, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
    }
    return text;
}
