/* Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2,
 * 3", SC 2011).
 *
 * Why: a draw is a pure function of (seed, stream, index). So each rank draws the shards that it holds, in any order,
 * and gets the values that a single device draws.
 *
 * A draw does not call libm and has at most 24 significant bits. So CPU and GPU, fp32 and fp64 builds draw equal
 * values.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t word[4];
} Philox;

/* One block of 128 random bits. */
Philox philox(uint64_t key, uint64_t counter_low, uint64_t counter_high);

/* The stream for a name such as "model.norm.weight" or "data": its FNV-1a hash, 64 bits. */
uint64_t rng_stream(const char *name);

/* Uniform in [0, 1), a multiple of 2^-24. */
double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index);

/* Uniform in {0, ..., n-1}; n > 0. */
uint64_t rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n);

/* Nearly normal, with mean 0 and standard deviation `std`: the centred sum of eight 16-bit uniforms (Irwin-Hall), which
 * never exceeds 4.9 standard deviations. Every build rounds it to fp32. */
float rng_normal(uint64_t seed, uint64_t stream, uint64_t index, double std);
