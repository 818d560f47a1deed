/* Fills the kernel table with the GPU's kernels, and chooses among variants. */
#include <stdio.h>
#include <string.h>

#include "cuda.h"

static void use_attention_naive(Kernels *k)
{
    k->attention_forward = cuda_attention_forward_naive;
    k->attention_backward = cuda_attention_backward_naive;
}

/* The last variant of an entry is its default. */
static const struct {
    const char *name; /* ENTRY=VARIANT */
    void (*use)(Kernels *);
} variants[] = {
    {"attention=naive", use_attention_naive},
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

static const char *choose(Kernels *kernels, const char *choice)
{
    char known[256] = "";
    for (int v = 0; v < VARIANTS; v++) {
        if (strcmp(choice, variants[v].name) == 0) {
            variants[v].use(kernels);
            return NULL;
        }
        snprintf(known + strlen(known), sizeof known - strlen(known), " %s", variants[v].name);
    }
    return complain("--kernel %s: no such kernel on the GPU; there are:%s", choice, known);
}

static const char *describe(void)
{
    static char text[300];
    cudaDeviceProp properties;
    int device;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    snprintf(text, sizeof text, "%s, device %d", properties.name, device);
    return text;
}

const char *kernels_cuda(Kernels *k, int local_rank)
{
    int devices = 0;
    cudaError_t code = cudaGetDeviceCount(&devices);
    if (code != cudaSuccess) return complain("--device cuda: %s", cudaGetErrorString(code));
    if (devices == 0) return complain("--device cuda: there is no GPU here");
    CUDA_CHECK(cudaSetDevice(local_rank % devices));
    *k = Kernels();
    k->backend = "cuda";
    k->choose = choose;
    k->describe = describe;
    k->alloc = cuda_alloc;
    k->free = cuda_free;
    k->upload = cuda_upload;
    k->download = cuda_download;
    k->fill = cuda_fill;
    k->linear_forward = cuda_linear_forward;
    k->linear_backward_input = cuda_linear_backward_input;
    k->linear_backward_weight = cuda_linear_backward_weight;
    k->embedding_forward = cuda_embedding_forward;
    k->embedding_backward = cuda_embedding_backward;
    k->residual_norm_forward = cuda_residual_norm_forward;
    k->residual_norm_backward = cuda_residual_norm_backward;
    k->qk_rope_forward = cuda_qk_rope_forward;
    k->qk_rope_backward = cuda_qk_rope_backward;
    k->swiglu_forward = cuda_swiglu_forward;
    k->swiglu_backward = cuda_swiglu_backward;
    k->cross_entropy = cuda_cross_entropy;
    k->draw = cuda_draw;
    k->cast = cuda_cast;
    k->sum = cuda_sum;
    k->sum_squares = cuda_sum_squares;
    k->adamw = cuda_adamw;
    k->sgd = cuda_sgd;
    for (int v = 0; v < VARIANTS; v++) variants[v].use(k);
    return NULL;
}
