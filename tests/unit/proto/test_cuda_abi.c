/* Our declarations of the driver's interface, compared with NVIDIA's (cuda_h.c). */
#include "abi.h"
#include "fixture.h"

extern const long long *const cuda_h_values;
extern const int cuda_h_version;

static const struct {
    long long value;
    const char *name;
} ours[] = {
#define VALUE(expression) {(long long)(expression), #expression},
#include "abi_values.def"
#undef VALUE
};

TEST(our_values_are_those_of_cuda_h) {
    if (!cuda_h_values) {
        printf("our_values_are_those_of_cuda_h: NOT COMPARED, no cuda.h under /usr/local/cuda* or "
               "$CUDA_HOME\n");
        fflush(stdout);
        return;
    }
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        if (ours[i].value != cuda_h_values[i]) {
            TEST_FAILED("%s is %lld in abi.h and %lld in cuda.h of CUDA %d", ours[i].name,
                        ours[i].value, cuda_h_values[i], cuda_h_version);
        }
    }
}

/* As on every platform that CUDA has; so a machine without a toolkit checks something, too. */
_Static_assert(sizeof(CUuuid) == 16 && sizeof(CUipcMemHandle) == 64, "fixed by the interface");
_Static_assert(sizeof(CUmemLocation) == 8 && sizeof(CUmemAccessDesc) == 12, "the same");
_Static_assert(sizeof(CUmemAllocationProp) == 32, "the same");
_Static_assert(offsetof(CUmemAllocationProp, location) == 8, "the same");
_Static_assert(offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable) == 25, "the same");
