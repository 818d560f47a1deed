/* Attention by tiles: one small matrix product (CBLAS) computes the scores of a tile of queries and a tile of keys. The
 * online softmax of FlashAttention (Dao et al., 2022) carries the result from one tile of keys to the next, so the N x
 * N matrix of scores is never stored. Tiles of keys before the first and after the last key that the queries see are
 * skipped. The formulas are those of attention_naive.c; this file is about ten times faster. */
#include <cblas.h>
#include <math.h>
#include <string.h>

#include "cpu.h"

#if defined(PRECISION_FP64)
#define GEMM cblas_dgemm
#else
#define GEMM cblas_sgemm
#endif

enum { TILE_Q = 64, TILE_K = 128 };

/* Query r of a tile sees the keys with indices [first[r], last[r]). Together the queries see keys in [lowest,
 * highest). */
typedef struct {
    int first[TILE_Q], last[TILE_Q];
    int lowest, highest;
} TileKeys;

static TileKeys keys_of_tile(AttentionShape s, int i0, int i1)
{
    TileKeys t = {.lowest = s.keys, .highest = 0};
    for (int r = 0; r < i1 - i0; r++) {
        t.first[r] = cpu_lower_bound(s.key_id, s.keys, s.lo[i0 + r]);
        t.last[r] = cpu_lower_bound(s.key_id, s.keys, s.hi[i0 + r]);
        if (t.first[r] >= t.last[r]) continue; /* sees nothing */
        if (t.first[r] < t.lowest) t.lowest = t.first[r];
        if (t.last[r] > t.highest) t.highest = t.last[r];
    }
    return t;
}

/* Query r sees the keys [j0 + *a, j0 + *b) of the tile [j0, j1). *a = *b = 0 if it sees none of them. */
static void keys_of_row(const TileKeys *t, int r, int j0, int j1, int *a, int *b)
{
    *a = t->first[r] > j0 ? t->first[r] - j0 : 0;
    *b = (t->last[r] < j1 ? t->last[r] : j1) - j0;
    if (*a >= *b) *a = *b = 0;
}

static void forward_tile(real *out, acc *fold, acc *lse, const real *q, const real *k, const real *v, AttentionShape s,
                         int i0, int i1, int h)
{
    int D = s.head_dim, rows = i1 - i0;
    TileKeys seen = keys_of_tile(s, i0, i1);
    real score[TILE_Q][TILE_K];
    acc sum[TILE_Q * HEAD_DIM_MAX], top[TILE_Q], total[TILE_Q]; /* sum [rows, D]: unnormalized result */
    memset(sum, 0, (size_t)rows * D * sizeof sum[0]);
    for (int r = 0; r < rows; r++) {
        top[r] = -INFINITY;
        total[r] = 0;
    }

    for (int j0 = seen.lowest; j0 < seen.highest; j0 += TILE_K) {
        int j1 = j0 + TILE_K < seen.highest ? j0 + TILE_K : seen.highest, keys = j1 - j0;
        GEMM(CblasRowMajor, CblasNoTrans, CblasTrans, rows, keys, D, 1 / (real)sqrt(D), q + i0 * s.q_stride,
             (int)s.q_stride, k + j0 * s.kv_stride, (int)s.kv_stride, 0, &score[0][0], TILE_K);
        for (int r = 0; r < rows; r++) {
            int a, b;
            real *p = score[r];
            keys_of_row(&seen, r, j0, j1, &a, &b);
            acc new_top = top[r];
#pragma omp simd reduction(max : new_top)
            for (int j = a; j < b; j++) new_top = p[j] > new_top ? p[j] : new_top;
            if (a < b) {
                acc rescale = (acc)exp(top[r] - new_top);
                for (int j = a; j < b; j++) p[j] -= new_top;
                cpu_exp(p + a, p + a, b - a);
                acc add = 0;
#pragma omp simd reduction(+ : add)
                for (int j = a; j < b; j++) add += p[j];
                total[r] = total[r] * rescale + add;
                for (int d = 0; d < D; d++) sum[r * D + d] *= rescale;
                top[r] = new_top;
            }
            memset(p, 0, (size_t)a * sizeof *p);
            memset(p + b, 0, (size_t)(keys - b) * sizeof *p);
        }
        GEMM(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, D, keys, 1, &score[0][0], TILE_K, v + j0 * s.kv_stride,
             (int)s.kv_stride, 1, sum, D);
    }

    for (int r = 0; r < rows; r++) {
        size_t at = (size_t)(i0 + r) * s.heads + h;
        acc result[HEAD_DIM_MAX] = {0};
        if (s.flags & ATTENTION_FIRST)
            lse[at] = -INFINITY;
        else
            memcpy(result, fold + at * D, (size_t)D * sizeof *fold);
        cpu_attention_merge(result, &lse[at], sum + r * D, top[r], total[r], D);
        if (s.flags & ATTENTION_LAST)
            memcpy(out + at * D, result, (size_t)D * sizeof *out);
        else
            memcpy(fold + at * D, result, (size_t)D * sizeof *fold);
    }
}

