/* The kernel table: every operation of the model, reached through one function pointer with one documented entry.
 *
 * A backend fills the table (kernels/cpu, kernels/cuda). Where an operation has several kernels, they are variants of one
 * entry, chosen by name: --kernel linear=naive.
 *
 * Letters, everywhere in the suite:
 *
 *   N rows of a micro-step    C width        F feed-forward width   V vocabulary   L layers
 *   T rows of a sequence      H heads        K key/value heads      D head_dim     B sequences of a step
 *   R ranks                   A micro-steps of a step               P parameters
 *
 * A row is one token of a sequence, with everything that is computed from it.
 *
 * All matrices are row-major. A weight is [out, in], as PyTorch keeps it. `d` before a name is its gradient. Unless an
 * entry says "adds", outputs are overwritten.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/precision.h"

/* One block of keys and values, to be folded into the attention of a set of queries. Row i of the queries attends to the
 * keys whose id is in [lo[i], hi[i]). Query head h reads key/value head h / (H / K). */
typedef struct {
    int heads, kv_heads, head_dim; /* H, K, D */
    int queries, keys;             /* rows of q and of k, v */
    const int *lo, *hi;            /* [queries] */
    const int *key_id;             /* [keys]  ascending */
    size_t q_stride, kv_stride;    /* elements from one row to the next in q; in k and v */
    unsigned flags;                /* ATTENTION_FIRST | ATTENTION_LAST */
} AttentionShape;

/* A fold: FIRST starts it, LAST ends it, a single call has both. While it is open its results are `acc`. */
enum { ATTENTION_FIRST = 1, ATTENTION_LAST = 2 };

/* What the optimizer needs to know of a step. Lies in the backend's memory, so that a step's kernels are launched with the
 * same arguments every time. */
typedef struct {
    double lr, beta1, beta2, eps;
    double correction1, correction2; /* 1 - beta1^t, 1 - beta2^t, for step t = 1, 2, ... */
    double clip;                     /* largest norm of the whole gradient; 0: no clipping */
    double squares;                  /* of that gradient: its norm, squared */
} StepScalars;

/* The three products of a linear layer. */
typedef enum { PRODUCT_FORWARD, PRODUCT_BACKWARD_INPUT, PRODUCT_BACKWARD_WEIGHT, PRODUCTS } Product;

typedef struct Kernels Kernels;

/* One of several kernels behind an entry. */
typedef struct {
    const char *name; /* ENTRY=VARIANT */
    void (*use)(Kernels *kernels);
} Variant;

struct Kernels {
    const char *backend; /* "cpu" or "cuda"; NULL: not in this build */

    double peak; /* TFLOP/s of matrix products in this precision, as the device's maker states it; 0: not known */

    const Variant *variants; /* [variant_count] */
    int variant_count;
    /* Takes other variants than the default ones where those do not fit the model; returns NULL or a note that says so.
     * NULL: they always fit. */
    const char *(*fit)(Kernels *kernels, int head_dim);
    /* What computes: "OpenBLAS, kernel SkylakeX, threads: 2". Valid until the next call. */
    const char *(*describe)(void);

    /* --- the backend's memory --- */

    void *(*alloc)(size_t bytes); /* NULL if there is no more */
    void (*free)(void *memory);
    /* Host to backend, after the kernels before it; `from` may be reused at once. */
    void (*upload)(void *to, const void *from, size_t bytes);
    /* Backend to host; returns when the kernels before it are done and the bytes are there. */
    void (*download)(void *to, const void *from, size_t bytes);
    void (*fill)(void *memory, int byte, size_t bytes);
    void (*copy)(void *to, const void *from, size_t bytes); /* within the backend's memory; they do not overlap */

    /* Memory that the kernels write to between their start and their end, so that none of them allocates: how much, for
     * this model and calls of at most `rows` rows; and which. It is used until another is handed over, and its contents
     * never outlive a kernel. NULL: this backend needs none. */
    size_t (*workspace_bytes)(int width, int head_dim, int rows);
    void (*use_workspace)(void *memory, size_t bytes);

