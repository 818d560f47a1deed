/* Fills the kernel table with the GPU's kernels, and lists their variants. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cuda.h"

static void use_attention_naive(Kernels *k)
{
    k->attention_forward = cuda_attention_forward_naive;
    k->attention_backward = cuda_attention_backward_naive;
}

#ifdef HAVE_FLASH
static void use_attention_flash(Kernels *k)
{
    k->attention_forward = attention_forward_flash;
    k->attention_backward = attention_backward_flash;
}

/* Uses naive attention if flash attention has no kernel for this head size. */
static const char *fit(Kernels *k, int head_dim)
{
    if (attention_flash_supports(head_dim)) return NULL;
    use_attention_naive(k);
    return "flash attention has no kernel for this head_dim: attention=naive";
}
#define FIT fit
#else
#define FIT NULL
#endif

/* Of each entry, the last variant in this table is the default. */
static const Variant variants[] = {
    {"attention=naive", use_attention_naive},
#ifdef HAVE_FLASH
    {"attention=flash", use_attention_flash},
#endif
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

/* Dense TFLOP/s (without sparsity) from NVIDIA's data sheets, with tensor cores where they compute in that precision.
 * The first row whose name occurs as a word in the device's name holds for the device. */
static const struct {
    const char *name;
    double bf16, fp32, fp64;
} peaks[] = {
    {"H200", 989, 67, 67},     {"H100 PCIe", 756, 51, 51}, {"H100 NVL", 835, 60, 60}, {"H100", 989, 67, 67},
    {"A100", 312, 19.5, 19.5}, {"L40S", 362, 91.6, 1.4},   {"L40", 181, 90.5, 1.4},   {"L4", 121, 30.3, 0.5},
    {"RTX 4090", 165, 82.6, 1.3},
};

static bool has_word(const char *text, const char *word)
{
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        if ((at == text || !isalnum(at[-1])) && !isalnum(at[strlen(word)])) return true;
    return false;
}

static double peak_of(const char *device)
{
    for (size_t p = 0; p < sizeof peaks / sizeof peaks[0]; p++)
        if (has_word(device, peaks[p].name))
            return sizeof(real) == 2 ? peaks[p].bf16 : sizeof(real) == 4 ? peaks[p].fp32 : peaks[p].fp64;
    return 0;
}

static const char *describe(void)
{
    static char text[340];
    cudaDeviceProp properties;
    int device;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    snprintf(text, sizeof text, "%s, device %d, %s", properties.name, device, cuda_linear_library());
    return text;
}

static size_t workspace_for(int width, int head_dim, int rows)
{
    const size_t needs[] = {
        cuda_linear_workspace(),
        cuda_embedding_workspace(rows, width),
        cuda_norm_workspace(width),
        cuda_qk_rope_workspace(head_dim),
        cuda_sum_workspace(),
#ifdef HAVE_FLASH
        attention_flash_workspace(rows),
#endif
    };
    size_t most = 0;
    for (size_t n = 0; n < sizeof needs / sizeof needs[0]; n++)
        if (needs[n] > most) most = needs[n];
    return most;
}

const char *kernels_cuda(Kernels *k, int local_rank)
{
    int devices = 0;
    cudaError_t code = cudaGetDeviceCount(&devices);
    if (code != cudaSuccess) return complain("--device cuda: %s", cudaGetErrorString(code));
    if (devices == 0) return complain("--device cuda: there is no GPU here");
    CUDA_CHECK(cudaSetDevice(local_rank % devices));
    *k = Kernels();
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, local_rank % devices));
    k->peak = peak_of(properties.name);
    k->backend = "cuda";
    k->variants = variants;
    k->variant_count = VARIANTS;
    k->describe = describe;
    k->fit = FIT;
    k->alloc = cuda_alloc;
    k->free = cuda_free;
    k->upload = cuda_upload;
    k->download = cuda_download;
    k->fill = cuda_fill;
    k->copy = cuda_copy;
    k->copy_block = cuda_copy_block;
    k->workspace_bytes = workspace_for;
    k->use_workspace = cuda_use_workspace;
    k->linear_forward = cuda_linear_forward;
    k->linear_backward_input = cuda_linear_backward_input;
    k->linear_backward_weight = cuda_linear_backward_weight;
    k->linear_plans = cuda_linear_plans;
    k->linear_choose_plan = cuda_linear_choose_plan;
    k->embedding_forward = cuda_embedding_forward;
    k->embedding_backward = cuda_embedding_backward;
    k->residual_norm_forward = cuda_residual_norm_forward;
    k->residual_norm_backward = cuda_residual_norm_backward;
    k->qk_rope_forward = cuda_qk_rope_forward;
    k->qk_rope_backward = cuda_qk_rope_backward;
    k->swiglu_forward = cuda_swiglu_forward;
    k->swiglu_backward = cuda_swiglu_backward;
    k->router_forward = cuda_router_forward;
    k->router_backward = cuda_router_backward;
    k->expert_slots = cuda_expert_slots;
    k->rows_to_slots = cuda_rows_to_slots;
    k->rows_from_slots = cuda_rows_from_slots;
    k->rows_from_slots_backward = cuda_rows_from_slots_backward;
    k->grouped_forward = cuda_grouped_forward;
    k->grouped_backward_input = cuda_grouped_backward_input;
    k->grouped_backward_weight = cuda_grouped_backward_weight;
    k->count_slope = cuda_count_slope;
    k->sequence_slope = cuda_sequence_slope;
    k->add_counts = cuda_add_counts;
    k->add_rows = cuda_add_rows;
    k->cross_entropy = cuda_cross_entropy;
    k->logits_top = cuda_logits_top;
    k->logits_sum = cuda_logits_sum;
    k->logits_gradient = cuda_logits_gradient;
    k->draw = cuda_draw;
    k->cast = cuda_cast;
    k->add = cuda_add;
    k->add_real = cuda_add_real;
    k->sum = cuda_sum;
    k->sum_squares = cuda_sum_squares;
    k->adamw = cuda_adamw;
    k->sgd = cuda_sgd;
    for (int v = 0; v < VARIANTS; v++) variants[v].use(k);
    return NULL;
}
