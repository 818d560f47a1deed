/* Declarations inside the CUDA backend: the function behind each entry of kernels.h, and the helpers that they share.
 *
 * Every kernel is launched on one stream, the compute stream. The functions that launch kernels return without waiting.
 * A later kernel of the stream sees their results, and so does the host after cuda_download. The code is C in style,
 * with templates only for the precision, the head size, the tile and the width of loads.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/precision.h"
#include "kernels/cuda_check.h"

extern "C" {
#include "base/error.h"
#include "kernels/kernels.h"

enum { CUDA_HEAD_DIM_MAX = 256 };

/* The scratch memory that the caller of use_workspace (kernels.h) handed over. All kernels share it, because they run
 * one after the other. Ends the job if it has fewer than `bytes` bytes. */
void *cuda_workspace(size_t bytes);
void cuda_use_workspace(void *memory, size_t bytes);

/* How many bytes of scratch memory each kernel needs at most. */
size_t cuda_linear_workspace(void);
size_t cuda_embedding_workspace(int rows, int width);
size_t cuda_norm_workspace(int width);
size_t cuda_qk_rope_workspace(int head_dim);
size_t cuda_sum_workspace(void);
size_t attention_flash_workspace(int rows);

#define CUDA_LAUNCHED() cuda_check(cudaGetLastError(), "kernel launch", __FILE__, __LINE__)

void *cuda_alloc(size_t bytes);
void cuda_free(void *memory);
void cuda_upload(void *to, const void *from, size_t bytes);
void cuda_download(void *to, const void *from, size_t bytes);
void cuda_fill(void *memory, int byte, size_t bytes);
void cuda_copy(void *to, const void *from, size_t bytes);
void cuda_copy_block(real *to, size_t to_stride, const real *from, size_t from_stride, int n, int width);

void cuda_linear_forward(real *y, const real *x, const real *w, int n, int in, int out);
void cuda_linear_backward_input(real *dx, const real *dy, const real *w, int n, int in, int out);
void cuda_linear_backward_weight(acc *dw, const real *dy, const real *x, int n, int in, int out);
int cuda_linear_plans(Product product, int n, int in, int out);
void cuda_linear_choose_plan(Product product, int n, int in, int out, int plan);
const char *cuda_linear_library(void); /* "cuBLASLt 13.1.0" */

void cuda_embedding_forward(real *y, const real *w, const int *token, int first, int vocab, int n, int width);
void cuda_embedding_backward(acc *dw, const real *dy, const int *token, int first, int vocab, int n, int width);

void cuda_residual_norm_forward(real *sum, real *y, acc *rstd, const real *x, const real *delta, const real *w,
                                double eps, int n, int width);
void cuda_residual_norm_backward(real *dx, acc *dw, const real *dy, const real *sum, const acc *rstd, const real *w,
                                 int n, int width);

void cuda_qk_rope_forward(real *qkv, real *raw, acc *rstd, const real *wq, const real *wk, const acc *rope,
                          const int *position, double eps, int n, int heads, int kv_heads, int head_dim);
void cuda_qk_rope_backward(real *dqkv, acc *dwq, acc *dwk, const real *raw, const acc *rstd, const real *wq,
                           const real *wk, const acc *rope, const int *position, int n, int heads, int kv_heads,
                           int head_dim);

void cuda_attention_forward_naive(real *out, acc *fold, acc *lse, const real *q, const real *k, const real *v,
                                  AttentionShape shape);
void cuda_attention_backward_naive(real *dq, acc *dq_fold, real *dk, real *dv, acc *dk_fold, acc *dv_fold, acc *dot,
                                   const real *dout, const real *out, const acc *lse, const real *q, const real *k,
                                   const real *v, AttentionShape shape);

/* Flash attention. Only bf16 builds for compute capability 9.0 have it, and only for some head sizes. */
bool attention_flash_supports(int head_dim);
void attention_forward_flash(real *out, acc *fold, acc *lse, const real *q, const real *k, const real *v,
                             AttentionShape shape);
void attention_backward_flash(real *dq, acc *dq_fold, real *dk, real *dv, acc *dk_fold, acc *dv_fold, acc *dot,
                              const real *dout, const real *out, const acc *lse, const real *q, const real *k,
                              const real *v, AttentionShape shape);

void cuda_swiglu_forward(real *y, const real *gate_up, int n, int ff);
void cuda_swiglu_backward(real *dgate_up, const real *dy, const real *gate_up, int n, int ff);

void cuda_router_forward(int *choice, acc *weight, const real *logits, const acc *bias, const int *forced,
                         RouterShape shape);
void cuda_router_backward(real *dlogits, acc *aux, const acc *dweight, const real *logits, const int *choice,
                          const acc *weight, const acc *slope, int group_rows, double z, RouterShape shape);
void cuda_count_slope(acc *slope, const int64_t *count, int layers, int experts, double factor);
void cuda_sequence_slope(acc *slope, const int *choice, int n, int k, int experts, int seq, double factor);
void cuda_add_counts(int64_t *sum, const int64_t *x, int n);
void cuda_expert_slots(int *slot, int *first, int64_t *count, const int *choice, int n, int k, int experts,
                       int capacity);
void cuda_rows_to_slots(real *out, const real *x, const int *slot, int n, int k, int width);
void cuda_rows_from_slots(real *y, const real *base, const real *in, const int *slot, const acc *weight, int n, int k,
                          int width);
void cuda_rows_from_slots_backward(real *din, acc *dweight, const real *dy, const real *in, const int *slot,
                                   const acc *weight, int n, int k, int width);
void cuda_add_rows(real *sum, const real *x, size_t n);
void cuda_grouped_forward(real *y, const real *x, const real *w, const int *first, int groups, int rows, int in,
                          int out);
void cuda_grouped_backward_input(real *dx, const real *dy, const real *w, const int *first, int groups, int rows,
                                 int in, int out);
void cuda_grouped_backward_weight(acc *dw, const real *dy, const real *x, const int *first, int groups, int rows,
                                  int in, int out);

void cuda_cross_entropy(acc *loss, real *logits, const int *label, double scale, int n, int vocab);
void cuda_logits_top(acc *top, const real *logits, int n, int vocab, int stride);
void cuda_logits_sum(acc *total, acc *target, const real *logits, const acc *top, const int *label, int first, int n,
                     int vocab, int stride);
void cuda_logits_gradient(acc *loss, real *logits, const acc *top, const acc *total, const acc *target,
                          const int *label, int first, double scale, int n, int vocab, int stride);

void cuda_draw(acc *w, size_t first, size_t n, uint64_t seed, uint64_t stream, double std);
void cuda_cast(real *w, const acc *master, size_t n);
void cuda_add(acc *sum, const acc *x, size_t n);
void cuda_add_real(acc *sum, const real *x, size_t n);
void cuda_sum(double *total, const acc *x, size_t n);
void cuda_sum_squares(double *total, const acc *x, size_t n);
void cuda_adamw(real *w, acc *master, acc *m, acc *v, const acc *g, size_t n, double weight_decay,
                const StepScalars *step);
void cuda_sgd(real *w, acc *master, const acc *g, size_t n, double weight_decay, const StepScalars *step);
}
