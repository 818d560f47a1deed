/* Declarations inside the CPU backend: the kernels behind each entry of kernels.h, and the helpers that they share. */
#pragma once

#include "kernels/kernels.h"

enum { HEAD_DIM_MAX = 256 };

/* y[i] = exp(x[i]), vectorized, with an error of a few units in the last place. y and x may be the same memory. */
void cpu_exp(real *y, const real *x, int n);

/* The number of threads in the next parallel loop. */
int cpu_threads(void);

/* The first index in the ascending array id[count] whose value is at least `value`. */
int cpu_lower_bound(const int *id, int count, int value);

/* Folds one block of keys into the running result (out[D], lse) of one query and head. `block` is the block's
 * unnormalized result sum_j exp(s_j - top) v_j, and total = sum_j exp(s_j - top). A block without keys has total = 0
 * and changes nothing. */
void cpu_attention_merge(acc *out, acc *lse, const acc *block, acc top, acc total, int head_dim);

/* dot[i, h] = sum_d dout[i, h, d] out[i, h, d], for `rows` queries i. The gradient of the softmax subtracts it. */
void cpu_attention_dot(acc *dot, const real *dout, const real *out, int rows, int heads, int head_dim);

void linear_forward_naive(real *y, const real *x, const real *w, int n, int in, int out);
void linear_backward_input_naive(real *dx, const real *dy, const real *w, int n, int in, int out);
void linear_backward_weight_naive(acc *dw, const real *dy, const real *x, int n, int in, int out);

/* In linear_blas.c in builds with OpenBLAS, in no_blas.c in the others. */
void blas_use_one_thread(void);
const char *blas_name(void);

void linear_forward_blas(real *y, const real *x, const real *w, int n, int in, int out);
void linear_backward_input_blas(real *dx, const real *dy, const real *w, int n, int in, int out);
void linear_backward_weight_blas(acc *dw, const real *dy, const real *x, int n, int in, int out);

void embedding_forward(real *y, const real *w, const int *token, int first, int vocab, int n, int width);
void embedding_backward(acc *dw, const real *dy, const int *token, int first, int vocab, int n, int width);

void residual_norm_forward(real *sum, real *y, acc *rstd, const real *x, const real *delta, const real *w, double eps,
                           int n, int width);
void residual_norm_backward(real *dx, acc *dw, const real *dy, const real *sum, const acc *rstd, const real *w, int n,
                            int width);

void qk_rope_forward(real *qkv, real *raw, acc *rstd, const real *wq, const real *wk, const acc *rope,
                     const int *position, double eps, int n, int heads, int kv_heads, int head_dim);
void qk_rope_backward(real *dqkv, acc *dwq, acc *dwk, const real *raw, const acc *rstd, const real *wq, const real *wk,
                      const acc *rope, const int *position, int n, int heads, int kv_heads, int head_dim);

void attention_forward_naive(real *out, acc *fold, acc *lse, const real *q, const real *k, const real *v,
                             AttentionShape shape);
void attention_backward_naive(real *dq, acc *dq_fold, real *dk, real *dv, acc *dk_fold, acc *dv_fold, acc *dot,
                              const real *dout, const real *out, const acc *lse, const real *q, const real *k,
                              const real *v, AttentionShape shape);

void attention_forward_blocks(real *out, acc *fold, acc *lse, const real *q, const real *k, const real *v,
                              AttentionShape shape);
void attention_backward_blocks(real *dq, acc *dq_fold, real *dk, real *dv, acc *dk_fold, acc *dv_fold, acc *dot,
                               const real *dout, const real *out, const acc *lse, const real *q, const real *k,
                               const real *v, AttentionShape shape);

void swiglu_forward(real *y, const real *gate_up, int n, int ff);
void swiglu_backward(real *dgate_up, const real *dy, const real *gate_up, int n, int ff);

void router_forward(int *choice, acc *weight, const real *logits, const acc *bias, const int *forced,
                    RouterShape shape);
void router_backward(real *dlogits, acc *aux, const acc *dweight, const real *logits, const int *choice,
                     const acc *weight, const acc *slope, int group_rows, double z, RouterShape shape);
void count_slope(acc *slope, const int64_t *count, int layers, int experts, double factor);
void sequence_slope(acc *slope, const int *choice, int n, int k, int experts, int seq, double factor);
void add_counts(int64_t *sum, const int64_t *x, int n);

void expert_slots(int *slot, int *first, int64_t *count, const int *choice, int n, int k, int experts, int capacity);
void rows_to_slots(real *out, const real *x, const int *slot, int n, int k, int width);
void rows_from_slots(real *y, const real *base, const real *in, const int *slot, const acc *weight, int n, int k,
                     int width);
void rows_from_slots_backward(real *din, acc *dweight, const real *dy, const real *in, const int *slot,
                              const acc *weight, int n, int k, int width);

/* grouped.c: one product for each group, by the linear variant that is in use. */
void grouped_forward_naive(real *y, const real *x, const real *w, const int *first, int groups, int rows, int in,
                           int out);
void grouped_backward_input_naive(real *dx, const real *dy, const real *w, const int *first, int groups, int rows,
                                  int in, int out);
void grouped_backward_weight_naive(acc *dw, const real *dy, const real *x, const int *first, int groups, int rows,
                                   int in, int out);
void grouped_forward_blas(real *y, const real *x, const real *w, const int *first, int groups, int rows, int in,
                          int out);
void grouped_backward_input_blas(real *dx, const real *dy, const real *w, const int *first, int groups, int rows,
                                 int in, int out);
void grouped_backward_weight_blas(acc *dw, const real *dy, const real *x, const int *first, int groups, int rows,
                                  int in, int out);

void cross_entropy(acc *loss, real *logits, const int *label, double scale, int n, int vocab);
void logits_top(acc *top, const real *logits, int n, int vocab, int stride);
void logits_sum(acc *total, acc *target, const real *logits, const acc *top, const int *label, int first, int n,
                int vocab, int stride);
void logits_gradient(acc *loss, real *logits, const acc *top, const acc *total, const acc *target, const int *label,
                     int first, double scale, int n, int vocab, int stride);

void flat_draw(acc *w, size_t first, size_t n, uint64_t seed, uint64_t stream, double std);
void flat_cast(real *w, const acc *master, size_t n);
void flat_add(acc *sum, const acc *x, size_t n);
void flat_sum(double *total, const acc *x, size_t n);
void flat_sum_squares(double *total, const acc *x, size_t n);
void flat_adamw(real *w, acc *master, acc *m, acc *v, const acc *g, size_t n, double weight_decay,
                const StepScalars *step);
void flat_sgd(real *w, acc *master, const acc *g, size_t n, double weight_decay, const StepScalars *step);

void *host_alloc(size_t bytes);
void host_free(void *memory);
void host_copy(void *to, const void *from, size_t bytes);
void host_copy_block(real *to, size_t to_stride, const real *from, size_t from_stride, int n, int width);
void host_fill(void *memory, int byte, size_t bytes);