    /* --- linear: y = x w^T. Backward in two kernels, because pipeline schedules run them apart. --- */

    /* y[N, out] = x[N, in] w[out, in]^T */
    void (*linear_forward)(real *y, const real *x, const real *w, int n, int in, int out);
    /* dx[N, in] = dy[N, out] w[out, in] */
    void (*linear_backward_input)(real *dx, const real *dy, const real *w, int n, int in, int out);
    /* dw[out, in] adds dy[N, out]^T x[N, in] */
    void (*linear_backward_weight)(acc *dw, const real *dy, const real *x, int n, int in, int out);
    /* A library may know several ways to compute one of these products at a shape, its plans. How many there are (the first
     * one is taken unless another is chosen), and choosing one, from then on and for this process: does nothing if there is
     * no such plan. For operands at addresses that 16 divides; others keep the first. NULL: there is one way. */
    int (*linear_plans)(Product product, int n, int in, int out);
    void (*linear_choose_plan)(Product product, int n, int in, int out, int plan);

    /* --- embedding --- */

    /* y[N, C]: row i is row token[i] - first of w[vocab, C], and zero if w has no such row: it may be part of a table that
     * is split over ranks */
    void (*embedding_forward)(real *y, const real *w, const int *token, int first, int vocab, int n, int width);
    /* dw[vocab, C]: row token[i] - first, if there is one, adds dy[i], always in the same order */
    void (*embedding_backward)(acc *dw, const real *dy, const int *token, int first, int vocab, int n, int width);

    /* --- RMSNorm (Zhang and Sennrich, 2019), fused with the residual add before it --- */

    /* sum = x + delta;  rstd = 1 / sqrt(mean_c(sum^2) + eps);  y = sum rstd w.  x, delta, sum, y [N, C]; rstd [N]; w [C].
     * delta NULL: sum = x, and sum may then be x itself. */
    void (*residual_norm_forward)(real *sum, real *y, acc *rstd, const real *x, const real *delta, const real *w,
                                  double eps, int n, int width);
    /* dx adds the gradient through the norm; it enters holding the gradient of `sum` from elsewhere and leaves holding the
     * gradient of x, which is that of delta too. dw[C] adds. */
    void (*residual_norm_backward)(real *dx, acc *dw, const real *dy, const real *sum, const acc *rstd, const real *w,
                                   int n, int width);

    /* --- queries and keys: QK-norm (an RMSNorm over each head, Qwen3) and RoPE (Su et al., 2021) --- */

    /* qkv[N, (H + 2K) D] in place: q and k are normalized by wq[D], wk[D] (NULL: no QK-norm), then pairs (d, d + D/2) of
     * each head are turned by the angle position theta^(-2d/D), whose cosines and sines are rope[position, 0 : D/2] and
     * rope[position, D/2 : D]. With QK-norm, raw[N, (H + K) D] keeps q and k as they were, rstd[N, H + K] the reciprocals
     * of their root mean squares. */
    void (*qk_rope_forward)(real *qkv, real *raw, acc *rstd, const real *wq, const real *wk, const acc *rope,
                            const int *position, double eps, int n, int heads, int kv_heads, int head_dim);
    /* dqkv in place: from the gradient after RoPE to the gradient before the norm. dwq[D], dwk[D] add. */
    void (*qk_rope_backward)(real *dqkv, acc *dwq, acc *dwk, const real *raw, const acc *rstd, const real *wq,
                             const real *wk, const acc *rope, const int *position, int n, int heads, int kv_heads,
                             int head_dim);

    /* --- attention, as a fold over blocks of keys (Dao et al., 2022, for the online softmax) --- */

