/* The same three products through OpenBLAS's CBLAS. C = alpha op(A) op(B) + beta C; beta = 1 is how a weight's gradient adds. */
#include <cblas.h>
#include <stdio.h>

#include "cpu.h"

#if defined(PRECISION_FP64)
#define GEMM cblas_dgemm
#else
#define GEMM cblas_sgemm
#endif

void linear_forward_blas(real *y, const real *x, const real *w, int n, int in, int out)
{
    GEMM(CblasRowMajor, CblasNoTrans, CblasTrans, n, out, in, 1, x, in, w, in, 0, y, out);
}

void linear_backward_input_blas(real *dx, const real *dy, const real *w, int n, int in, int out)
{
    GEMM(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, in, out, 1, dy, out, w, in, 0, dx, in);
}

void linear_backward_weight_blas(acc *dw, const real *dy, const real *x, int n, int in, int out)
{
    GEMM(CblasRowMajor, CblasTrans, CblasNoTrans, out, in, n, 1, dy, out, x, in, 1, dw, in);
}

void blas_set_threads(int threads)
{
    openblas_set_num_threads(threads);
}

const char *blas_name(void)
{
    static char text[64];
    snprintf(text, sizeof text, "OpenBLAS, kernel %s", openblas_get_corename());
    return text;
}
