/* What a toolkit ships to link with where no driver is: every function says so. */
#include "abi.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC visibility push(default)
#define FUNCTION(name, symbol, parameters) \
    CUresult symbol parameters;            \
    CUresult symbol parameters {           \
        return CUDA_ERROR_STUB_LIBRARY;    \
    }
#include "functions.def"
