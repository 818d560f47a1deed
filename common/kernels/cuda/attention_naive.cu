/* Attention written as its formula, for every precision and every head size up to CUDA_HEAD_DIM_MAX. A warp computes
 * one query and head and loops over the keys, 32 at a time; for dk and dv, a warp computes one key and key/value head
 * and loops over the queries. It is slow for long sequences; attention_flash_*.cu is fast. */
#include "math.cuh"

enum { THREADS = 128, WARPS = THREADS / 32, CHUNKS = CUDA_HEAD_DIM_MAX / 32 };

/* The first index in the ascending array id[count] whose value is at least `value`. */
static __device__ int lower_bound(const int *id, int count, int value)
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

static __device__ acc dot_of(const real *a, const real *b, int head_dim)
{
    acc sum = 0;
    for (int d = 0; d < head_dim; d++) sum += to_acc(a[d]) * to_acc(b[d]);
    return sum;
}

/* For the scores, each lane takes one of 32 keys. For the sums, each lane takes the columns lane, lane + 32, ... */
static __global__ void forward(real *out, acc *fold, acc *lse, const real *q, const real *k, const real *v,
                               AttentionShape s)
{
    int warp = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, D = s.head_dim;
    int i = warp / s.heads, h = warp % s.heads;
    if (i >= s.queries) return;
    size_t at = (size_t)i * s.heads + h, kv = (size_t)(h / (s.heads / s.kv_heads)) * D;
    const real *qi = q + i * s.q_stride + (size_t)h * D;
    acc scale = 1 / sqrt((acc)D);
    int first = lower_bound(s.key_id, s.keys, s.lo[i]), last = lower_bound(s.key_id, s.keys, s.hi[i]);

    acc top = -INFINITY, total = 0, block[CHUNKS] = {};
    for (int j = first + lane; j < last; j += 32) {
        acc x = dot_of(qi, k + j * s.kv_stride + kv, D) * scale;
        top = x > top ? x : top;
    }
    top = warp_max(top);
    for (int j0 = first; j0 < last; j0 += 32) {
        acc mine = j0 + lane < last ? exp(dot_of(qi, k + (j0 + lane) * s.kv_stride + kv, D) * scale - top) : acc(0);
        total += warp_sum(mine);
        for (int l = 0; l < 32 && j0 + l < last; l++) {
            acc p = __shfl_sync(0xffffffffu, mine, l);
            const real *vj = v + (j0 + l) * s.kv_stride + kv;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++)
                if (lane + 32 * c < D) block[c] += p * to_acc(vj[lane + 32 * c]);
        }
    }

    /* merge this block of keys into the result of earlier blocks, see cpu_attention_merge */
    acc before = s.flags & ATTENTION_FIRST ? acc(-INFINITY) : lse[at], merged = before, keep = 1, add = 0;
    if (last > first) {
        acc lse_block = top + log(total), larger = before > lse_block ? before : lse_block;
        merged = larger + log(exp(before - larger) + exp(lse_block - larger));
        keep = exp(before - merged);
        add = exp(top - merged);
    }
    __syncwarp(); /* all lanes must have read lse before lane 0 overwrites it */
    if (lane == 0) lse[at] = merged;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        int d = lane + 32 * c;
        if (d >= D) break;
        acc result = add * block[c];
        if (!(s.flags & ATTENTION_FIRST)) result += keep * fold[at * D + d];
        if (s.flags & ATTENTION_LAST)
            out[at * D + d] = to_real(result);
        else
            fold[at * D + d] = result;
    }
}

/* dot[r] = dout_r out_r; a warp per (query, head) r. */
static __global__ void row_dots(acc *dot, const real *dout, const real *out, int rows, int head_dim)
{
    int r = blockIdx.x * WARPS + threadIdx.x / 32;
    if (r >= rows) return;
    acc sum = 0;
    for (int d = threadIdx.x % 32; d < head_dim; d += 32)
        sum += to_acc(dout[(size_t)r * head_dim + d]) * to_acc(out[(size_t)r * head_dim + d]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) dot[r] = sum;
}

/* dq_i = sum_j ds_ij k_j / sqrt(D), with ds_ij = p_ij (dout_i v_j - dot_i). */
static __global__ void backward_q(real *dq, acc *dq_fold, const acc *dot, const real *dout, const acc *lse,
                                  const real *q, const real *k, const real *v, AttentionShape s)
{
    int warp = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, D = s.head_dim;
    int i = warp / s.heads, h = warp % s.heads;
    if (i >= s.queries) return;
    size_t at = (size_t)i * s.heads + h, kv = (size_t)(h / (s.heads / s.kv_heads)) * D;
    const real *qi = q + i * s.q_stride + (size_t)h * D, *douti = dout + at * D;
    acc scale = 1 / sqrt((acc)D), sum[CHUNKS] = {};
    int first = lower_bound(s.key_id, s.keys, s.lo[i]), last = lower_bound(s.key_id, s.keys, s.hi[i]);
    for (int j0 = first; j0 < last; j0 += 32) {
        acc mine = 0;
        if (j0 + lane < last) {
            const real *kj = k + (j0 + lane) * s.kv_stride + kv, *vj = v + (j0 + lane) * s.kv_stride + kv;
            mine = exp(dot_of(qi, kj, D) * scale - lse[at]) * (dot_of(douti, vj, D) - dot[at]) * scale;
        }
        for (int l = 0; l < 32 && j0 + l < last; l++) {
            acc ds = __shfl_sync(0xffffffffu, mine, l);
            const real *kj = k + (j0 + l) * s.kv_stride + kv;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++)
                if (lane + 32 * c < D) sum[c] += ds * to_acc(kj[lane + 32 * c]);
        }
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        int d = lane + 32 * c;
        if (d >= D) break;
        if (!(s.flags & ATTENTION_FIRST)) sum[c] += dq_fold[at * D + d];
        if (s.flags & ATTENTION_LAST)
            dq[i * s.q_stride + (size_t)h * D + d] = to_real(sum[c]);
        else
            dq_fold[at * D + d] = sum[c];
    }
}

