/* Attention written as its formula: for each query and head, the first pass over the keys finds the largest score, the
 * second pass computes the sums. This file also holds the helpers that attention_blocks.c shares. */
#include <math.h>
#include <string.h>

#include "cpu.h"

int cpu_lower_bound(const int *id, int count, int value)
{
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (id[middle] < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* lse' = log(exp(lse) + exp(lse_block));  out' = exp(lse - lse') out + exp(top - lse') block. */
void cpu_attention_merge(acc *out, acc *lse, const acc *block, acc top, acc total, int head_dim)
{
    if (total == 0) return;
    if (*lse == -INFINITY) { /* the first block */
        *lse = top + (acc)log(total);
        for (int d = 0; d < head_dim; d++) out[d] = block[d] / total;
        return;
    }
    acc lse_block = top + (acc)log(total);
    acc larger = *lse > lse_block ? *lse : lse_block;
    acc merged = larger + (acc)log(exp(*lse - larger) + exp(lse_block - larger));
    acc keep = (acc)exp(*lse - merged), add = (acc)exp(top - merged);
    for (int d = 0; d < head_dim; d++) out[d] = keep * out[d] + add * block[d];
    *lse = merged;
}

static acc score(const real *q, const real *k, int head_dim)
{
    acc sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int d = 0; d < head_dim; d++) sum += q[d] * k[d];
    return sum / (acc)sqrt(head_dim);
}

void attention_forward_naive(real *out, acc *fold, acc *lse, const real *q, const real *k, const real *v,
                             AttentionShape s)
{
    int D = s.head_dim, sharing = s.heads / s.kv_heads; /* query heads per key/value head */
#pragma omp parallel for schedule(dynamic, 8)
    for (int i = 0; i < s.queries; i++) {
        int first = cpu_lower_bound(s.key_id, s.keys, s.lo[i]), last = cpu_lower_bound(s.key_id, s.keys, s.hi[i]);
        for (int h = 0; h < s.heads; h++) {
            const real *qi = q + i * s.q_stride + (size_t)h * D;
            const real *kh = k + (size_t)(h / sharing) * D, *vh = v + (size_t)(h / sharing) * D;
            size_t at = (size_t)i * s.heads + h;
            acc result[HEAD_DIM_MAX] = {0}, block[HEAD_DIM_MAX] = {0}, top = -INFINITY, total = 0;

            for (int j = first; j < last; j++) {
                acc x = score(qi, kh + j * s.kv_stride, D);
                if (x > top) top = x;
            }
            for (int j = first; j < last; j++) {
                acc p = (acc)exp(score(qi, kh + j * s.kv_stride, D) - top);
                total += p;
                for (int d = 0; d < D; d++) block[d] += p * vh[j * s.kv_stride + d];
            }

            if (s.flags & ATTENTION_FIRST)
                lse[at] = -INFINITY;
            else
                memcpy(result, fold + at * D, (size_t)D * sizeof *fold);
            cpu_attention_merge(result, &lse[at], block, top, total, D);
            if (s.flags & ATTENTION_LAST)
                for (int d = 0; d < D; d++) out[at * D + d] = result[d];
            else
                memcpy(fold + at * D, result, (size_t)D * sizeof *fold);
        }
    }
}

void cpu_attention_dot(acc *dot, const real *dout, const real *out, int rows, int heads, int head_dim)
{
#pragma omp parallel for
    for (size_t r = 0; r < (size_t)rows * heads; r++) {
        acc sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int d = 0; d < head_dim; d++) sum += dout[r * head_dim + d] * out[r * head_dim + d];
        dot[r] = sum;
    }
}

/* With p_ij = exp(s_ij - lse_i):  dv_j = sum_i p_ij dout_i;  ds_ij = p_ij (dout_i v_j - dot_i);
 * dq_i = sum_j ds_ij k_j / sqrt(D);  dk_j = sum_i ds_ij q_i / sqrt(D).
 * Each thread computes whole key/value heads, so no two threads write the same element of dk and dv. */
void attention_backward_naive(real *dq, acc *dq_fold, real *dk, real *dv, acc *dk_fold, acc *dv_fold, acc *dot,
                              const real *dout, const real *out, const acc *lse, const real *q, const real *k,
                              const real *v, AttentionShape s)
{
    int D = s.head_dim, sharing = s.heads / s.kv_heads;
    acc scale = 1 / (acc)sqrt(D);
    if (s.flags & ATTENTION_FIRST) cpu_attention_dot(dot, dout, out, s.queries, s.heads, D);
    acc *dk_to = dk_fold ? dk_fold : dk, *dv_to = dv_fold ? dv_fold : dv;
    size_t d_stride = dk_fold ? (size_t)s.kv_heads * D : s.kv_stride;

#pragma omp parallel for
    for (int g = 0; g < s.kv_heads; g++) {
        const real *kg = k + (size_t)g * D, *vg = v + (size_t)g * D;
        acc *dkg = dk_to + (size_t)g * D, *dvg = dv_to + (size_t)g * D;
        if (!dk_fold)
            for (int j = 0; j < s.keys; j++) {
                memset(dkg + j * d_stride, 0, (size_t)D * sizeof *dkg);
                memset(dvg + j * d_stride, 0, (size_t)D * sizeof *dvg);
            }
        for (int i = 0; i < s.queries; i++) {
            int first = cpu_lower_bound(s.key_id, s.keys, s.lo[i]), last = cpu_lower_bound(s.key_id, s.keys, s.hi[i]);
            for (int h = g * sharing; h < (g + 1) * sharing; h++) {
                size_t at = (size_t)i * s.heads + h;
                const real *qi = q + i * s.q_stride + (size_t)h * D, *di = dout + at * D;
                acc dqi[HEAD_DIM_MAX] = {0};
                if (!(s.flags & ATTENTION_FIRST)) memcpy(dqi, dq_fold + at * D, (size_t)D * sizeof *dqi);
                for (int j = first; j < last; j++) {
                    const real *kj = kg + j * s.kv_stride, *vj = vg + j * s.kv_stride;
                    acc *dkj = dkg + j * d_stride, *dvj = dvg + j * d_stride;
                    acc p = (acc)exp(score(qi, kj, D) - lse[at]), dp = 0;
                    for (int d = 0; d < D; d++) dp += di[d] * vj[d];
                    acc ds = p * (dp - dot[at]) * scale;
                    for (int d = 0; d < D; d++) {
                        dqi[d] += ds * kj[d];
                        dkj[d] += ds * qi[d];
                        dvj[d] += p * di[d];
                    }
                }
                if (s.flags & ATTENTION_LAST)
                    for (int d = 0; d < D; d++) dq[i * s.q_stride + (size_t)h * D + d] = dqi[d];
                else
                    memcpy(dq_fold + at * D, dqi, (size_t)D * sizeof *dqi);
            }
        }
    }
}
