/* Matrix products through cuBLASLt, accumulated in `acc`.
 *
 * cuBLASLt is column-major, where a row-major [rows, cols] is its own transpose: y = x w^T is asked for as
 * y^T = w x^T, and so on. A plan (layouts and the algorithm that the heuristic names first) is made once per shape and
 * kept, so that the same command always runs the same kernels. */
#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

#define BLAS_CHECK(call)                                                                                               \
    do {                                                                                                               \
        cublasStatus_t status_ = (call);                                                                               \
        if (status_ != CUBLAS_STATUS_SUCCESS)                                                                          \
            fatal("%s:%d: %s: %s", __FILE__, __LINE__, #call, cublasLtGetStatusString(status_));                       \
    } while (0)

#if defined(PRECISION_FP64)
static const cudaDataType_t REAL = CUDA_R_64F, ACC = CUDA_R_64F;
static const cublasComputeType_t COMPUTE = CUBLAS_COMPUTE_64F;
#elif defined(PRECISION_FP32)
static const cudaDataType_t REAL = CUDA_R_32F, ACC = CUDA_R_32F;
static const cublasComputeType_t COMPUTE = CUBLAS_COMPUTE_32F;
#else
static const cudaDataType_t REAL = CUDA_R_16BF, ACC = CUDA_R_32F;
static const cublasComputeType_t COMPUTE = CUBLAS_COMPUTE_32F;
#endif

enum { WORKSPACE = 64 << 20 };

/* What a plan is good for: D[m, n] = op(A) op(B) + beta D, column-major, at addresses aligned like these. */
typedef struct {
    int m, n, k, lda, ldb, ldd;
    bool transpose_a, transpose_b, adds; /* adds: beta is 1 and D is acc, else 0 and real */
    int align_a, align_b, align_d;
} Shape;

typedef struct {
    Shape shape;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
} Plan;

static cublasLtHandle_t handle;
static Plan *plans;
static int plan_count, plan_room;

static int alignment(const void *pointer)
{
    int bytes = 1;
    while (bytes < 256 && (size_t)pointer % (2 * bytes) == 0) bytes *= 2;
    return bytes;
}

static void choose_algorithm(Plan *p)
{
    const Shape *s = &p->shape;
    cublasLtMatmulPreference_t preference;
    size_t workspace = WORKSPACE;
    uint32_t align_a = s->align_a, align_b = s->align_b, align_d = s->align_d;
    BLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    BLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                    sizeof workspace));
    BLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_a,
                                                    sizeof align_a));
    BLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_b,
                                                    sizeof align_b));
    BLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_d,
                                                    sizeof align_d));
    BLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_d,
                                                    sizeof align_d));
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    BLAS_CHECK(
        cublasLtMatmulAlgoGetHeuristic(handle, p->operation, p->a, p->b, p->d, p->d, preference, 1, &result, &found));
    if (!found) fatal("cuBLASLt has no kernel for a product of %d x %d x %d", s->m, s->n, s->k);
    p->algorithm = result.algo;
    BLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
}

static Plan *plan_for(Shape shape)
{
    for (int i = 0; i < plan_count; i++)
        if (memcmp(&plans[i].shape, &shape, sizeof shape) == 0) return &plans[i];
    if (plan_count == plan_room) {
        plan_room = plan_room ? 2 * plan_room : 64;
        plans = (Plan *)realloc(plans, plan_room * sizeof *plans);
        if (!plans) fatal("out of memory for the plans of matrix products");
    }
    if (!handle) BLAS_CHECK(cublasLtCreate(&handle));
    Plan *p = &plans[plan_count++];
    p->shape = shape;
    cublasOperation_t a = shape.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b = shape.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    int m = shape.m, n = shape.n, k = shape.k;
    BLAS_CHECK(cublasLtMatmulDescCreate(&p->operation, COMPUTE, ACC));
    BLAS_CHECK(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a));
    BLAS_CHECK(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b));
    BLAS_CHECK(
        cublasLtMatrixLayoutCreate(&p->a, REAL, shape.transpose_a ? k : m, shape.transpose_a ? m : k, shape.lda));
    BLAS_CHECK(
        cublasLtMatrixLayoutCreate(&p->b, REAL, shape.transpose_b ? n : k, shape.transpose_b ? k : n, shape.ldb));
    BLAS_CHECK(cublasLtMatrixLayoutCreate(&p->d, shape.adds ? ACC : REAL, m, n, shape.ldd));
    choose_algorithm(p);
    return p;
}

/* D[m, n] (column-major, leading dimension m) = op(A) op(B), or adds it. */
static void gemm(void *d, const real *a, bool transpose_a, const real *b, bool transpose_b, int m, int n, int k,
                 bool adds)
{
    Shape shape;
    memset(&shape, 0, sizeof shape); /* compared as bytes */
    shape.m = m, shape.n = n, shape.k = k;
    shape.lda = transpose_a ? k : m, shape.ldb = transpose_b ? n : k, shape.ldd = m;
    shape.transpose_a = transpose_a, shape.transpose_b = transpose_b, shape.adds = adds;
    shape.align_a = alignment(a), shape.align_b = alignment(b), shape.align_d = alignment(d);
    Plan *p = plan_for(shape);
    acc alpha = 1, beta = adds ? 1 : 0;
    BLAS_CHECK(cublasLtMatmul(handle, p->operation, &alpha, a, p->a, b, p->b, &beta, d, p->d, d, p->d, &p->algorithm,
                              cuda_workspace(WORKSPACE), WORKSPACE, cuda_stream()));
}

size_t cuda_linear_workspace(void)
{
    return WORKSPACE;
}

void cuda_linear_forward(real *y, const real *x, const real *w, int n, int in, int out)
{
    gemm(y, w, true, x, false, out, n, in, false);
}

void cuda_linear_backward_input(real *dx, const real *dy, const real *w, int n, int in, int out)
{
    gemm(dx, w, false, dy, false, in, n, out, false);
}

void cuda_linear_backward_weight(acc *dw, const real *dy, const real *x, int n, int in, int out)
{
    gemm(dw, x, false, dy, true, in, out, n, true);
}
