/* Small functions that several kernels share. */
#pragma once

#include "cuda.h"

static __device__ __forceinline__ acc to_acc(real x)
{
    return (acc)x;
}

static __device__ __forceinline__ real to_real(acc x)
{
    return (real)x;
}

/* The sum over a warp. Every lane gets it. The order of the additions is fixed. */
template <typename T> static __device__ __forceinline__ T warp_sum(T x)
{
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

template <typename T> static __device__ __forceinline__ T warp_max(T x)
{
    for (int distance = 16; distance > 0; distance /= 2) {
        T other = __shfl_xor_sync(0xffffffffu, x, distance);
        x = other > x ? other : x;
    }
    return x;
}

/* The sum over a block of at most 1024 threads. Every thread gets it. `shared` is shared memory for 32 values; the
 * caller may reuse it after the next __syncthreads(). */
template <typename T> static __device__ __forceinline__ T block_sum(T x, T *shared)
{
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    T lane = threadIdx.x % 32 < (blockDim.x + 31) / 32 ? shared[threadIdx.x % 32] : T(0);
    return warp_sum(lane);
}

/* V values that one instruction loads or stores; at most 16 bytes. */
template <int V> struct alignas(V * sizeof(real)) Pack {
    real value[V];
};
enum { PACK = 16 / sizeof(real) };

/* Can rows of `width` reals at these four addresses be read in packs? */
static inline bool packs_fit(int width, const void *a, const void *b, const void *c, const void *d)
{
    size_t bits = (size_t)a | (size_t)b | (size_t)c | (size_t)d;
    return width % PACK == 0 && bits % 16 == 0;
}

/* The number of blocks for n elements, one a thread. It is limited, so kernels loop over the rest. */
static inline unsigned blocks_for(size_t n, int threads)
{
    size_t blocks = (n + threads - 1) / threads;
    return (unsigned)(blocks < 1 ? 1 : blocks > 65535u * 8 ? 65535u * 8 : blocks);
}

/* In bf16 the fast exponential is exact enough. The fp32 kernels must agree with the CPU's to 1e-5, so they need
 * expf. */
#if defined(PRECISION_BF16)
#define EXP_OF __expf
#else
#define EXP_OF expf
#endif
static __device__ __forceinline__ float exp_of(float x)
{
    return EXP_OF(x);
}
static __device__ __forceinline__ double exp_of(double x)
{
    return exp(x);
}
