/* Two number types, chosen when the suite is built (make PRECISION=...).
 *
 *   real   what weights and activations are stored in
 *   acc    what sums, master weights, gradients and optimizer state are kept in
 *
 * In bf16 only the GPU computes with `real`; the host moves it and converts it, so to C it is two bytes.
 */
#pragma once

#if defined(PRECISION_FP64)
typedef double real;
typedef double acc;
#define PRECISION_NAME "fp64"
#elif defined(PRECISION_FP32)
typedef float real;
typedef float acc;
#define PRECISION_NAME "fp32"
#elif defined(PRECISION_BF16)
#ifdef __CUDACC__
#include <cuda_bf16.h>
typedef __nv_bfloat16 real;
#else
#include <stdint.h>
typedef struct {
    uint16_t bits;
} real;
#endif
typedef float acc;
#define PRECISION_NAME "bf16"
#else
#error "build with -DPRECISION_FP32, -DPRECISION_FP64 or -DPRECISION_BF16 (make PRECISION=fp32)"
#endif

#ifndef __CUDACC__
/* A `real` as the host can compute with it, and the `real` nearest to a number, which bf16 rounds by way of float. */
double real_double(real x);
real real_of(double x);
#endif
