/* The core of the random numbers, shared by rng.c and the CUDA kernels, because the GPU must draw the same bits as the
 * host. All other files include rng.h. */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define HOST_DEVICE static __host__ __device__ inline
#else
#define HOST_DEVICE static inline
#endif

/* The ten rounds of Philox4x32-10 on the counter c[4], in place, with the key (k0, k1). */
HOST_DEVICE void philox_rounds(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0];
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t c1 = c[1], c3 = c[3];
        c[0] = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* the golden ratio */
        k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
}

/* The sum of the eight 16-bit halves of a block, minus its mean. */
HOST_DEVICE int32_t philox_centred(const uint32_t word[4])
{
    int32_t sum = 0;
    for (int w = 0; w < 4; w++) sum += (int32_t)(word[w] >> 16) + (int32_t)(word[w] & 0xffff);
    return sum - 262140; /* the mean: 8 * 32767.5 */
}

/* The standard deviation of philox_centred: the square root of 8 (65536^2 - 1) / 12. */
#define PHILOX_CENTRED_STD 53509.91992145008
