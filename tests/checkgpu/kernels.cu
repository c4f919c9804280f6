/*
 * kernels.cu - slow kernels; kernels.ptx is made of it:
 *
 *     nvcc -ptx -arch=compute_75 kernels.cu, then its .version lowered to 6.3 for older drivers
 */
typedef unsigned long long u64;
typedef unsigned char u8;

__device__ static u64 now_ns() {
    u64 ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

/* Waits, then fills. */
extern "C" __global__ void slow_fill(u8 *to, u64 nbytes, u64 value, u64 ns) {
    u64 end = now_ns() + ns;

    while (now_ns() < end) {
    }
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < nbytes;
         i += gridDim.x * (u64)blockDim.x) {
        to[i] = (u8)value;
    }
}

/* Reads all the time, and at the end copies what it sees. */
extern "C" __global__ void slow_read(const volatile u8 *from, u64 nbytes, u8 *to, u64 ns) {
    u64 end = now_ns() + ns;

    do {
        for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < nbytes;
             i += gridDim.x * (u64)blockDim.x) {
            to[i] = from[i];
        }
    } while (now_ns() < end);
}
