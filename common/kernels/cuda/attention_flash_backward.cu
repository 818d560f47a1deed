/* Flash attention, backward. attention_flash.cuh explains the method, the tiles and the letters.
 *
 * p_ij = exp(s_ij - lse_i);  ds_ij = p_ij (dout_i v_j - dot_i);  dv_j = sum_i p_ij dout_i;
 * dq_i = sum_j ds_ij k_j / sqrt(D);  dk_j = sum_i ds_ij q_i / sqrt(D).
 * The product that computes dout_i v_j starts from -dot_i instead of 0, so it needs no subtraction afterwards. */
#include "attention_flash.cuh"

/* For the two rows of this lane: sums[half] = the dot product of the row of a and the row of b, over all D columns. */
template <int D> DEVICE void row_dots(float sums[2], const uint32_t a[D / 16][4], const uint32_t b[D / 16][4])
{
    sums[0] = sums[1] = 0;
    for (int k = 0; k < D / 16; k++)
        for (int e = 0; e < 4; e++) {
            float2 x = __bfloat1622float2(*(const __nv_bfloat162 *)&a[k][e]);
            float2 y = __bfloat1622float2(*(const __nv_bfloat162 *)&b[k][e]);
            sums[e % 2] += x.x * y.x + x.y * y.y;
        }
    sums[0] = row_sum(sums[0]);
    sums[1] = row_sum(sums[1]);
}

/* Computes dq and, in the FIRST call, dot. Grid: heads x strips of queries; a block owns one strip. Shared memory as in
 * the forward kernel. */
template <int D, int KEYS, int BLOCKS>
static __global__ void __launch_bounds__(128, BLOCKS)
    backward_q_kernel(real *dq, float *dq_fold, float *dot, const real *dout, const real *out, const float *lse,
                      const real *q, const real *k, const real *v, AttentionShape s, Spans spans)
{
    enum { N = KEYS / 8, TILE = KEYS * D * 2, THREADS = 128 };
    extern __shared__ __align__(1024) char shared[];
    uint32_t stages = (uint32_t)__cvta_generic_to_shared(shared);
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, h = blockIdx.x, kv_head = h / (s.heads / s.kv_heads);
    int strip = gridDim.y - 1 - blockIdx.y, row0 = strip * STRIP + threadIdx.x / 32 * 16; /* first row of the warp */
    size_t width = (size_t)s.heads * D;
    float scale = rsqrtf((float)D), scale_log2 = scale * LOG2_E;
    k += kv_head * D;
    v += kv_head * D;

    Strip keys = spans.strip[strip];
    Span see[2] = {spans.row[row0 + g], spans.row[row0 + g + 8]};
    if (keys.lowest < keys.highest)
        load_tiles<KEYS, D, THREADS>(stages, k, s.kv_stride, v, s.kv_stride, keys.lowest, s.keys);
    uint32_t qi[D / 16][4], douti[D / 16][4]; /* [16, D] */
    load_left<D>(douti, dout + h * D, width, row0, s.queries);
    float dots[2] = {0, 0}, lse_log2[2] = {0, 0};
    if (s.flags & ATTENTION_FIRST) {
        uint32_t outi[D / 16][4];
        load_left<D>(outi, out + h * D, width, row0, s.queries);
        row_dots<D>(dots, douti, outi);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int i = row0 + 8 * half + g;
        size_t at = (size_t)i * s.heads + h;
        if (i >= s.queries) continue;
        lse_log2[half] = lse[at] * LOG2_E;
        if (!(s.flags & ATTENTION_FIRST))
            dots[half] = dot[at];
        else if (t == 0)
            dot[at] = dots[half];
    }
    load_left<D>(qi, q + h * D, s.q_stride, row0, s.queries);

    float c[D / 8][4]; /* [16, D]: dq sqrt(D) */
    clear<D / 8>(c);
    for (int j0 = keys.lowest, stage = 0; j0 < keys.highest; j0 += KEYS, stage ^= 1) {
        int j1 = j0 + KEYS;
        uint32_t k_tile = stages + stage * 2 * TILE, v_tile = k_tile + TILE, next = stages + (stage ^ 1) * 2 * TILE;
        copies_arrived(); /* also: all warps have finished with the other stage */
        if (j1 < keys.highest) load_tiles<KEYS, D, THREADS>(next, k, s.kv_stride, v, s.kv_stride, j1, s.keys);
        float p[N][4], ds[N][4]; /* [16, KEYS] */
        for (int n = 0; n < N; n++)
            for (int e = 0; e < 4; e++) {
                p[n][e] = 0;
                ds[n][e] = -dots[e / 2];
            }
        tie<N>(ds);
        multiply_transposed<N, D, KEYS>(p, qi, k_tile, 0);
        multiply_transposed<N, D, KEYS>(ds, douti, v_tile, 0);
        finish<1, N>(p);
        for (int n = 0; n < N; n++)
            for (int e = 0; e < 4; e++) p[n][e] = exp2_fast(p[n][e] * scale_log2 - lse_log2[e / 2]);
        finish<0, N>(ds);
        for (int n = 0; n < N; n++)
            for (int e = 0; e < 4; e++) ds[n][e] *= p[n][e];
        if (!sees_all(keys, j0, j1)) hide<N>(ds, see, j0, 0);
        multiply<N, D, KEYS>(c, ds, k_tile, 0);
        finish<0, D / 8>(c);
    }

#pragma unroll
    for (int half = 0; half < 2; half++) {
        int i = row0 + 8 * half + g;
        if (i >= s.queries) continue;
        write_row<D>(s.flags & ATTENTION_LAST ? dq + i * s.q_stride + h * D : NULL,
                     dq_fold + ((size_t)i * s.heads + h) * D, c, half, s.flags & ATTENTION_FIRST ? 0 : 1, scale);
    }
}

