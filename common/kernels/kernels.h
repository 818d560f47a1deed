/* The kernel table: one function pointer for each operation of the model. This file states what each entry computes.
 *
 * A backend fills the table (kernels/cpu, kernels/cuda). An entry may have several kernels, its variants. The user
 * picks one by name: --kernel linear=naive.
 *
 * Letters, everywhere in the suite:
 *
 *   N rows of a micro-step    C width        F feed-forward width   V vocabulary   L layers
 *   T rows of a sequence      H heads        K key/value heads      D head_dim     B sequences of a step
 *   R ranks                   A micro-steps of a step               P parameters
 *   E experts of a layer      k experts that a row goes to
 *
 * A row is one token of a sequence, with everything that is computed from it.
 *
 * All matrices are row-major. A weight is [out, in], as in PyTorch. `dx` is the gradient of x, and so for every name.
 * An entry overwrites its outputs unless its comment says "adds".
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/precision.h"

/* The shape of one attention call: some queries attend to one block of keys and values. Query i sees the keys whose id
 * is in [lo[i], hi[i]). Query head h reads key/value head h / (H / K). */
typedef struct {
    int heads, kv_heads, head_dim; /* H, K, D */
    int queries, keys;             /* rows of q and of k, v */
    const int *lo, *hi;            /* [queries] */
    const int *key_id;             /* [keys]  ascending */
    size_t q_stride, kv_stride;    /* elements from one row to the next in q; in k and v */
    unsigned flags;                /* ATTENTION_FIRST | ATTENTION_LAST */
} AttentionShape;

enum { EXPERTS_MAX = 1024 }; /* E at most */

/* The shape of a router call: it chooses k of E experts for each of `rows` rows. */
typedef struct {
    int rows, experts, top_k;
    bool sigmoid;     /* a row's scores are the sigmoids of its logits; else their softmax */
    bool renormalize; /* the weights of the chosen experts are divided by their sum */
} RouterShape;

/* A fold is attention computed block by block: each call adds one block of keys to the running result. FIRST marks the
 * first call, LAST the last one; a single call has both flags. Between the calls the running results are `acc`. */
enum { ATTENTION_FIRST = 1, ATTENTION_LAST = 2 };

/* The optimizer's numbers for one step. The struct lies in the backend's memory: kernels get the same pointer in every
 * step and read the step's values there. */
typedef struct {
    double lr, beta1, beta2, eps;
    double correction1, correction2; /* 1 - beta1^t, 1 - beta2^t, for step t = 1, 2, ... */
    double clip;                     /* a gradient with a larger norm is scaled down to this norm; 0: no clipping */
    double squares;                  /* the squared norm of the whole gradient */
} StepScalars;

/* The three products of a linear layer. */
typedef enum { PRODUCT_FORWARD, PRODUCT_BACKWARD_INPUT, PRODUCT_BACKWARD_WEIGHT, PRODUCTS } Product;

typedef struct Kernels Kernels;

/* One of the kernels that an entry can use. */
typedef struct {
    const char *name; /* "linear=naive": entry=variant */
    void (*use)(Kernels *kernels);
} Variant;

struct Kernels {
    const char *backend; /* "cpu" or "cuda"; NULL: this build does not have the backend */

    double peak; /* TFLOP/s of matrix products in this precision, from the vendor's data sheet; 0: unknown */

    const Variant *variants; /* [variant_count] */
    int variant_count;
    /* Replaces each variant in the table that has no kernel for this head size. Returns NULL, or a note that names the
     * replacement. The pointer is NULL if every variant takes every head size. */
    const char *(*fit)(Kernels *kernels, int head_dim);
    /* Names the device or library that computes: "OpenBLAS, kernel SkylakeX, threads: 2". The text is valid until the
     * next call. */
    const char *(*describe)(void);

    /* --- the backend's memory --- */

    void *(*alloc)(size_t bytes); /* NULL if memory is exhausted */
    void (*free)(void *memory);
    /* Host to backend. The copy happens after all kernels launched before it. The caller may reuse `from` at once. */
    void (*upload)(void *to, const void *from, size_t bytes);
    /* Backend to host. Returns when all kernels launched before it are done and `to` holds the bytes. */
    void (*download)(void *to, const void *from, size_t bytes);
    void (*fill)(void *memory, int byte, size_t bytes);
    void (*copy)(void *to, const void *from, size_t bytes); /* inside the backend's memory; no overlap */
    /* Copies a block [n, width] of one matrix to a block of another. The strides are the matrices' widths. */
    void (*copy_block)(real *to, size_t to_stride, const real *from, size_t from_stride, int n, int width);

