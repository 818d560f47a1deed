/* Attention in tiles on Hopper's tensor cores, after FlashAttention-2 (Dao, 2023): bf16 in, fp32 sums, and never an
 * N x N matrix.
 *
 * A block owns 64 or 128 rows of one side, in registers: 64 to a warpgroup (four warps that compute together), 16 to a
 * warp. It walks over the rows of the other side that they meet, which arrive in shared memory by asynchronous copies,
 * one tile ahead of their use:
 *
 *                   keys ->                     forward, dq: blocks own queries, and walk right over tiles of keys
 *     queries   +---+---+---+---+               dk, dv:      blocks own keys, and walk down over strips of 64 queries,
 *        |      | \ |   |   |   |                            for each query head of their key/value head
 *        v      +---+---+---+---+
 *               | # | \ |   |   |               #  every row sees every key: nothing to mask
 *               +---+---+---+---+               \  some do: masked by element
 *               | # | # | \ |   |                  none does: never visited
 *               +---+---+---+---+
 *
 * Scores stay in registers: the layout in which the tensor cores leave a result is the one in which they take a left
 * operand, so P feeds P V, and dS feeds dS K, without a trip through memory. For dk and dv the scores are computed
 * transposed, S^T = K Q^T, for the same reason.
 *
 * What a row may see is told in ids. A small kernel first turns it into key indices, row by row, and sums them up for
 * each strip. Nothing is assumed of lo and hi.
 *
 * Caveats. The backward pass computes the scores twice, once for dq and once for dk and dv: 7 matrix products where
 * FlashAttention-2 has 5. That one adds up dq with atomics, in no fixed order; here every sum has one order, and equal
 * inputs give equal bits. P and dS are rounded to bf16 before the second products. wgmma exists on compute capability
 * 9.0 alone (build for sm_90a). FlashAttention-3 (Shah et al., 2024) gets more out of it, with warps that only copy and
 * the softmax of one tile under the products of another; here several blocks share a multiprocessor and fill each
 * other's gaps. Loops over registers must unroll: where one did not, ptxas -v shows a stack frame of some hundred
 * bytes. */
#pragma once

#include <limits.h>
#include <math.h>
#include <stddef.h>

#include "cuda.h"

#define DEVICE static __device__ __forceinline__

enum { STRIP = 64 }; /* queries that are summed up together, and that a walk down takes at a time */
static const float LOG2_E = 1.4426950408889634f;

/* --- who sees whom: attention_flash_spans.cu --- */

typedef struct {
    int first, last; /* [first, last) */
} Span;

/* The keys that some row of a strip sees lie in [lowest, highest); what every row sees is [full_from, full_to). */
typedef struct {
    int lowest, highest, full_from, full_to;
} Strip;

typedef struct {
    Span *row;    /* [queries]          the keys that a query sees, as indices */
    Strip *strip; /* [queries / STRIP]                                         */
    Span *block;  /* [keys / 64]        the strips that meet 64 keys           */
} Spans;

/* Fills row and strip for this call, on the compute stream. Ends the job if flash attention cannot take the call. */
Spans flash_begin(AttentionShape shape);

/* Fills block, too. */
void flash_find_strips(Spans spans, AttentionShape shape);

static inline int divide_up(int a, int b)
{
    return (a + b - 1) / b;
}

DEVICE bool meets(Strip strip, int j0, int j1)
{
    return strip.lowest < j1 && strip.highest > j0;
}

DEVICE bool sees_all(Strip strip, int j0, int j1)
{
    return strip.full_from <= j0 && strip.full_to >= j1;
}
/* --- tiles in shared memory ---
 *
 * A tile [ROWS, D] lies as panels [ROWS, W] of at most 64 columns, one after the other. The chunks of a row (8
 * elements, 16 bytes) are permuted by its number, in the way that wgmma expects, so that rows do not collide in the
 * banks. Tiles start at multiples of 1024 bytes. */

#define PANEL(D) ((D) < 64 ? (D) : 64)

