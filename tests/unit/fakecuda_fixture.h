/*
 * fakecuda_fixture.h - the fake CUDA driver (tests/fakecuda) in a C test
 *
 * `make unit` runs tests with it and with a folder for its memory; so this is what dlopen() finds.
 */
#pragma once

#include <dlfcn.h>

#include "driver.h"
#include "fixture.h"

/* What only tests call; filled by given_driver(). */
static struct {
#define FUNCTION(name, symbol, parameters) CUresult(*symbol) parameters;
#include "more.def"
#undef FUNCTION
} fake;

/* The driver, initialised; set the environment before. */
static inline const struct cuda_driver *given_driver(void) {
    const char *why = "";
    const struct cuda_driver *driver = cuda_driver(&why);

    if (!driver) {
        TEST_FAILED("no driver: %s", why);
    }
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
#define FUNCTION(name, symbol, parameters)                                        \
    *(void **)&fake.symbol = dlsym(library, #symbol);                             \
    if (!fake.symbol) {                                                           \
        TEST_FAILED("this libcuda.so.1 is not the fake one: it has no " #symbol); \
    }
#include "more.def"
#undef FUNCTION
    dlclose(library);
    return driver;
}

/* The same, with the primary context of device 0 current in this thread. */
static inline const struct cuda_driver *given_context(void) {
    const struct cuda_driver *driver = given_driver();
    CUcontext context;

    EXPECT_EQ(CUDA_SUCCESS, driver->context_retain(&context, 0));
    EXPECT_EQ(CUDA_SUCCESS, driver->context_push(context));
    return driver;
}

/* Bytes of device 0 that no process has. */
static inline size_t free_bytes(void) {
    size_t left, total;

    EXPECT_EQ(CUDA_SUCCESS, fake.cuMemGetInfo_v2(&left, &total));
    return left;
}
