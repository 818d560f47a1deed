/* QK-norm and RoPE on the q and k parts of qkv[N, (H + 2K) D]. */
#include <math.h>
#include <string.h>

#include "cpu.h"

/* Rotates the pairs (d, d + D/2) of one head. Sign -1 rotates back, as the backward pass needs. */
static void rotate(real *head, const acc *table, int head_dim, acc sign)
{
    int half = head_dim / 2;
    for (int d = 0; d < half; d++) {
        acc cosine = table[d], sine = sign * table[half + d];
        real a = head[d], b = head[half + d];
        head[d] = a * cosine - b * sine;
        head[half + d] = b * cosine + a * sine;
    }
}

void qk_rope_forward(real *qkv, real *raw, acc *rstd, const real *wq, const real *wk, const acc *rope,
                     const int *position, double eps, int n, int heads, int kv_heads, int head_dim)
{
    int turned = heads + kv_heads; /* the heads that are rotated: those of q, then those of k */
    size_t stride = (size_t)(heads + 2 * kv_heads) * head_dim;
#pragma omp parallel for
    for (int i = 0; i < n; i++) {
        if (wq)
            memcpy(raw + (size_t)i * turned * head_dim, qkv + (size_t)i * stride,
                   (size_t)turned * head_dim * sizeof *raw);
        for (int h = 0; h < turned; h++) {
            real *head = qkv + (size_t)i * stride + (size_t)h * head_dim; /* [D] */
            if (wq) {
                const real *w = h < heads ? wq : wk;
                acc squares = 0;
                for (int d = 0; d < head_dim; d++) squares += head[d] * head[d];
                acc factor = (acc)(1 / sqrt(squares / head_dim + eps));
                rstd[(size_t)i * turned + h] = factor;
                for (int d = 0; d < head_dim; d++) head[d] *= factor * w[d];
            }
            rotate(head, rope + (size_t)position[i] * head_dim, head_dim, 1);
        }
    }
}

/* The gradient through one head's norm: overwrites dhead[D], adds to dw[D]. The formula is that of
 * residual_norm_backward. */
static void norm_backward(real *dhead, acc *dw, const real *raw, acc rstd, const real *w, int head_dim)
{
    acc mean = 0;
    for (int d = 0; d < head_dim; d++) mean += dhead[d] * w[d] * raw[d];
    mean *= rstd / head_dim;
    for (int d = 0; d < head_dim; d++) {
        acc u = raw[d] * rstd;
        dw[d] += dhead[d] * u;
        dhead[d] = rstd * (dhead[d] * w[d] - u * mean);
    }
}

void qk_rope_backward(real *dqkv, acc *dwq, acc *dwk, const real *raw, const acc *rstd, const real *wq, const real *wk,
                      const acc *rope, const int *position, int n, int heads, int kv_heads, int head_dim)
{
    enum { PARTS = 16 }; /* dwq and dwk sum over rows: PARTS fixed parts of the rows, added in order at the end */
    acc part[PARTS][2 * HEAD_DIM_MAX]; /* a part's sums for dwq | dwk */
    int turned = heads + kv_heads;
    size_t stride = (size_t)(heads + 2 * kv_heads) * head_dim;
#pragma omp parallel for
    for (int p = 0; p < PARTS; p++) {
        memset(part[p], 0, sizeof part[p]);
        for (int i = (int)((long)n * p / PARTS); i < (int)((long)n * (p + 1) / PARTS); i++)
            for (int h = 0; h < turned; h++) {
                real *dhead = dqkv + (size_t)i * stride + (size_t)h * head_dim; /* [D] */
                rotate(dhead, rope + (size_t)position[i] * head_dim, head_dim, -1);
                if (!wq) continue;
                size_t at = (size_t)i * turned + h;
                acc *dw = part[p] + (h < heads ? 0 : head_dim);
                norm_backward(dhead, dw, raw + at * head_dim, rstd[at], h < heads ? wq : wk, head_dim);
            }
    }
    if (!wq) return;
    for (int p = 0; p < PARTS; p++)
        for (int d = 0; d < head_dim; d++) {
            dwq[d] += part[p][d];
            dwk[d] += part[p][head_dim + d];
        }
}