template <int ROWS, int D> DEVICE uint32_t chunk_at(uint32_t tile, int row, int chunk)
{
    enum { W = PANEL(D), CHUNKS = W / 8 };
    int turn = row / (64 / W) % CHUNKS;
    return tile + chunk / CHUNKS * (ROWS * W * 2) + row * (W * 2) + (chunk % CHUNKS ^ turn) * 16;
}

/* 4, 8 or 16 bytes from global to shared memory; zeros where they do not exist. */
template <int BYTES> DEVICE void copy_async(uint32_t to, const void *from, bool exist)
{
    int bytes = exist ? BYTES : 0;
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(bytes));
}

/* Waits for this thread's copies, makes them visible to wgmma (the async proxy), and waits for the block's. */
DEVICE void copies_arrived(void)
{
    asm volatile("cp.async.wait_all; fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
}

/* Two tiles [ROWS, D], one after the other: rows first, first + 1, ... of x and of y; zeros from row `end` on */
template <int ROWS, int D, int THREADS>
DEVICE void load_tiles(uint32_t tiles, const real *x, size_t x_stride, const real *y, size_t y_stride, int first,
                       int end)
{
    enum { CHUNKS = D / 8, BYTES = ROWS * D * 2 };
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        int row = i / CHUNKS, chunk = i % CHUNKS;
        uint32_t to = chunk_at<ROWS, D>(tiles, row, chunk);
        copy_async<16>(to, x + (first + row) * x_stride + chunk * 8, first + row < end);
        copy_async<16>(to + BYTES, y + (first + row) * y_stride + chunk * 8, first + row < end);
    }
}

/* --- tensor cores ---
 *
 * In a warp, lane = 4 g + t, and each lane holds of the warp's
 *   results C[16, 8]             c[4]:  C(g, 2t), C(g, 2t + 1), C(g + 8, 2t), C(g + 8, 2t + 1)
 *   left operand A[16, 16]       a[4]:  pairs at (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)
 * so c[N][4] is a matrix [16, 8 N] and a[K][4] one [16, 16 K]. The four lanes of a g share rows g and g + 8, called
 * half 0 and half 1. A right operand is read from shared memory, by all four warps at once. */

#define RESULT(c) "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])

/* C[64, 8 N] += A[64, 16] B. TRANSPOSED: a row of the tile is a row of B; else it is a column. */
template <int N, int TRANSPOSED> DEVICE void wgmma(float c[N][4], const uint32_t a[4], uint64_t b)
{
    static_assert(N == 2 || N == 4 || N == 8, "16, 32 or 64 columns");
    if constexpr (N == 2)
        asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                     "{%0, %1, %2, %3, %4, %5, %6, %7}, "
                     "{%8, %9, %10, %11}, %12, 1, 1, 1, %13;"
                     : RESULT(c[0]), RESULT(c[1])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TRANSPOSED));
    else if constexpr (N == 4)
        asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                     "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                     "{%16, %17, %18, %19}, %20, 1, 1, 1, %21;"
                     : RESULT(c[0]), RESULT(c[1]), RESULT(c[2]), RESULT(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TRANSPOSED));
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                     "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                     "{%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
                     : RESULT(c[0]), RESULT(c[1]), RESULT(c[2]), RESULT(c[3]), RESULT(c[4]), RESULT(c[5]), RESULT(c[6]),
                       RESULT(c[7])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TRANSPOSED));
}

/* Where a right operand lies: its address, the way to the next 8 rows, and how chunks are permuted (1: among 8, 2:
 * among 4, 3: among 2). */
template <int W> DEVICE uint64_t describe(uint32_t address)
{
    uint64_t eight_rows = 8 * W * 2, permutation = W == 64 ? 1 : W == 32 ? 2 : 3;
    return address >> 4 | (uint64_t)1 << 16 | eight_rows >> 4 << 32 | permutation << 62;
}

/* wgmma runs by itself until finish(), and nothing may touch its results before that. This ties them down: what was
 * written to c before is there, what reads c comes after. */
template <int N> DEVICE void tie(float c[N][4])
{
    for (int n = 0; n < N; n++) asm volatile("" : RESULT(c[n])::"memory");
}

/* Waits for the product that makes c. LATER: products started after it that may go on. */
template <int LATER, int N> DEVICE void finish(float c[N][4])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LATER) : "memory");
    tie<N>(c);
}

