/* RMSNorm, fused with the residual add before it. */
#include <math.h>

#include "cpu.h"

void residual_norm_forward(real *sum, real *y, acc *rstd, const real *x, const real *delta, const real *w, double eps,
                           int n, int width)
{
#pragma omp parallel for
    for (int i = 0; i < n; i++) {
        const real *xi = x + (size_t)i * width; /* [C] */
        real *si = sum + (size_t)i * width;     /* [C] */
        real *yi = y + (size_t)i * width;       /* [C] */
        if (delta) {
            const real *di = delta + (size_t)i * width;
            for (int c = 0; c < width; c++) si[c] = xi[c] + di[c];
        } else if (si != xi) {
            for (int c = 0; c < width; c++) si[c] = xi[c];
        }
        acc squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int c = 0; c < width; c++) squares += si[c] * si[c];
        rstd[i] = (acc)(1 / sqrt(squares / width + eps));
        for (int c = 0; c < width; c++) yi[c] = si[c] * rstd[i] * w[c];
    }
}

/* With u = sum rstd (so y = u w) and du = dy w:  dsum = rstd (du - u mean_c(du u)). */
void residual_norm_backward(real *dx, acc *dw, const real *dy, const real *sum, const acc *rstd, const real *w, int n,
                            int width)
{
#pragma omp parallel for
    for (int i = 0; i < n; i++) {
        const real *dyi = dy + (size_t)i * width, *si = sum + (size_t)i * width; /* [C] */
        real *dxi = dx + (size_t)i * width;                                      /* [C] */
        acc mean = 0;
#pragma omp simd reduction(+ : mean)
        for (int c = 0; c < width; c++) mean += dyi[c] * w[c] * si[c];
        mean *= rstd[i] / width; /* now mean_c(du u) */
        for (int c = 0; c < width; c++) dxi[c] += rstd[i] * (dyi[c] * w[c] - si[c] * rstd[i] * mean);
    }

    enum { COLUMNS = 64 }; /* dw sums over rows, so each thread takes columns */
#pragma omp parallel for
    for (int c0 = 0; c0 < width; c0 += COLUMNS) {
        int c1 = c0 + COLUMNS < width ? c0 + COLUMNS : width;
        for (int i = 0; i < n; i++)
            for (int c = c0; c < c1; c++) dw[c] += dy[(size_t)i * width + c] * sum[(size_t)i * width + c] * rstd[i];
    }
}
