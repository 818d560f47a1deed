/* QK-norm and RoPE on the q and k parts of qkv[N, (H + 2K) D]. A warp computes one head of one row at a time. */
#include "math.cuh"

/* PARTS: blocks of a backward pass with QK-norm. PAIRS: the most pairs (d, d + D/2) that one lane holds. */
enum { THREADS = 256, WARPS = THREADS / 32, PARTS = 512, PAIRS = CUDA_HEAD_DIM_MAX / 2 / 32 };

/* Returns this warp's head and sets its row. `turned` heads of a row are rotated: those of q, then those of k. */
static __device__ int my_head(int *row, int turned)
{
    int warp = blockIdx.x * WARPS + threadIdx.x / 32;
    *row = warp / turned;
    return warp % turned;
}

static __global__ void forward(real *qkv, real *raw, acc *rstd, const real *wq, const real *wk, const acc *rope,
                               const int *position, acc eps, int n, int heads, int kv_heads, int head_dim)
{
    int row, turned = heads + kv_heads, h = my_head(&row, turned), half = head_dim / 2;
    if (row >= n) return;
    size_t at = (size_t)row * turned + h;
    real *head = qkv + (size_t)row * (heads + 2 * kv_heads) * head_dim + (size_t)h * head_dim; /* [D] */
    const acc *table = rope + (size_t)position[row] * head_dim;                                /* [D] */
    acc factor = 1;
    if (wq) {
        acc squares = 0;
        for (int d = threadIdx.x % 32; d < head_dim; d += 32) {
            squares += to_acc(head[d]) * to_acc(head[d]);
            raw[at * head_dim + d] = head[d];
        }
        factor = 1 / sqrt(warp_sum(squares) / head_dim + eps);
        if (threadIdx.x % 32 == 0) rstd[at] = factor;
    }
    const real *w = h < heads ? wq : wk;
    for (int d = threadIdx.x % 32; d < half; d += 32) {
        acc a = to_acc(head[d]), b = to_acc(head[half + d]);
        if (wq) a *= factor * to_acc(w[d]), b *= factor * to_acc(w[half + d]);
        head[d] = to_real(a * table[d] - b * table[half + d]);
        head[half + d] = to_real(b * table[d] + a * table[half + d]);
    }
}

/* Rotates the gradient back, then computes the gradient through the norm. Each warp handles a contiguous run of (row,
 * head). With QK-norm it sums its part of dwq and dwk in registers and writes it to part[warp, 2, D]. Without QK-norm,
 * part is NULL. */
static __global__ void backward(real *dqkv, acc *part, const real *raw, const acc *rstd, const real *wq, const real *wk,
                                const acc *rope, const int *position, int n, int heads, int kv_heads, int head_dim)
{
    int turned = heads + kv_heads, half = head_dim / 2, lane = threadIdx.x % 32;
    int warp = blockIdx.x * WARPS + threadIdx.x / 32, warps = gridDim.x * WARPS;
    long count = (long)n * turned, begin = count * warp / warps, end = count * (warp + 1) / warps;
    acc share[2][2][PAIRS] = {}; /* this warp's part of [dwq, dwk] [d < D/2, d >= D/2] [the lane's pairs] */
    for (long at = begin; at < end; at++) {
        int row = (int)(at / turned), h = (int)(at % turned);
        real *head = dqkv + (size_t)row * (heads + 2 * kv_heads) * head_dim + (size_t)h * head_dim;
        const acc *table = rope + (size_t)position[row] * head_dim;
        const real *w = h < heads ? wq : wk, *kept = raw + at * head_dim;
        acc a[PAIRS], b[PAIRS], mean = 0, factor = wq ? rstd[at] : acc(1);
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            int d = lane + 32 * p;
            if (d >= half) break;
            acc x = to_acc(head[d]), y = to_acc(head[half + d]);
            a[p] = x * table[d] + y * table[half + d];
            b[p] = y * table[d] - x * table[half + d];
            if (wq) mean += a[p] * to_acc(w[d]) * to_acc(kept[d]) + b[p] * to_acc(w[half + d]) * to_acc(kept[half + d]);
        }
        mean = warp_sum(mean) * factor / head_dim;
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            int d = lane + 32 * p;
            if (d >= half) break;
            if (wq) {
                acc u = to_acc(kept[d]) * factor, v = to_acc(kept[half + d]) * factor;
                share[h >= heads][0][p] += a[p] * u;
                share[h >= heads][1][p] += b[p] * v;
                a[p] = factor * (a[p] * to_acc(w[d]) - u * mean);
                b[p] = factor * (b[p] * to_acc(w[half + d]) - v * mean);
            }
            head[d] = to_real(a[p]);
            head[half + d] = to_real(b[p]);
        }
    }
    if (!part) return;
    for (int which = 0; which < 2; which++)
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            int d = lane + 32 * p;
            if (d >= half) break;
            part[((size_t)warp * 2 + which) * head_dim + d] = share[which][0][p];
            part[((size_t)warp * 2 + which) * head_dim + half + d] = share[which][1][p];
        }
}

/* dwq, dwk += the sum of part[parts, 2, D]. A warp per element; the order of the additions is fixed. */
static __global__ void add_parts(acc *dwq, acc *dwk, const acc *part, int parts, int head_dim)
{
    int column = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (column >= 2 * head_dim) return;
    acc total = 0;
    for (int p = threadIdx.x % 32; p < parts; p += 32) total += part[(size_t)p * 2 * head_dim + column];
    total = warp_sum(total);
    if (threadIdx.x % 32 == 0) (column < head_dim ? dwq + column : dwk + column - head_dim)[0] += total;
}

size_t cuda_qk_rope_workspace(int head_dim)
{
    return (size_t)PARTS * WARPS * 2 * head_dim * sizeof(acc);
}

void cuda_qk_rope_forward(real *qkv, real *raw, acc *rstd, const real *wq, const real *wk, const acc *rope,
                          const int *position, double eps, int n, int heads, int kv_heads, int head_dim)
{
    long warps = (long)n * (heads + kv_heads);
    forward<<<(unsigned)((warps + WARPS - 1) / WARPS), THREADS, 0, cuda_stream()>>>(
        qkv, raw, rstd, wq, wk, rope, position, (acc)eps, n, heads, kv_heads, head_dim);
    CUDA_LAUNCHED();
}

void cuda_qk_rope_backward(real *dqkv, acc *dwq, acc *dwk, const real *raw, const acc *rstd, const real *wq,
                           const real *wk, const acc *rope, const int *position, int n, int heads, int kv_heads,
                           int head_dim)
{
    acc *part = wq ? (acc *)cuda_workspace(cuda_qk_rope_workspace(head_dim)) : NULL;
    unsigned blocks = wq ? (unsigned)PARTS : blocks_for((size_t)n * (heads + kv_heads), WARPS);
    backward<<<blocks, THREADS, 0, cuda_stream()>>>(dqkv, part, raw, rstd, wq, wk, rope, position, n, heads, kv_heads,
                                                    head_dim);
    CUDA_LAUNCHED();
    if (!wq) return;
    add_parts<<<(2 * head_dim * 32 + THREADS - 1) / THREADS, THREADS, 0, cuda_stream()>>>(dwq, dwk, part, PARTS * WARPS,
                                                                                          head_dim);
    CUDA_LAUNCHED();
}