DEVICE uint32_t pack(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&pair;
}

/* A left operand [16, D], from global memory: rows first, first + 1, ... of x; zeros from row `end` on */
template <int D> DEVICE void load_left(uint32_t a[D / 16][4], const real *x, size_t stride, int first, int end)
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int k = 0; k < D / 16; k++)
        for (int e = 0; e < 4; e++) {
            int row = first + g + e % 2 * 8;
            a[k][e] = row < end ? *(const uint32_t *)(x + row * stride + 16 * k + e / 2 * 8 + 2 * t) : 0;
        }
}

/* Starts c[16, 8 N] += a y^T: a [16, D], y 8 N rows, from `row` on, of a tile [ROWS, D] */
template <int N, int D, int ROWS>
DEVICE void multiply_transposed(float c[N][4], const uint32_t a[D / 16][4], uint32_t y, int row)
{
    enum { W = PANEL(D) };
    tie<N>(c);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int k = 0; k < D / 16; k++)
        wgmma<N, 0>(c, a[k], describe<W>(y + 16 * k / W * (ROWS * W * 2) + row * (W * 2) + 16 * k % W * 2));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Starts c[16, D] += p y: p [16, 8 N] an earlier result, here rounded to bf16; y 8 N rows, from `row` on, of a tile
 * [ROWS, D] */
template <int N, int D, int ROWS> DEVICE void multiply(float c[D / 8][4], const float p[N][4], uint32_t y, int row)
{
    enum { W = PANEL(D) };
    uint32_t a[N / 2][4];
    for (int k = 0; k < N / 2; k++)
        for (int e = 0; e < 4; e++) a[k][e] = pack(p[2 * k + e / 2][e % 2 * 2], p[2 * k + e / 2][e % 2 * 2 + 1]);
    tie<D / 8>(c);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int k = 0; k < N / 2; k++)
        for (int panel = 0; panel < D / W; panel++)
            wgmma<W / 8, 1>(c + panel * (W / 8), a[k],
                            describe<W>(y + panel * (ROWS * W * 2) + (row + 16 * k) * (W * 2)));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* --- what every kernel does with its registers --- */

template <int N> DEVICE void clear(float c[N][4])
{
    for (int n = 0; n < N; n++) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
}

/* c[:, j] = hidden where the row does not see key j0 + j */
template <int N> DEVICE void hide(float c[N][4], const Span see[2], int j0, float hidden)
{
    int t = threadIdx.x % 4;
    for (int n = 0; n < N; n++)
        for (int e = 0; e < 4; e++) {
            int j = j0 + 8 * n + 2 * t + e % 2;
            if (j < see[e / 2].first || j >= see[e / 2].last) c[n][e] = hidden;
        }
}

/* Writes one row of a result, keep fold + scale c, to `to` in bf16 or, if that is NULL, back to fold. With keep 0 fold
 * is not read. */
template <int D>
DEVICE void write_row(real *to, float *fold, const float c[D / 8][4], int half, float keep, float scale)
{
    int t = threadIdx.x % 4;
#pragma unroll
    for (int d = 0; d < D / 8; d++) {
        int at = 8 * d + 2 * t;
        float2 x = {scale * c[d][2 * half], scale * c[d][2 * half + 1]};
        if (keep != 0) {
            float2 old = *(float2 *)(fold + at);
            x.x += keep * old.x;
            x.y += keep * old.y;
        }
        if (to)
            *(uint32_t *)(to + at) = pack(x.x, x.y);
        else
            *(float2 *)(fold + at) = x;
    }
}

/* Over the four lanes that share a row. */
DEVICE float row_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

DEVICE float row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

/* 2^x, to about 2 units in the last place */
DEVICE float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The keys that some row of a block of queries sees. */
template <int STRIPS> DEVICE Span keys_of_block(const Strip *strip)
{
    Span keys = {INT_MAX, 0};
    for (int i = 0; i < STRIPS; i++) {
        keys.first = min(keys.first, strip[i].lowest);
        keys.last = max(keys.last, strip[i].highest);
    }
    return keys;
}
