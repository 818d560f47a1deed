/* Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2,
 * 3", SC 2011).
 *
 * Why: a draw is a pure function of (seed, stream, index). So any rank can draw any shard of any parameter where it
 * lives, in any order, and gets what a single device would have drawn.
 *
 * No draw calls libm, and none has more than 24 significant bits: CPU and GPU, fp32 and fp64 start from equal values.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t word[4];
} Philox;

/* One block of 128 random bits. */
Philox philox(uint64_t key, uint64_t counter_low, uint64_t counter_high);

/* The stream of a name: "model.norm.weight", "data". FNV-1a, 64 bits. */
uint64_t rng_stream(const char *name);

/* Uniform in [0, 1), a multiple of 2^-24. */
double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index);

/* Uniform in {0, ..., n-1}; n > 0. */
uint64_t rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n);

/* Mean 0, standard deviation `std`, very nearly normal: the centred sum of eight 16-bit uniforms (Irwin-Hall), cut at
 * 4.9 standard deviations. Rounded to fp32 in every build. */
float rng_normal(uint64_t seed, uint64_t stream, uint64_t index, double std);