/* A strip of queries in shared memory, besides q and dout. */
typedef struct {
    float lse[STRIP], dot[STRIP];
    Span see[STRIP];
} StripRows;

/* Starts copying a strip of query head h into shared memory: q and dout, [STRIP, D] each, to `tiles`; a StripRows to
 * `rows`. Queries that do not exist become zeros, so they add nothing. */
template <int D, int THREADS>
DEVICE void load_strip(uint32_t tiles, uint32_t rows, const real *q, const real *dout, const float *lse,
                       const float *dot, const Span *see, AttentionShape s, int strip, int h)
{
    int lane = threadIdx.x % STRIP, i = strip * STRIP + lane;
    size_t at = (size_t)i * s.heads + h;
    load_tiles<STRIP, D, THREADS>(tiles, q + h * D, s.q_stride, dout + h * D, (size_t)s.heads * D, strip * STRIP,
                                  s.queries);
    if (threadIdx.x < STRIP) {
        copy_async<4>(rows + offsetof(StripRows, lse) + lane * 4, lse + at, i < s.queries);
        copy_async<4>(rows + offsetof(StripRows, dot) + lane * 4, dot + at, i < s.queries);
    } else if (threadIdx.x < 2 * STRIP) {
        copy_async<8>(rows + offsetof(StripRows, see) + lane * 8, see + i, true);
    }
}

/* Computes dk and dv. Grid: key/value heads x blocks of 64 keys. PART: how many queries' scores are in registers at a
 * time. Shared memory: two stages, each a tile of q and a tile of dout, [STRIP, D]; then a StripRows for each stage. */
template <int D, int PART, int BLOCKS>
static __global__ void __launch_bounds__(128, BLOCKS)
    backward_kv_kernel(real *dk, real *dv, float *dk_fold, float *dv_fold, const float *dot, const real *dout,
                       const float *lse, const real *q, const real *k, const real *v, AttentionShape s, Spans spans)
{
    enum { N = PART / 8, TILE = STRIP * D * 2, THREADS = 128 };
    extern __shared__ __align__(1024) char shared[];
    const StripRows *stage_rows = (const StripRows *)(shared + 4 * TILE);
    uint32_t stages = (uint32_t)__cvta_generic_to_shared(shared), rows_at = stages + 4 * TILE;
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, kv_head = blockIdx.x, sharing = s.heads / s.kv_heads;
    int j0 = blockIdx.y * 64, j1 = j0 + 64, row0 = j0 + threadIdx.x / 32 * 16; /* first key of the warp */
    float scale = rsqrtf((float)D), scale_log2 = scale * LOG2_E;

    Span strips = spans.block[blockIdx.y]; /* the first and the last of them meet these keys */
    int strip = strips.first, h = kv_head * sharing, h_end = strips.first < strips.last ? h + sharing : h;
    if (h < h_end) load_strip<D, THREADS>(stages, rows_at, q, dout, lse, dot, spans.row, s, strip, h);
    uint32_t kj[D / 16][4], vj[D / 16][4]; /* [16, D] */
    load_left<D>(kj, k + kv_head * D, s.kv_stride, row0, s.keys);
    load_left<D>(vj, v + kv_head * D, s.kv_stride, row0, s.keys);

    float ck[D / 8][4], cv[D / 8][4]; /* [16, D]: dk sqrt(D), dv */
    clear<D / 8>(ck);
    clear<D / 8>(cv);
    for (int stage = 0; h < h_end; stage ^= 1) {
        Strip now = spans.strip[strip];
        do strip++;
        while (strip < strips.last && !meets(spans.strip[strip], j0, j1));
        if (strip == strips.last) {
            strip = strips.first;
            h++;
        }
        int other = stage ^ 1;
        copies_arrived(); /* also: all warps have finished with the other stage */
        if (h < h_end)
            load_strip<D, THREADS>(stages + other * 2 * TILE, rows_at + other * (int)sizeof(StripRows), q, dout, lse,
                                   dot, spans.row, s, strip, h);

        uint32_t q_tile = stages + stage * 2 * TILE, dout_tile = q_tile + TILE;
#pragma unroll
        for (int part = 0; part < STRIP; part += PART) {
            const float *lse_i = stage_rows[stage].lse + part + 2 * t, *dot_i = stage_rows[stage].dot + part + 2 * t;
            const Span *see = stage_rows[stage].see + part + 2 * t;
            float p[N][4], ds[N][4]; /* [16, PART], transposed: a row is a key, a column is a query */
            for (int n = 0; n < N; n++)
                for (int e = 0; e < 4; e++) {
                    p[n][e] = 0;
                    ds[n][e] = -dot_i[8 * n + e % 2];
                }
            tie<N>(ds);
            multiply_transposed<N, D, STRIP>(p, kj, q_tile, part);
            multiply_transposed<N, D, STRIP>(ds, vj, dout_tile, part);
            finish<1, N>(p);
            for (int n = 0; n < N; n++)
                for (int e = 0; e < 4; e++) p[n][e] = exp2_fast(p[n][e] * scale_log2 - lse_i[8 * n + e % 2] * LOG2_E);
            if (!sees_all(now, j0, j1))
                for (int n = 0; n < N; n++)
                    for (int e = 0; e < 4; e++) {
                        int j = row0 + g + e / 2 * 8;
                        Span span = see[8 * n + e % 2];
                        if (j < span.first || j >= span.last) p[n][e] = 0;
                    }
            multiply<N, D, STRIP>(cv, p, dout_tile, part);
            finish<1, N>(ds);
            for (int n = 0; n < N; n++)
                for (int e = 0; e < 4; e++) ds[n][e] *= p[n][e];
            multiply<N, D, STRIP>(ck, ds, q_tile, part);
            finish<0, D / 8>(ck);
            tie<D / 8>(cv);
        }
    }

#pragma unroll
    for (int half = 0; half < 2; half++) {
        int j = row0 + 8 * half + g;
        size_t at = j * s.kv_stride + kv_head * D, at_fold = ((size_t)j * s.kv_heads + kv_head) * D;
        if (j >= s.keys) continue;
        write_row<D>(dk_fold ? NULL : dk + at, dk_fold + at_fold, ck, half, dk_fold ? 1 : 0, scale);
        write_row<D>(dk_fold ? NULL : dv + at, dv_fold + at_fold, cv, half, dk_fold ? 1 : 0, 1);
    }
}