    /* Scratch memory, so that no entry allocates. workspace_bytes says how much the entries need for this model and at
     * most `rows` rows a call. use_workspace hands the memory over; the entries use it until the next use_workspace.
     * Its contents have no meaning after a call. Both pointers are NULL if the backend needs no scratch memory. */
    size_t (*workspace_bytes)(int width, int head_dim, int rows);
    void (*use_workspace)(void *memory, size_t bytes);

    /* --- linear: y = x w^T. Backward has two entries, because pipeline schedules run them at different times. --- */

    /* y[N, out] = x[N, in] w[out, in]^T */
    void (*linear_forward)(real *y, const real *x, const real *w, int n, int in, int out);
    /* dx[N, in] = dy[N, out] w[out, in] */
    void (*linear_backward_input)(real *dx, const real *dy, const real *w, int n, int in, int out);
    /* dw[out, in] adds dy[N, out]^T x[N, in] */
    void (*linear_backward_weight)(acc *dw, const real *dy, const real *x, int n, int in, int out);
    /* A plan is one of the algorithms that the library offers for a product of this shape. linear_plans counts them.
     * linear_choose_plan picks one for all later calls of this process; a number out of range changes nothing. Without
     * it the entries use plan 0. The choice applies to operands whose addresses are multiples of 16; other operands
     * keep plan 0. Both pointers are NULL if the library offers no choice. */
    int (*linear_plans)(Product product, int n, int in, int out);
    void (*linear_choose_plan)(Product product, int n, int in, int out, int plan);

    /* --- embedding --- */

    /* y[N, C]: row i is row token[i] - first of w[vocab, C]. It is zero if w has no such row: then another rank holds
     * the row, because w is one rank's part of a table that is split over ranks. */
    void (*embedding_forward)(real *y, const real *w, const int *token, int first, int vocab, int n, int width);
    /* dw[vocab, C]: row token[i] - first adds dy[i], if w has that row. The order of the additions is fixed. */
    void (*embedding_backward)(acc *dw, const real *dy, const int *token, int first, int vocab, int n, int width);

    /* --- RMSNorm (Zhang and Sennrich, 2019), fused with the residual add before it --- */

    /* sum = x + delta;  rstd = 1 / sqrt(mean_c(sum^2) + eps);  y = sum rstd w.  x, delta, sum, y are [N, C]; rstd is
     * [N]; w is [C]. If delta is NULL, sum = x; then sum and x may be the same memory. */
    void (*residual_norm_forward)(real *sum, real *y, acc *rstd, const real *x, const real *delta, const real *w,
                                  double eps, int n, int width);
    /* On entry dx[N, C] holds the gradient that reaches `sum` past the norm, through the residual connection. The
     * kernel adds the gradient through the norm. On return dx is the gradient of x and also of delta. dw[C] adds. */
    void (*residual_norm_backward)(real *dx, acc *dw, const real *dy, const real *sum, const acc *rstd, const real *w,
                                   int n, int width);

    /* --- queries and keys: QK-norm (an RMSNorm over each head, Qwen3) and RoPE (Su et al., 2021) --- */

    /* Works on qkv[N, (H + 2K) D] in place; v stays as it is. First each head of q and k is normalized and multiplied
     * by wq[D] or wk[D] (NULL: no QK-norm). Then each pair (d, d + D/2) of a head is rotated by the angle
     * position theta^(-2d/D). The cosines are rope[position, 0 : D/2], the sines rope[position, D/2 : D]. With QK-norm
     * raw[N, (H + K) D] keeps q and k from before the norm, and rstd[N, H + K] keeps 1 / (each head's root
     * mean square). */
    void (*qk_rope_forward)(real *qkv, real *raw, acc *rstd, const real *wq, const real *wk, const acc *rope,
                            const int *position, double eps, int n, int heads, int kv_heads, int head_dim);
    /* Works on dqkv in place: turns the gradient after RoPE into the gradient before the norm. dwq[D], dwk[D] add. */
    void (*qk_rope_backward)(real *dqkv, acc *dwq, acc *dwk, const real *raw, const acc *rstd, const real *wq,
                             const real *wk, const acc *rope, const int *position, int n, int heads, int kv_heads,
                             int head_dim);

    /* --- attention, as a fold over blocks of keys (Dao et al., 2022, for the online softmax) --- */