void attention_forward_blocks(real *out, acc *fold, acc *lse, const real *q, const real *k, const real *v,
                              AttentionShape s)
{
    int sharing = s.heads / s.kv_heads;
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int i0 = 0; i0 < s.queries; i0 += TILE_Q)
        for (int h = 0; h < s.heads; h++) {
            size_t head = (size_t)h * s.head_dim, kv_head = (size_t)(h / sharing) * s.head_dim;
            int i1 = i0 + TILE_Q < s.queries ? i0 + TILE_Q : s.queries;
            forward_tile(out, fold, lse, q + head, k + kv_head, v + kv_head, s, i0, i1, h);
        }
}

typedef struct {
    const real *q, *k, *v, *dout, *out; /* from this head's first column on; dout, out: [queries, H D] */
    const acc *lse, *dot;               /* [queries, H] */
    acc *dk, *dv;                       /* from this key/value head's first column on */
    size_t d_stride;                    /* elements from one row of dk and dv to the next */
} Head;

/* For one tile: overwrites score with p = exp(score - lse), and dp with ds = p (dp - dot) / sqrt(D). Both are 0 where
 * the query does not see the key. */
static void softmax_gradient(real score[TILE_Q][TILE_K], real dp[TILE_Q][TILE_K], Head head, AttentionShape s,
                             const TileKeys *seen, int i0, int i1, int j0, int j1, int h)
{
    real scale = 1 / (real)sqrt(s.head_dim);
    for (int r = 0; r < i1 - i0; r++) {
        int a, b;
        size_t at = (size_t)(i0 + r) * s.heads + h;
        real *p = score[r], *ds = dp[r];
        keys_of_row(seen, r, j0, j1, &a, &b);
        for (int j = a; j < b; j++) p[j] -= head.lse[at];
        cpu_exp(p + a, p + a, b - a);
        for (int j = a; j < b; j++) ds[j] = p[j] * (ds[j] - head.dot[at]) * scale;
        size_t right = (size_t)(j1 - j0 - b) * sizeof *p;
        memset(p, 0, (size_t)a * sizeof *p);
        memset(ds, 0, (size_t)a * sizeof *ds);
        memset(p + b, 0, right);
        memset(ds + b, 0, right);
    }
}