template <int D>
static void backward_q(real *dq, acc *dq_fold, acc *dot, const real *dout, const real *out, const acc *lse,
                       const real *q, const real *k, const real *v, AttentionShape s, Spans spans)
{
    enum { KEYS = 64, BLOCKS = D <= 64 ? 3 : 2, BYTES = 4 * KEYS * D * 2 };
    auto *kernel = backward_q_kernel<D, KEYS, BLOCKS>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
    dim3 grid(s.heads, divide_up(s.queries, STRIP));
    kernel<<<grid, 128, BYTES, cuda_stream()>>>(dq, dq_fold, dot, dout, out, lse, q, k, v, s, spans);
    CUDA_LAUNCHED();
}

template <int D>
static void backward_kv(real *dk, real *dv, acc *dk_fold, acc *dv_fold, const acc *dot, const real *dout,
                        const acc *lse, const real *q, const real *k, const real *v, AttentionShape s, Spans spans)
{
    enum { PART = 32, BLOCKS = D <= 64 ? 3 : 2, BYTES = 4 * STRIP * D * 2 + 2 * sizeof(StripRows) };
    int blocks = divide_up(s.keys, 64);
    flash_find_strips(spans, s);
    auto *kernel = backward_kv_kernel<D, PART, BLOCKS>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
    dim3 grid(s.kv_heads, blocks);
    kernel<<<grid, 128, BYTES, cuda_stream()>>>(dk, dv, dk_fold, dv_fold, dot, dout, lse, q, k, v, s, spans);
    CUDA_LAUNCHED();
}

template <int D>
static void backward(real *dq, acc *dq_fold, real *dk, real *dv, acc *dk_fold, acc *dv_fold, acc *dot, const real *dout,
                     const real *out, const acc *lse, const real *q, const real *k, const real *v, AttentionShape s,
                     Spans spans)
{
    backward_q<D>(dq, dq_fold, dot, dout, out, lse, q, k, v, s, spans); /* first: it computes dot */
    backward_kv<D>(dk, dv, dk_fold, dv_fold, dot, dout, lse, q, k, v, s, spans);
}

void attention_backward_flash(real *dq, acc *dq_fold, real *dk, real *dv, acc *dk_fold, acc *dv_fold, acc *dot,
                              const real *dout, const real *out, const acc *lse, const real *q, const real *k,
                              const real *v, AttentionShape s)
{
    Spans spans = flash_begin(s);
    switch (s.head_dim) {
    case 16: backward<16>(dq, dq_fold, dk, dv, dk_fold, dv_fold, dot, dout, out, lse, q, k, v, s, spans); break;
    case 32: backward<32>(dq, dq_fold, dk, dv, dk_fold, dv_fold, dot, dout, out, lse, q, k, v, s, spans); break;
    case 64: backward<64>(dq, dq_fold, dk, dv, dk_fold, dv_fold, dot, dout, out, lse, q, k, v, s, spans); break;
    case 128: backward<128>(dq, dq_fold, dk, dv, dk_fold, dv_fold, dot, dout, out, lse, q, k, v, s, spans); break;
    }
}
