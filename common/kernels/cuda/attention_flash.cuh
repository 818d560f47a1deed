/* Attention in tiles on Hopper's tensor cores, after FlashAttention-2 (Dao, 2023). Inputs are bf16, sums are fp32. The
 * N x N matrix of scores is never stored.
 *
 * A block owns 64 or 128 rows and keeps them in registers. A warpgroup (four warps that compute one product together)
 * has 64 of the rows, a warp has 16. The block loops over tiles of the other side. Asynchronous copies bring each tile
 * into shared memory while the block computes with the tile before it:
 *
 *                   keys ->                     forward, dq: a block owns queries, loops right over tiles of keys
 *     queries   +---+---+---+---+               dk, dv:      a block owns keys, loops down over strips of 64 queries,
 *        |      | \ |   |   |   |                            for each query head of its key/value head
 *        v      +---+---+---+---+
 *               | # | \ |   |   |               #  every query sees every key: no masking
 *               +---+---+---+---+               \  some queries see some keys: masked element by element
 *               | # | # | \ |   |                  no query sees any key: the tile is skipped
 *               +---+---+---+---+
 *
 * Scores stay in registers. The tensor cores return a result in the register layout in which they take a left operand.
 * So P is the left operand of P V, and dS that of dS K, without a copy through shared memory. For dk and dv the block
 * computes the transposed scores S^T = K Q^T, because there P^T and dS^T are the left operands.
 *
 * The caller gives the keys that a query sees as an interval of ids. A small kernel (attention_flash_spans.cu) first
 * converts it to an interval of key indices for each query, and combines the intervals of each strip of 64 queries. lo
 * and hi may be any values.
 *
 * Differences from the papers:
 * - The backward pass computes the scores twice, once for dq and once for dk and dv. That makes 7 matrix products where
 *   FlashAttention-2 has 5. In return every sum has a fixed order, so equal inputs give equal bits. FlashAttention-2
 *   adds up dq with atomics, in varying order.
 * - P and dS are rounded to bf16 before they are multiplied.
 * - FlashAttention-3 (Shah et al., 2024) is faster: it has warps that only copy, and computes the softmax of one tile
 *   during the products of another. Here several blocks share a multiprocessor, and one computes while another waits.
 *
 * The tensor cores' instruction, wgmma, exists on compute capability 9.0 only (build for sm_90a). The compiler must
 * unroll every loop over registers. If it does not, ptxas -v shows a stack frame of some hundred bytes. */
#pragma once

#include <limits.h>
#include <math.h>
#include <stddef.h>

#include "cuda.h"

#define DEVICE static __device__ __forceinline__

enum { STRIP = 64 }; /* queries of a strip; dk and dv take one strip at a time */
static const float LOG2_E = 1.4426950408889634f;

/* --- which query sees which keys: attention_flash_spans.cu --- */

typedef struct {
    int first, last; /* [first, last) */
} Span;

/* For a strip of queries: no query sees a key outside [lowest, highest); every query sees all keys in
 * [full_from, full_to). Either interval may be empty. */
typedef struct {
    int lowest, highest, full_from, full_to;
} Strip;

typedef struct {
    Span *row;    /* [queries]          indices of the keys that a query sees            */
    Strip *strip; /* [queries / STRIP]                                                   */
    Span *block;  /* [keys / 64]        from the first to the last strip that meets them */
} Spans;

/* Takes the arrays from the scratch memory, and fills row and strip on the compute stream. Ends the job if flash
 * attention has no kernel for this head size, or if rows do not start at multiples of 16 bytes. */
Spans flash_begin(AttentionShape shape);

/* Fills block on the compute stream, after flash_begin. */
void flash_find_strips(Spans spans, AttentionShape shape);

static inline int divide_up(int a, int b)
{
    return (a + b - 1) / b;
}

/* Does the strip meet the keys [j0, j1)? If not, none of its queries sees any of them. */
DEVICE bool meets(Strip strip, int j0, int j1)
{
    return strip.lowest < j1 && strip.highest > j0;
}

/* Does every query of the strip see every key in [j0, j1)? */
DEVICE bool sees_all(Strip strip, int j0, int j1)
{
    return strip.full_from <= j0 && strip.full_to >= j1;
}
/* --- tiles in shared memory ---
 *
 * A tile [ROWS, D] is stored as panels [ROWS, W] of W <= 64 columns, one panel after the other. A row of a panel
 * consists of chunks of 8 elements, 16 bytes. The row's number determines how its chunks are permuted. This is the
 * swizzle that wgmma expects: it spreads the same chunk of neighbouring rows over different banks. A tile's address is
 * a multiple of 1024. */

#define PANEL(D) ((D) < 64 ? (D) : 64)

/* The address of chunk `chunk`, of D / 8, in a row of the tile. */
template <int ROWS, int D> DEVICE uint32_t chunk_at(uint32_t tile, int row, int chunk)
{
    enum { W = PANEL(D), CHUNKS = W / 8 };
    int turn = row / (64 / W) % CHUNKS;
    return tile + chunk / CHUNKS * (ROWS * W * 2) + row * (W * 2) + (chunk % CHUNKS ^ turn) * 16;
}

