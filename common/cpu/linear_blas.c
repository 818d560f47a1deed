/* The same three products through OpenBLAS. C = alpha op(A) op(B) + beta C; beta = 1 is how a weight's gradient adds.
 *
 * OpenBLAS runs each call on one thread, and OpenMP shares out the rows of the result. Two pools of threads, OpenBLAS's
 * own and OpenMP's, would wait for each other's cores: measured on two cores, 90 GFLOP/s a step against 160.
 */
#include <cblas.h>
#include <stdio.h>

#include "cpu.h"

#if defined(PRECISION_FP64)
#define GEMM cblas_dgemm
#else
#define GEMM cblas_sgemm
#endif

/* Rows [*begin, *end) of part p of `parts`. */
static void share(int rows, int p, int parts, int *begin, int *end)
{
    *begin = (int)((long)rows * p / parts);
    *end = (int)((long)rows * (p + 1) / parts);
}

void linear_forward_blas(real *y, const real *x, const real *w, int n, int in, int out)
{
    int parts = cpu_threads(), begin, end;
#pragma omp parallel for private(begin, end)
    for (int p = 0; p < parts; p++) {
        share(n, p, parts, &begin, &end);
        GEMM(CblasRowMajor, CblasNoTrans, CblasTrans, end - begin, out, in, 1, x + (size_t)begin * in, in, w, in, 0,
             y + (size_t)begin * out, out);
    }
}

void linear_backward_input_blas(real *dx, const real *dy, const real *w, int n, int in, int out)
{
    int parts = cpu_threads(), begin, end;
#pragma omp parallel for private(begin, end)
    for (int p = 0; p < parts; p++) {
        share(n, p, parts, &begin, &end);
        GEMM(CblasRowMajor, CblasNoTrans, CblasNoTrans, end - begin, in, out, 1, dy + (size_t)begin * out, out, w, in, 0,
             dx + (size_t)begin * in, in);
    }
}

void linear_backward_weight_blas(acc *dw, const real *dy, const real *x, int n, int in, int out)
{
    int parts = cpu_threads(), begin, end;
#pragma omp parallel for private(begin, end)
    for (int p = 0; p < parts; p++) {
        share(out, p, parts, &begin, &end);
        GEMM(CblasRowMajor, CblasTrans, CblasNoTrans, end - begin, in, n, 1, dy + begin, out, x, in, 1,
             dw + (size_t)begin * in, in);
    }
}

void blas_use_one_thread(void)
{
    openblas_set_num_threads(1);
}

const char *blas_name(void)
{
    static char text[64];
    snprintf(text, sizeof text, "OpenBLAS, kernel %s", openblas_get_corename());
    return text;
}
