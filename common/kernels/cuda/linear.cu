/* Matrix products through cuBLASLt, accumulated in `acc`.
 *
 * cuBLASLt is column-major: it reads a row-major matrix as the transposed matrix. So this file asks for y^T = w x^T to
 * get y = x w^T, and likewise for the other products. A plan holds the layouts of one shape and the algorithms that
 * cuBLASLt's heuristic returns for it, the one expected to be fastest first. The first algorithm is used unless the
 * auto-tuner chooses another. Plans are kept until the process ends, so equal calls run equal kernels. */
#include <cublasLt.h>
#include <stdio.h>
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

enum { WORKSPACE = 64 << 20, PLANS_MAX = 8, ALIGN_MAX = 16 };

/* The products that share a plan: D[m, n] = op(A) op(B) with op(A) [m, k] and op(B) [k, n], column-major and dense. If
 * `adds`, D is acc and adds the product; else D is real and is overwritten. The operands' addresses are multiples of
 * the align_ values. All members are ints, so that memcmp can compare two Shapes. */
typedef struct {
    int m, n, k, transpose_a, transpose_b, adds;
    int align_a, align_b, align_d;
} Shape;

typedef struct {
    Shape shape;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm[PLANS_MAX]; /* in the heuristic's order */
    int algorithms, chosen;
} Plan;

static cublasLtHandle_t handle;
static Plan *plans;
static int plan_count, plan_room;

/* The largest power of two, at most ALIGN_MAX, that divides the address. Greater alignment made no product faster. */
static int alignment(const void *pointer)
{
    int bytes = 1;
    while (bytes < ALIGN_MAX && (size_t)pointer % (2 * bytes) == 0) bytes *= 2;
    return bytes;
}

/* Asks the heuristic for p->algorithm. Ends the job if it has none. */
static void find_algorithms(Plan *p)
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
    cublasLtMatmulHeuristicResult_t result[PLANS_MAX];
    int found = 0;
    BLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(handle, p->operation, p->a, p->b, p->d, p->d, preference, PLANS_MAX,
                                              result, &found));
    p->algorithms = p->chosen = 0;
    for (int r = 0; r < found; r++)
        if (result[r].state == CUBLAS_STATUS_SUCCESS) p->algorithm[p->algorithms++] = result[r].algo;
    if (!p->algorithms) fatal("cuBLASLt has no kernel for a product of %d x %d x %d", s->m, s->n, s->k);
    BLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
}

/* The plan for this shape; the first call for a shape makes it. Valid until the next call. */
static Plan *plan_for(Shape s)
{
    for (int i = 0; i < plan_count; i++)
        if (memcmp(&plans[i].shape, &s, sizeof s) == 0) return &plans[i];
    if (plan_count == plan_room) {
        plan_room = plan_room ? 2 * plan_room : 64;
        plans = (Plan *)realloc(plans, plan_room * sizeof *plans);
        if (!plans) fatal("out of memory for the plans of matrix products");
    }
    if (!handle) BLAS_CHECK(cublasLtCreate(&handle));
    Plan *p = &plans[plan_count++];
    p->shape = s;
    cublasOperation_t a = s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b = s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    int a_rows = s.transpose_a ? s.k : s.m, a_cols = s.transpose_a ? s.m : s.k;
    int b_rows = s.transpose_b ? s.n : s.k, b_cols = s.transpose_b ? s.k : s.n;
    BLAS_CHECK(cublasLtMatmulDescCreate(&p->operation, COMPUTE, ACC));
    BLAS_CHECK(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a));
    BLAS_CHECK(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b));
    BLAS_CHECK(cublasLtMatrixLayoutCreate(&p->a, REAL, a_rows, a_cols, a_rows));
    BLAS_CHECK(cublasLtMatrixLayoutCreate(&p->b, REAL, b_rows, b_cols, b_rows));
    BLAS_CHECK(cublasLtMatrixLayoutCreate(&p->d, s.adds ? ACC : REAL, s.m, s.n, s.m));
    find_algorithms(p);
    return p;
}

/* The shape of a linear layer's product, with addresses that are multiples of ALIGN_MAX. */
static Shape shape_of(Product product, int n, int in, int out)
{
    Shape s = {0, 0, 0, 0, 0, 0, ALIGN_MAX, ALIGN_MAX, ALIGN_MAX};
    switch (product) {
    case PRODUCT_FORWARD: s.m = out, s.n = n, s.k = in, s.transpose_a = 1; break; /* y^T = w x^T */
    case PRODUCT_BACKWARD_INPUT: s.m = in, s.n = n, s.k = out; break;             /* dx^T = w^T dy^T */
    default: s.m = in, s.n = out, s.k = n, s.transpose_b = 1, s.adds = 1; break;  /* dw^T adds x^T dy */
    }
    return s;
}

static void multiply(void *d, const real *a, const real *b, Shape s)
{
    s.align_a = alignment(a), s.align_b = alignment(b), s.align_d = alignment(d);
    Plan *p = plan_for(s);
    acc alpha = 1, beta = s.adds ? 1 : 0;
    BLAS_CHECK(cublasLtMatmul(handle, p->operation, &alpha, a, p->a, b, p->b, &beta, d, p->d, d, p->d,
                              &p->algorithm[p->chosen], cuda_workspace(WORKSPACE), WORKSPACE, cuda_stream()));
}

void cuda_linear_forward(real *y, const real *x, const real *w, int n, int in, int out)
{
    multiply(y, w, x, shape_of(PRODUCT_FORWARD, n, in, out));
}

void cuda_linear_backward_input(real *dx, const real *dy, const real *w, int n, int in, int out)
{
    multiply(dx, w, dy, shape_of(PRODUCT_BACKWARD_INPUT, n, in, out));
}

void cuda_linear_backward_weight(acc *dw, const real *dy, const real *x, int n, int in, int out)
{
    multiply(dw, x, dy, shape_of(PRODUCT_BACKWARD_WEIGHT, n, in, out));
}

/* --- for the auto-tuner --- */

int cuda_linear_plans(Product product, int n, int in, int out)
{
    return plan_for(shape_of(product, n, in, out))->algorithms;
}

void cuda_linear_choose_plan(Product product, int n, int in, int out, int plan)
{
    Plan *p = plan_for(shape_of(product, n, in, out));
    if (plan >= 0 && plan < p->algorithms) p->chosen = plan;
}

const char *cuda_linear_library(void)
{
    static char text[40];
    size_t version = cublasLtGetVersion(); /* 130100 is 13.1.0 */
    snprintf(text, sizeof text, "cuBLASLt %d.%d.%d", (int)(version / 10000), (int)(version / 100 % 100),
             (int)(version % 100));
    return text;
}

size_t cuda_linear_workspace(void)
{
    return WORKSPACE;
}