/* Starts a copy of 4, 8 or 16 bytes from global to shared memory. Writes zeros, and reads nothing, if `exist` is
 * false. */
template <int BYTES> DEVICE void copy_async(uint32_t to, const void *from, bool exist)
{
    int bytes = exist ? BYTES : 0;
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(bytes));
}

/* Waits until this thread's copies are done, makes them visible to wgmma (which reads through the async proxy), and
 * waits until all threads of the block are here. */
DEVICE void copies_arrived(void)
{
    asm volatile("cp.async.wait_all; fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
}

/* Starts copying two tiles [ROWS, D], one after the other: rows first, first + 1, ... of x, then those of y. Rows from
 * `end` on become zeros. */
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
 * Lane 4 g + t of a warp holds these elements of the warp's matrices:
 *   result C[16, 8]              c[4]:  C(g, 2t), C(g, 2t + 1), C(g + 8, 2t), C(g + 8, 2t + 1)
 *   left operand A[16, 16]       a[4]:  pairs at (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)
 * So c[N][4] is a matrix [16, 8 N], and a[K][4] is a matrix [16, 16 K]. The four lanes with the same g share two rows:
 * row g is half 0, row g + 8 is half 1. The four warps read a right operand from shared memory together. */

#define RESULT(c) "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])

/* C[64, 8 N] += A[64, 16] B[16, 8 N]; each of the four warps holds 16 rows of A and C. B lies in a tile in shared
 * memory. If TRANSPOSED, a row of the tile is a row of B; else it is a column of B. */
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

/* The matrix descriptor of a right operand: its address, the distance to the next 8 rows, and the swizzle (1: permutes
 * 8 chunks of a row, 2: 4 chunks, 3: 2 chunks). */
template <int W> DEVICE uint64_t describe(uint32_t address)
{
    uint64_t eight_rows = 8 * W * 2, swizzle = W == 64 ? 1 : W == 32 ? 2 : 3;
    return address >> 4 | (uint64_t)1 << 16 | eight_rows >> 4 << 32 | swizzle << 62;
}

/* wgmma runs asynchronously: the program must not read or write its result c until finish() returns. The compiler does
 * not know this. tie() makes it finish all writes to c before this line and start all reads of c after it. */
template <int N> DEVICE void tie(float c[N][4])
{
    for (int n = 0; n < N; n++) asm volatile("" : RESULT(c[n])::"memory");
}

/* Waits for the product that computes c. LATER: how many products that started after it may still run. */
template <int LATER, int N> DEVICE void finish(float c[N][4])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LATER) : "memory");
    tie<N>(c);
}

/* Two numbers rounded to bf16, as one register. */
DEVICE uint32_t pack(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&pair;
}

/* Loads a left operand [16, D] from global memory: rows first, first + 1, ... of x. Rows from `end` on become zeros. */
template <int D> DEVICE void load_left(uint32_t a[D / 16][4], const real *x, size_t stride, int first, int end)
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int k = 0; k < D / 16; k++)
        for (int e = 0; e < 4; e++) {
            int row = first + g + e % 2 * 8;
            a[k][e] = row < end ? *(const uint32_t *)(x + row * stride + 16 * k + e / 2 * 8 + 2 * t) : 0;
        }
}

/* Starts c[16, 8 N] += a y^T. a is [16, D]; y[8 N, D] is the 8 N rows from `row` on of a tile [ROWS, D]. */
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

/* Starts c[16, D] += p y. p[16, 8 N] is an earlier result, which this function rounds to bf16; y[8 N, D] is the 8 N
 * rows from `row` on of a tile [ROWS, D]. */
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

/* --- operations on results in registers --- */

template <int N> DEVICE void clear(float c[N][4])
{
    for (int n = 0; n < N; n++) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
}

/* c[i, j] = hidden where query i does not see key j0 + j. see: the keys that the lane's two rows see. */
template <int N> DEVICE void hide(float c[N][4], const Span see[2], int j0, float hidden)
{
    int t = threadIdx.x % 4;
    for (int n = 0; n < N; n++)
        for (int e = 0; e < 4; e++) {
            int j = j0 + 8 * n + 2 * t + e % 2;
            if (j < see[e / 2].first || j >= see[e / 2].last) c[n][e] = hidden;
        }
}

/* Computes keep fold + scale c for one row of a result, `half` of c. Writes it to `to` in bf16 or, if `to` is NULL,
 * back to fold. Does not read fold if keep is 0. */
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

/* The sum, or the maximum, over the four lanes that share a row. Each of them gets it. */
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

/* 2^x, with an error of about 2 units in the last place */
DEVICE float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The smallest span that holds every key that a query of these strips sees; first > last if there is none. */
template <int STRIPS> DEVICE Span keys_of_block(const Strip *strip)
{
    Span keys = {INT_MAX, 0};
    for (int i = 0; i < STRIPS; i++) {
        keys.first = min(keys.first, strip[i].lowest);
        keys.last = max(keys.last, strip[i].highest);
    }
    return keys;
}