    /* With s_ij = q_i k_j / sqrt(D) over the keys j that query i sees:  lse_i = log sum_j exp(s_ij);
     * out_i = sum_j exp(s_ij - lse_i) v_j.
     *   out  [queries, H D]      the LAST call writes it
     *   fold [queries, H D] acc  the running result between calls; may be NULL if one call is FIRST and LAST
     *   lse  [queries, H]        every call updates it
     * A query that has seen no key has lse = -inf and out = 0. */
    void (*attention_forward)(real *out, acc *fold, acc *lse, const real *q, const real *k, const real *v,
                              AttentionShape shape);
    /* The gradient through one block of keys. out and lse are the final ones, after the LAST forward call.
     *   dq, rows q_stride apart            the LAST call writes it
     *   dq_fold [queries, H D] acc         the running gradient; may be NULL if one call is FIRST and LAST
     *   dk_fold, dv_fold [keys, K D] acc   both add this call's gradient; if NULL, the call overwrites dk, dv instead
     *   dk, dv, rows kv_stride apart       not written if dk_fold and dv_fold are given
     *   dot [queries, H]                   dout_i out_i; the FIRST call writes it, later calls of the fold read it */
    void (*attention_backward)(real *dq, acc *dq_fold, real *dk, real *dv, acc *dk_fold, acc *dv_fold, acc *dot,
                               const real *dout, const real *out, const acc *lse, const real *q, const real *k,
                               const real *v, AttentionShape shape);

    /* --- SwiGLU (Shazeer, 2020) --- */

    /* y[N, F] = silu(gate) up, with gate_up[N, 2F] = gate | up */
    void (*swiglu_forward)(real *y, const real *gate_up, int n, int ff);
    void (*swiglu_backward)(real *dgate_up, const real *dy, const real *gate_up, int n, int ff);

    /* --- mixture of experts: each row goes to k of E experts (Shazeer et al., 2017) --- */

    /* choice[rows, k]: the experts with the largest score + bias, the best first; among equals the lower number is better.
     * weight[rows, k]: their scores, without the bias. logits is [rows, E]; bias is [E], or NULL. forced[rows, k], or
     * NULL: rows go to these experts, whatever their scores. */
    void (*router_forward)(int *choice, acc *weight, const real *logits, const acc *bias, const int *forced,
                           RouterShape shape);
    /* Overwrites dlogits[rows, E] with the gradient from dweight[rows, k], and with that of the auxiliary losses. For row
     * i these are  aux_i = sum_e slope[g, e] p_e + z (log sum_e exp(logit_e))^2,  with p_e = score_e / (sum of the row's
     * scores) and g = i / group_rows. slope may be NULL: 0. Choice and slope are constants in the gradient. */
    void (*router_backward)(real *dlogits, acc *aux, const acc *dweight, const real *logits, const int *choice,
                            const acc *weight, const acc *slope, int group_rows, double z, RouterShape shape);
    /* Sorts the choices of n rows by expert, those of one expert by row: choice (i, j) gets place slot[i, j]. first[E + 1]:
     * the first slot of each expert, and the number of slots. An expert takes at most `capacity` choices (0: all), those of
     * the first rows; the other choices get slot -1, they are dropped. count[E + 1] adds the choices of each expert, and
     * last the number of dropped choices. */
    void (*expert_slots)(int *slot, int *first, int64_t *count, const int *choice, int n, int k, int experts,
                         int capacity);
    /* out[slot[i, j]] = x[i], of width C. */
    void (*rows_to_slots)(real *out, const real *x, const int *slot, int n, int k, int width);
    /* y[i] = base[i] + sum_j weight[i, j] in[slot[i, j]]. base NULL: 0; it may be y. weight NULL: 1. */
    void (*rows_from_slots)(real *y, const real *base, const real *in, const int *slot, const acc *weight, int n, int k,
                            int width);
    /* Its gradient: din[slot[i, j]] = weight[i, j] dy[i];  dweight[i, j] = dy[i] in[slot[i, j]], 0 for slot -1. */
    void (*rows_from_slots_backward)(real *din, acc *dweight, const real *dy, const real *in, const int *slot,
                                     const acc *weight, int n, int k, int width);
    /* The products of a linear layer for `groups` weights w[groups, out, in], side by side: rows first[g] to first[g + 1]
     * of x and y belong to group g, and there may be none. first[groups + 1] lies in the backend's memory; `rows` is at
     * least its last entry. Rows past that are not touched. */
    void (*grouped_forward)(real *y, const real *x, const real *w, const int *first, int groups, int rows, int in,
                            int out);
    void (*grouped_backward_input)(real *dx, const real *dy, const real *w, const int *first, int groups, int rows,
                                   int in, int out);
    void (*grouped_backward_weight)(acc *dw, const real *dy, const real *x, const int *first, int groups, int rows,
                                    int in, int out); /* dw adds */
    /* slope[e] = factor * sum over l of count[l, e], for count[layers, E + 1]. */
    void (*count_slope)(acc *slope, const int64_t *count, int layers, int experts, double factor);
    /* slope[s, e] = factor * (choices of expert e by the `seq` rows of sequence s). */
    void (*sequence_slope)(acc *slope, const int *choice, int n, int k, int experts, int seq, double factor);
    /* sum[i] adds x[i]. */
    void (*add_counts)(int64_t *sum, const int64_t *x, int n);
    void (*add_rows)(real *sum, const real *x, size_t n);