    /* With s_ij = q_i k_j / sqrt(D) over the keys that row i may see:  lse_i = log sum_j exp(s_ij);
     * out_i = sum_j exp(s_ij - lse_i) v_j.  out [queries, H D], written by LAST; fold [queries, H D] acc, the running
     * result of an open fold, may be NULL when one call is FIRST and LAST; lse [queries, H]. A row that has met no key has
     * lse = -inf, out = 0. */
    void (*attention_forward)(real *out, acc *fold, acc *lse, const real *q, const real *k, const real *v,
                              AttentionShape shape);
    /* Adds one block's share, given the final out and lse. dq_fold [queries, H D] acc: the running gradient of an open
     * fold over key blocks; dq, at q_stride, is written by LAST. dk_fold, dv_fold [keys, K D] acc: if not NULL they add
     * this share; else dk, dv, at kv_stride, are overwritten. dot [queries, H]: scratch, filled by FIRST. */
    void (*attention_backward)(real *dq, acc *dq_fold, real *dk, real *dv, acc *dk_fold, acc *dv_fold, acc *dot,
                               const real *dout, const real *out, const acc *lse, const real *q, const real *k,
                               const real *v, AttentionShape shape);

    /* --- SwiGLU (Shazeer, 2020) --- */

    /* y[N, F] = silu(gate) up, with gate_up[N, 2F] = gate | up */
    void (*swiglu_forward)(real *y, const real *gate_up, int n, int ff);
    void (*swiglu_backward)(real *dgate_up, const real *dy, const real *gate_up, int n, int ff);

    /* --- loss --- */

    /* loss[N] = scale (log sum_v exp(logits_v) - logits_label), 0 where label is -1. logits[N, V] become their gradient. */
    void (*cross_entropy)(acc *loss, real *logits, const int *label, double scale, int n, int vocab);
    /* The same of logits that are split over ranks by column: this rank has [N, stride], of which columns [0, vocab) are
     * tokens first, first + 1, ... and the others are padding. top[N]: the largest of mine, -inf if I have none; */
    void (*logits_top)(acc *top, const real *logits, int n, int vocab, int stride);
    /* with top the largest of all ranks': total[N], my sum of exp(logit - top), and target[N], the label's logit - top, if it
     * is mine, else 0; */
    void (*logits_sum)(acc *total, acc *target, const real *logits, const acc *top, const int *label, int first, int n,
                       int vocab, int stride);
    /* with both summed over the ranks: loss[N] as above, and my logits become their gradient, padding's 0. */
    void (*logits_gradient)(acc *loss, real *logits, const acc *top, const acc *total, const acc *target,
                            const int *label, int first, double scale, int n, int vocab, int stride);

    /* --- over flat buffers --- */

    /* w[i] = the rng_normal of (seed, stream, first + i); std 0: 1 */
    void (*draw)(acc *w, size_t first, size_t n, uint64_t seed, uint64_t stream, double std);
    /* w = master in the type of activations; nothing where they are the same memory */
    void (*cast)(real *w, const acc *master, size_t n);
    /* sum[i] adds x[i] */
    void (*add)(acc *sum, const acc *x, size_t n);
    void (*add_real)(acc *sum, const real *x, size_t n);
    /* total adds the sum of x, and of x^2, always in the same order */
    void (*sum)(double *total, const acc *x, size_t n);
    void (*sum_squares)(double *total, const acc *x, size_t n);
    /* AdamW (Loshchilov and Hutter, 2019): master and moments m, v from g, times the clip factor; then w = master. Neither
     * this nor sgd changes anything in a step whose squares are not finite. */
    void (*adamw)(real *w, acc *master, acc *m, acc *v, const acc *g, size_t n, double weight_decay,
                  const StepScalars *step);
    /* master -= lr (g times the clip factor + weight_decay master); then w = master */
    void (*sgd)(real *w, acc *master, const acc *g, size_t n, double weight_decay, const StepScalars *step);
};

/* The CPU backend with its default variants; without a backend's name in builds that have none (bf16). */
Kernels kernels_cpu(void);

/* The GPU backend, on GPU number local_rank modulo those that are visible, which becomes this process's device. Returns
 * NULL, or a complaint if there is no GPU or no CUDA in this build. */
const char *kernels_cuda(Kernels *kernels, int local_rank);

/* Replaces an entry by a variant: "linear=naive". Returns NULL or a complaint that lists what there is. */
const char *kernels_choose(Kernels *kernels, const char *choice);

/* Sets the threads of the CPU's kernels. */
void kernels_set_threads(int threads);
