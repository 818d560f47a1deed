/* Fills the kernel table with the CPU's kernels, and lists their variants. */
#include "cpu.h"

#include <stdio.h>

#ifdef _OPENMP
#include <omp.h>
#else
static void omp_set_num_threads(int threads)
{
    (void)threads;
}
static int omp_get_max_threads(void)
{
    return 1;
}
#endif

static void use_linear_naive(Kernels *k)
{
    k->linear_forward = linear_forward_naive;
    k->linear_backward_input = linear_backward_input_naive;
    k->linear_backward_weight = linear_backward_weight_naive;
    k->grouped_forward = grouped_forward_naive;
    k->grouped_backward_input = grouped_backward_input_naive;
    k->grouped_backward_weight = grouped_backward_weight_naive;
}

static void use_attention_naive(Kernels *k)
{
    k->attention_forward = attention_forward_naive;
    k->attention_backward = attention_backward_naive;
}

#ifdef HAVE_BLAS
static void use_linear_blas(Kernels *k)
{
    k->linear_forward = linear_forward_blas;
    k->linear_backward_input = linear_backward_input_blas;
    k->linear_backward_weight = linear_backward_weight_blas;
    k->grouped_forward = grouped_forward_blas;
    k->grouped_backward_input = grouped_backward_input_blas;
    k->grouped_backward_weight = grouped_backward_weight_blas;
}

static void use_attention_blocks(Kernels *k)
{
    k->attention_forward = attention_forward_blocks;
    k->attention_backward = attention_backward_blocks;
}
#endif

/* Of each entry, the last variant in this table is the default. */
static const Variant variants[] = {
    {"linear=naive", use_linear_naive},
    {"attention=naive", use_attention_naive},
#ifdef HAVE_BLAS
    {"linear=blas", use_linear_blas},
    {"attention=blocks", use_attention_blocks},
#endif
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

/* OpenBLAS runs each call on one thread: linear_blas.c divides a product among the OpenMP threads. */
void kernels_set_threads(int threads)
{
    blas_use_one_thread(); /* first: an OpenBLAS built with OpenMP sets OpenMP's number of threads, too */
    omp_set_num_threads(threads);
    omp_set_max_active_levels(1); /* else OMP_NUM_THREADS=2,2 lets OpenBLAS divide each thread's part again */
}

int cpu_threads(void)
{
    return omp_get_max_threads();
}

static const char *describe(void)
{
    static char text[128];
    snprintf(text, sizeof text, "%s, threads: %d", blas_name(), cpu_threads());
    return text;
}

Kernels kernels_cpu(void)
{
    Kernels k = {
        .backend = "cpu",
        .variants = variants,
        .variant_count = VARIANTS,
        .describe = describe,
        .alloc = host_alloc,
        .free = host_free,
        .upload = host_copy,
        .download = host_copy,
        .fill = host_fill,
        .copy = host_copy,
        .copy_block = host_copy_block,
        .embedding_forward = embedding_forward,
        .embedding_backward = embedding_backward,
        .residual_norm_forward = residual_norm_forward,
        .residual_norm_backward = residual_norm_backward,
        .qk_rope_forward = qk_rope_forward,
        .qk_rope_backward = qk_rope_backward,
        .swiglu_forward = swiglu_forward,
        .swiglu_backward = swiglu_backward,
        .router_forward = router_forward,
        .router_backward = router_backward,
        .expert_slots = expert_slots,
        .rows_to_slots = rows_to_slots,
        .rows_from_slots = rows_from_slots,
        .rows_from_slots_backward = rows_from_slots_backward,
        .count_slope = count_slope,
        .sequence_slope = sequence_slope,
        .add_counts = add_counts,
        .add_rows = flat_add,
        .cross_entropy = cross_entropy,
        .logits_top = logits_top,
        .logits_sum = logits_sum,
        .logits_gradient = logits_gradient,
        .draw = flat_draw,
        .cast = flat_cast,
        .add = flat_add,
        .add_real = flat_add,
        .sum = flat_sum,
        .sum_squares = flat_sum_squares,
        .adamw = flat_adamw,
        .sgd = flat_sgd,
    };
    for (int v = 0; v < VARIANTS; v++) variants[v].use(&k);
    return k;
}
