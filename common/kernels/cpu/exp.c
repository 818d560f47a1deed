/* The one file compiled with -ffast-math: it lets the compiler call the C library's vector exponential. The callers
 * pass no infinities that they need back: masked entries are set to zero by them, not by exp(-inf). */
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
