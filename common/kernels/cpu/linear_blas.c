/* The three products of linear_naive.c through OpenBLAS, which computes C = alpha op(A) op(B) + beta C. The weight's
 * gradient adds to dw by beta = 1.
 *
 * Each OpenMP thread computes a part of the result with one call of OpenBLAS, which runs on that thread alone. If
 * OpenBLAS used its own pool of threads, the two pools would wait for each other's cores. Measured on two cores: 90
 * GFLOP/s in a step with two pools, 160 with one.
 */
#include <cblas.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cpu.h"

#if defined(PRECISION_FP64)
#define GEMM cblas_dgemm
#else
#define GEMM cblas_sgemm
#endif

#if defined(__x86_64__)
#define CPU_HAS(feature) __builtin_cpu_supports(feature)
#else
#define CPU_HAS(feature) 0
#endif

/* C[m, n] = op(A)[m, k] op(B)[k, n] + beta C. Each thread computes some rows of C and reads all of op(B). If C is wider
 * than high, each thread computes some columns and reads all of op(A). So every thread reads the smaller operand
 * whole. */
static void gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, const real *a, int lda, const real *b,
                 int ldb, real beta, real *c, int ldc)
{
    int parts = cpu_threads();
    bool by_row = m >= n;
    size_t a_step = ta == CblasNoTrans ? (size_t)lda : 1; /* from one row of op(A) to the next */
    size_t b_step = tb == CblasNoTrans ? 1 : (size_t)ldb; /* from one column of op(B) to the next */
#pragma omp parallel for
    for (int p = 0; p < parts; p++) {
        int length = by_row ? m : n;
        int begin = (int)((long)length * p / parts), end = (int)((long)length * (p + 1) / parts);
        if (by_row)
            GEMM(CblasRowMajor, ta, tb, end - begin, n, k, 1, a + begin * a_step, lda, b, ldb, beta,
                 c + (size_t)begin * ldc, ldc);
        else
            GEMM(CblasRowMajor, ta, tb, m, end - begin, k, 1, a, lda, b + begin * b_step, ldb, beta, c + begin, ldc);
    }
}

void linear_forward_blas(real *y, const real *x, const real *w, int n, int in, int out)
{
    gemm(CblasNoTrans, CblasTrans, n, out, in, x, in, w, in, 0, y, out);
}

void linear_backward_input_blas(real *dx, const real *dy, const real *w, int n, int in, int out)
{
    gemm(CblasNoTrans, CblasNoTrans, n, in, out, dy, out, w, in, 0, dx, in);
}

void linear_backward_weight_blas(acc *dw, const real *dy, const real *x, int n, int in, int out)
{
    gemm(CblasTrans, CblasNoTrans, out, in, n, dy, out, x, in, 1, dw, in);
}

void blas_use_one_thread(void)
{
    openblas_set_num_threads(1);
}

/* OpenBLAS falls back to its kernels named Prescott on a processor that it does not know. Then the text names faster
 * ones. */
const char *blas_name(void)
{
    static char text[96];
    const char *kernel = openblas_get_corename();
    const char *better = CPU_HAS("avx512f") ? "SkylakeX" : CPU_HAS("avx2") ? "Haswell" : NULL;
    int length = snprintf(text, sizeof text, "OpenBLAS, kernel %s", kernel);
    if (better && strcmp(kernel, "Prescott") == 0)
        snprintf(text + length, sizeof text - (size_t)length, "; OPENBLAS_CORETYPE=%s is faster", better);
    return text;
}
