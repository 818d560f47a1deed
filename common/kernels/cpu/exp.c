/* The only file compiled with -ffast-math, which lets the compiler call the C library's vector exponential. With this
 * flag exp(-inf) need not be 0. So callers pass no infinities; attention writes the zeros of masked entries itself. */
#include "cpu.h"

#include <math.h>

#if defined(PRECISION_FP64)
#define EXP exp
#else
#define EXP expf
#endif

void cpu_exp(real *y, const real *x, int n)
{
    for (int i = 0; i < n; i++) y[i] = EXP(x[i]);
}