static void backward_tile(real *dq, acc *dq_fold, Head head, AttentionShape s, int i0, int i1, int h)
{
    int D = s.head_dim, rows = i1 - i0, row_width = s.heads * D;
    TileKeys seen = keys_of_tile(s, i0, i1);
    real score[TILE_Q][TILE_K], dp[TILE_Q][TILE_K];
    acc dqi[TILE_Q * HEAD_DIM_MAX]; /* [rows, D] */
    for (int r = 0; r < rows; r++) {
        size_t at = (size_t)(i0 + r) * s.heads + h;
        if (s.flags & ATTENTION_FIRST)
            memset(dqi + r * D, 0, (size_t)D * sizeof *dqi);
        else
            memcpy(dqi + r * D, dq_fold + at * D, (size_t)D * sizeof *dqi);
    }

    const real *qi = head.q + i0 * s.q_stride, *douti = head.dout + (size_t)i0 * row_width;
    for (int j0 = seen.lowest; j0 < seen.highest; j0 += TILE_K) {
        int j1 = j0 + TILE_K < seen.highest ? j0 + TILE_K : seen.highest, keys = j1 - j0;
        const real *kj = head.k + j0 * s.kv_stride, *vj = head.v + j0 * s.kv_stride;
        int q_ld = (int)s.q_stride, kv_ld = (int)s.kv_stride, d_ld = (int)head.d_stride;
        GEMM(CblasRowMajor, CblasNoTrans, CblasTrans, rows, keys, D, 1 / (real)sqrt(D), qi, q_ld, kj, kv_ld, 0,
             &score[0][0], TILE_K);
        GEMM(CblasRowMajor, CblasNoTrans, CblasTrans, rows, keys, D, 1, douti, row_width, vj, kv_ld, 0, &dp[0][0],
             TILE_K);
        softmax_gradient(score, dp, head, s, &seen, i0, i1, j0, j1, h);
        GEMM(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, D, keys, 1, &dp[0][0], TILE_K, kj, kv_ld, 1, dqi, D);
        GEMM(CblasRowMajor, CblasTrans, CblasNoTrans, keys, D, rows, 1, &dp[0][0], TILE_K, qi, q_ld, 1,
             head.dk + j0 * head.d_stride, d_ld);
        GEMM(CblasRowMajor, CblasTrans, CblasNoTrans, keys, D, rows, 1, &score[0][0], TILE_K, douti, row_width, 1,
             head.dv + j0 * head.d_stride, d_ld);
    }

    for (int r = 0; r < rows; r++) {
        size_t at = (size_t)(i0 + r) * s.heads + h;
        if (s.flags & ATTENTION_LAST)
            memcpy(dq + (i0 + r) * s.q_stride + (size_t)h * D, dqi + r * D, (size_t)D * sizeof *dq);
        else
            memcpy(dq_fold + at * D, dqi + r * D, (size_t)D * sizeof *dq_fold);
    }
}

/* Each thread computes whole key/value heads, so no two threads add to the same element of dk and dv. */
void attention_backward_blocks(real *dq, acc *dq_fold, real *dk, real *dv, acc *dk_fold, acc *dv_fold, acc *dot,
                               const real *dout, const real *out, const acc *lse, const real *q, const real *k,
                               const real *v, AttentionShape s)
{
    int D = s.head_dim, sharing = s.heads / s.kv_heads;
    if (s.flags & ATTENTION_FIRST) cpu_attention_dot(dot, dout, out, s.queries, s.heads, D);
    acc *dk_to = dk_fold ? dk_fold : dk, *dv_to = dv_fold ? dv_fold : dv;
    size_t d_stride = dk_fold ? (size_t)s.kv_heads * D : s.kv_stride;

#pragma omp parallel for
    for (int g = 0; g < s.kv_heads; g++) {
        size_t kv_head = (size_t)g * D;
        if (!dk_fold)
            for (int j = 0; j < s.keys; j++) {
                memset(dk_to + j * d_stride + kv_head, 0, (size_t)D * sizeof *dk_to);
                memset(dv_to + j * d_stride + kv_head, 0, (size_t)D * sizeof *dv_to);
            }
        for (int h = g * sharing; h < (g + 1) * sharing; h++) {
            size_t head = (size_t)h * D;
            Head parts = {q + head, k + kv_head, v + kv_head,     dout + head,     out + head,
                          lse,      dot,         dk_to + kv_head, dv_to + kv_head, d_stride};
            for (int i0 = 0; i0 < s.queries; i0 += TILE_Q) {
                int i1 = i0 + TILE_Q < s.queries ? i0 + TILE_Q : s.queries;
                backward_tile(dq, dq_fold, parts, s, i0, i1, h);
            }
        }
    }
}