    /* --- loss --- */

    /* loss[N] = scale (log sum_v exp(logits_v) - logits_label). The kernel overwrites logits[N, V] with their gradient.
     * Where label is -1, loss and gradient are 0. */
    void (*cross_entropy)(acc *loss, real *logits, const int *label, double scale, int n, int vocab);
    /* The next three entries compute the same loss of logits that are split over ranks by column. This rank holds
     * logits[N, stride]: columns [0, vocab) are tokens first, first + 1, ..., the other columns are padding.
     *
     * top[N]: the largest of this rank's logits of the row; -inf if the rank has no token. The caller then reduces top
     * to the maximum over the ranks. */
    void (*logits_top)(acc *top, const real *logits, int n, int vocab, int stride);
    /* total[N]: the sum of exp(logit - top) over this rank's tokens. target[N]: the label's logit - top if this rank
     * holds the label's column, else 0. The caller then sums both over the ranks. */
    void (*logits_sum)(acc *total, acc *target, const real *logits, const acc *top, const int *label, int first, int n,
                       int vocab, int stride);
    /* loss[N] as above, the same on every rank. Overwrites this rank's logits with their gradient; padding gets 0. */
    void (*logits_gradient)(acc *loss, real *logits, const acc *top, const acc *total, const acc *target,
                            const int *label, int first, double scale, int n, int vocab, int stride);

    /* --- over flat buffers --- */

    /* w[i] = rng_normal(seed, stream, first + i, std), or 1 if std is 0 */
    void (*draw)(acc *w, size_t first, size_t n, uint64_t seed, uint64_t stream, double std);
    /* w = master, converted to `real`. Does nothing if w and master are the same memory. */
    void (*cast)(real *w, const acc *master, size_t n);
    /* sum[i] adds x[i] */
    void (*add)(acc *sum, const acc *x, size_t n);
    void (*add_real)(acc *sum, const real *x, size_t n);
    /* total adds the sum of x, or of x^2. The order of the additions is fixed. */
    void (*sum)(double *total, const acc *x, size_t n);
    void (*sum_squares)(double *total, const acc *x, size_t n);
    /* AdamW (Loshchilov and Hutter, 2019): updates the moments m, v and master from g times the clip factor, which is
     * min(1, clip / (norm + 1e-6)) or, without clipping, 1. Then w = master. adamw and sgd change nothing if the step's
     * `squares` is infinite or NaN. */
    void (*adamw)(real *w, acc *master, acc *m, acc *v, const acc *g, size_t n, double weight_decay,
                  const StepScalars *step);
    /* master -= lr (g times the clip factor + weight_decay master). Then w = master. */
    void (*sgd)(real *w, acc *master, const acc *g, size_t n, double weight_decay, const StepScalars *step);
};

/* The CPU backend with its default variants. In bf16 builds the table is empty and `backend` is NULL. */
Kernels kernels_cpu(void);

/* Fills *kernels with the GPU backend, and makes GPU number local_rank modulo the number of visible GPUs this process's
 * device. Returns NULL, or a complaint if the build has no CUDA or the machine no GPU. */
const char *kernels_cuda(Kernels *kernels, int local_rank);

/* Makes an entry use the named variant: "linear=naive". Returns NULL, or a complaint that lists the known variants. */
const char *kernels_choose(Kernels *kernels, const char *choice);

/* Sets how many threads the CPU backend computes with. */
void kernels_set_threads(int threads);
