/* Two number types, chosen when the suite is built (make PRECISION=...).
 *
 *   real   what weights and activations are stored in
 *   acc    what sums, master weights, gradients and optimizer state are kept in
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
#else
#error "build with -DPRECISION_FP32 or -DPRECISION_FP64 (make PRECISION=fp32)"
#endif
