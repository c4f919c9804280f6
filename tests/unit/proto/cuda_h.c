/* NVIDIA's cuda.h, where a toolkit is installed: its prototypes must be ours, its values are told
 * to test_cuda_abi.c. Only cuda.h is included here, so our abi.h cannot hide a difference. */
#include <stddef.h>
#include <stdint.h>

extern const long long *const cuda_h_values; /* of abi_values.def; NULL: there is no cuda.h */
extern const int cuda_h_version;

#if __has_include(<cuda.h>)
#    include <cuda.h>

#    define FUNCTION(name, symbol, parameters)                                                \
        _Static_assert(__builtin_types_compatible_p(__typeof__(symbol), CUresult parameters), \
                       #symbol " is declared otherwise in cuda.h");
#    include "functions.def"
#    undef FUNCTION

#    define VALUE(expression) (long long)(expression),
static const long long values[] = {
#    include "abi_values.def"
};
const long long *const cuda_h_values = values;
const int cuda_h_version = CUDA_VERSION;
#else
const long long *const cuda_h_values = NULL;
const int cuda_h_version = 0;
#endif
