/* Flash attention, forward. attention_flash.cuh explains the method, the tiles and the letters. */
#include "attention_flash.cuh"

/* One step of the online softmax. It updates `top` to the row's largest score so far, and rescales o and
 * `total`, which were computed with the old top. s becomes exp((s - top) / sqrt(D)) and is added to `total`, this
 * lane's part of the row's sum. scale_log2 = log2(e) / sqrt(D), because the hardware's exponential has base 2. */
template <int N, int D>
DEVICE void softmax_step(float s[N][4], float o[D / 8][4], float top[2], float total[2], float scale_log2)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float larger = top[half];
        for (int n = 0; n < N; n++) larger = fmaxf(larger, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        larger = row_max(larger);
        float shift = larger == -INFINITY ? 0 : larger * scale_log2; /* -inf: no key seen yet */
        float rescale = exp2_fast(top[half] * scale_log2 - shift);
        top[half] = larger;
        total[half] *= rescale;
        for (int d = 0; d < D / 8; d++) {
            o[d][2 * half] *= rescale;
            o[d][2 * half + 1] *= rescale;
        }
        for (int n = 0; n < N; n++)
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                s[n][e] = exp2_fast(s[n][e] * scale_log2 - shift);
                total[half] += s[n][e];
            }
    }
}

/* Grid: heads x blocks of 64 GROUPS queries. The last queries come first, because under a causal mask they see the most
 * keys. GROUPS: warpgroups in a block. BLOCKS: blocks on a multiprocessor. Shared memory: two stages; a stage is a tile
 * of k and a tile of v, each [KEYS, D]. */
template <int D, int KEYS, int GROUPS, int BLOCKS>
static __global__ void __launch_bounds__(GROUPS * 128, BLOCKS)
    forward_kernel(real *out, float *fold, float *lse, const real *q, const real *k, const real *v, AttentionShape s,
                   Spans spans)
{
    enum { N = KEYS / 8, TILE = KEYS * D * 2, THREADS = GROUPS * 128 };
    extern __shared__ __align__(1024) char shared[];
    uint32_t stages = (uint32_t)__cvta_generic_to_shared(shared);
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, h = blockIdx.x, kv_head = h / (s.heads / s.kv_heads);
    int strip0 = (gridDim.y - 1 - blockIdx.y) * GROUPS, row0 = strip0 * STRIP + threadIdx.x / 32 * 16; /* the warp's */
    float scale = rsqrtf((float)D), scale_log2 = scale * LOG2_E;
    k += kv_head * D;
    v += kv_head * D;

    Strip mine = spans.strip[row0 / STRIP];
    Span keys = keys_of_block<GROUPS>(spans.strip + strip0), see[2] = {spans.row[row0 + g], spans.row[row0 + g + 8]};
    if (keys.first < keys.last)
        load_tiles<KEYS, D, THREADS>(stages, k, s.kv_stride, v, s.kv_stride, keys.first, s.keys);
    uint32_t qi[D / 16][4]; /* [16, D] */
    load_left<D>(qi, q + h * D, s.q_stride, row0, s.queries);

    float o[D / 8][4], top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0}; /* o [16, D], unnormalized */
    clear<D / 8>(o);
    for (int j0 = keys.first, stage = 0; j0 < keys.last; j0 += KEYS, stage ^= 1) {
        int j1 = j0 + KEYS;
        uint32_t k_tile = stages + stage * 2 * TILE, v_tile = k_tile + TILE, next = stages + (stage ^ 1) * 2 * TILE;
        copies_arrived(); /* also: all warps have finished with the other stage */
        if (j1 < keys.last) load_tiles<KEYS, D, THREADS>(next, k, s.kv_stride, v, s.kv_stride, j1, s.keys);
        if (!meets(mine, j0, j1)) continue;
        float p[N][4]; /* [16, KEYS] */
        clear<N>(p);
        multiply_transposed<N, D, KEYS>(p, qi, k_tile, 0);
        finish<0, N>(p);
        if (!sees_all(mine, j0, j1)) hide<N>(p, see, j0, -INFINITY);
        softmax_step<N, D>(p, o, top, total, scale_log2);
        multiply<N, D, KEYS>(o, p, v_tile, 0);
        finish<0, D / 8>(o);
    }

#pragma unroll
    for (int half = 0; half < 2; half++) { /* merge with the running result, see cpu_attention_merge */
        int i = row0 + 8 * half + g;
        size_t at = (size_t)i * s.heads + h;
        bool open = i < s.queries && !(s.flags & ATTENTION_FIRST);
        float sum = row_sum(total[half]), base = top[half] * scale;
        float old = open ? lse[at] : -INFINITY, merged = old, keep = open ? 1 : 0, add = 0;
        if (sum > 0) {
            float here = base + logf(sum), larger = fmaxf(old, here);
            merged = larger + logf(expf(old - larger) + expf(here - larger));
            keep = expf(old - merged);
            add = expf(base - merged);
        }
        __syncwarp(); /* all four lanes of the row must have read lse before one overwrites it */
        if (i >= s.queries) continue;
        if (t == 0) lse[at] = merged;
        write_row<D>(s.flags & ATTENTION_LAST ? out + at * D : NULL, fold + at * D, o, half, keep, add);
    }
}

/* Of the shapes of tiles that fit in the registers, these were the fastest on an H200. */
template <int D>
static void forward(real *out, acc *fold, acc *lse, const real *q, const real *k, const real *v, AttentionShape s,
                    Spans spans)
{
    enum { KEYS = 64, GROUPS = D <= 64 ? 2 : 1, BLOCKS = D <= 64 ? 2 : 3, BYTES = 4 * KEYS * D * 2 };
    auto *kernel = forward_kernel<D, KEYS, GROUPS, BLOCKS>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
    dim3 grid(s.heads, divide_up(s.queries, GROUPS * 64));
    kernel<<<grid, GROUPS * 128, BYTES, cuda_stream()>>>(out, fold, lse, q, k, v, s, spans);
    CUDA_LAUNCHED();
}

void attention_forward_flash(real *out, acc *fold, acc *lse, const real *q, const real *k, const real *v,
                             AttentionShape s)
{
    Spans spans = flash_begin(s);
    switch (s.head_dim) {
    case 16: forward<16>(out, fold, lse, q, k, v, s, spans); break;
    case 32: forward<32>(out, fold, lse, q, k, v, s, spans); break;
    case 64: forward<64>(out, fold, lse, q, k, v, s, spans); break;
    case 128: forward<128>(out, fold, lse, q, k, v, s, spans); break;
    }
}