/* dv_j = sum_i p_ij dout_i;  dk_j = sum_i ds_ij q_i / sqrt(D), summed over all query heads that read this key/value
 * head. */
static __global__ void backward_kv(real *dk, real *dv, acc *dk_fold, acc *dv_fold, const acc *dot, const real *dout,
                                   const acc *lse, const real *q, const real *k, const real *v, AttentionShape s)
{
    int warp = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, D = s.head_dim;
    int j = warp / s.kv_heads, g = warp % s.kv_heads, sharing = s.heads / s.kv_heads;
    if (j >= s.keys) return;
    const real *kj = k + j * s.kv_stride + (size_t)g * D, *vj = v + j * s.kv_stride + (size_t)g * D;
    acc scale = 1 / sqrt((acc)D), sum_k[CHUNKS] = {}, sum_v[CHUNKS] = {};
    int id = s.key_id[j];
    for (int i0 = 0; i0 < s.queries; i0 += 32) {
        int i = i0 + lane;
        unsigned seen = __ballot_sync(0xffffffffu, i < s.queries && s.lo[i] <= id && id < s.hi[i]);
        if (!seen) continue;
        for (int h = g * sharing; h < (g + 1) * sharing; h++) {
            size_t at = (size_t)i * s.heads + h;
            acc p = 0, ds = 0;
            if (seen >> lane & 1) {
                p = exp(dot_of(q + i * s.q_stride + (size_t)h * D, kj, D) * scale - lse[at]);
                ds = p * (dot_of(dout + at * D, vj, D) - dot[at]) * scale;
            }
            for (int l = 0; l < 32; l++) {
                if (!(seen >> l & 1)) continue;
                acc pl = __shfl_sync(0xffffffffu, p, l), dsl = __shfl_sync(0xffffffffu, ds, l);
                const real *ql = q + (i0 + l) * s.q_stride + (size_t)h * D;
                const real *dl = dout + ((size_t)(i0 + l) * s.heads + h) * D;
#pragma unroll
                for (int c = 0; c < CHUNKS; c++)
                    if (lane + 32 * c < D) {
                        sum_k[c] += dsl * to_acc(ql[lane + 32 * c]);
                        sum_v[c] += pl * to_acc(dl[lane + 32 * c]);
                    }
            }
        }
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        int d = lane + 32 * c;
        if (d >= D) break;
        size_t at = ((size_t)j * s.kv_heads + g) * D + d, strided = j * s.kv_stride + (size_t)g * D + d;
        if (dk_fold)
            dk_fold[at] += sum_k[c], dv_fold[at] += sum_v[c];
        else
            dk[strided] = to_real(sum_k[c]), dv[strided] = to_real(sum_v[c]);
    }
}

static unsigned blocks_of_warps(long warps)
{
    return (unsigned)((warps + WARPS - 1) / WARPS);
}

void cuda_attention_forward_naive(real *out, acc *fold, acc *lse, const real *q, const real *k, const real *v,
                                  AttentionShape s)
{
    unsigned blocks = blocks_of_warps((long)s.queries * s.heads);
    forward<<<blocks, THREADS, 0, cuda_stream()>>>(out, fold, lse, q, k, v, s);
    CUDA_LAUNCHED();
}

void cuda_attention_backward_naive(real *dq, acc *dq_fold, real *dk, real *dv, acc *dk_fold, acc *dv_fold, acc *dot,
                                   const real *dout, const real *out, const acc *lse, const real *q, const real *k,
                                   const real *v, AttentionShape s)
{
    unsigned query_blocks = blocks_of_warps((long)s.queries * s.heads);
    if (s.flags & ATTENTION_FIRST)
        row_dots<<<query_blocks, THREADS, 0, cuda_stream()>>>(dot, dout, out, s.queries * s.heads, s.head_dim);
    backward_q<<<query_blocks, THREADS, 0, cuda_stream()>>>(dq, dq_fold, dot, dout, lse, q, k, v, s);
    backward_kv<<<blocks_of_warps((long)s.keys * s.kv_heads), THREADS, 0, cuda_stream()>>>(dk, dv, dk_fold, dv_fold,
                                                                                           dot, dout, lse, q, k, v, s);
    CUDA_LAUNCHED();
}
