/* The two number types of a build (make PRECISION=...).
 *
 *   real   the type of weights and activations
 *   acc    the type of sums, master weights, gradients and optimizer state
 *
 * In bf16 builds only the GPU computes with `real`. The host only copies and converts it, so in C it is a struct of two
 * bytes.
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
/* The value of x, for computing on the host. */
double real_double(real x);

/* The `real` nearest to x. In bf16 builds x is rounded to float first, then to bf16. */
real real_of(double x);
#endif
