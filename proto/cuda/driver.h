/*
 * driver.h - the CUDA driver, loaded when it is first needed
 *
 * libcuda.so.1 is part of NVIDIA's kernel driver, so it is never linked and may well be missing. It
 * is loaded and initialised once per process and stays loaded; libcudart is never touched. A
 * context is the primary one of a device (which PyTorch and all others use as well), pushed around
 * each use by whoever needs one.
 */
#pragma once

#include "abi.h"

#define CUDA_VERSION_MIN 12000 /* of the driver: as cuDriverGetVersion() has it */

struct cuda_driver {
#define FUNCTION(name, symbol, parameters) CUresult(*name) parameters;
#include "functions.def"
#undef FUNCTION
    int version; /* of CUDA that the driver speaks, e.g. 13000 */
    int devices; /* that this process sees; at least 1 */
};

/* The driver, initialised; any thread, the first call may take a second. NULL: *ret_why (static, or
 * valid as long as the process) says why there is none, the same at every call: no library, no
 * device, a symbol missing, too old, a parent that used it before it forked. */
const struct cuda_driver *cuda_driver(const char **ret_why);

/* Whether it is loaded and this process may call it. Does not load it. */
int cuda_driver_is_loaded(void);

/* The driver's name and words for a result, e.g. "CUDA_ERROR_OUT_OF_MEMORY: out of memory". */
#define CUDA_TEXT_SIZE 128
const char *cuda_text(CUresult result, char text[CUDA_TEXT_SIZE]);

/* A UUID as nvidia-smi prints it, "GPU-" and 36 characters. */
#define CUDA_UUID_SIZE 41
const char *cuda_uuid_text(const unsigned char uuid[16], char text[CUDA_UUID_SIZE]);
