/* The grouped products on Hopper's tensor cores: bf16 in, fp32 sums.
 *
 * A block computes a tile of 128 x 128 of the result of one group. It has two warpgroups of consumers, each with 64 rows
 * of the tile in registers, and a warp that only copies: the producer. The producer fills stages in shared memory with the
 * tensor memory accelerator (TMA), 64 elements of the inner dimension each; the consumers multiply a stage and hand it
 * back. Two barriers for each stage say that it is full, and that it is empty. Two blocks share a multiprocessor, so that
 * one computes while the other begins or ends.
 *
 *   forward          y[rows, out] = x[rows, in] w^T         inner dimension in, rows of both operands
 *   backward input   dx[rows, in] = dy[rows, out] w         inner dimension out, columns of w
 *   backward weight  dw[out, in] adds dy^T x                inner dimension: the rows of the group
 *
 * Where the inner dimension runs along the rows of a matrix in memory, wgmma reads the operand transposed. A tile may end
 * past its group. Rows of the result past it are not written. Past the inner dimension of forward and backward input TMA
 * reads zeros; of backward weight the rows there are those of the next group, and the consumers overwrite them with zeros.
 *
 * Sources: NVIDIA's PTX ISA, sections on wgmma, mbarrier and cp.async.bulk.tensor; Gale et al., "MegaBlocks", 2022, for
 * grouped products of experts. */
#include <cuda.h>

#include "grouped.cuh"

#define DEVICE static __device__ __forceinline__

enum {
    M = 128,
    N = 128,
    K = 64,                             /* of a stage */
    STAGES = 3,
    PANEL = 64 * 64 * 2,                /* bytes of 64 rows of 64 elements */
    OPERAND = 2 * PANEL,                /* a stage of one operand */
    STAGE = 2 * OPERAND,
    CONSUMERS = 256,
    THREADS = CONSUMERS + 32,           /* and the producer */
    SHARED = STAGES * STAGE + 1024 + 128 /* the swizzle wants multiples of 1024 */
};

typedef enum { FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT } Form;

/* --- barriers and copies --- */

DEVICE void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

DEVICE void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* The barrier also waits for so many bytes of copies. */
DEVICE void barrier_expect(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/* Waits until the phase of this parity is over. */
DEVICE void barrier_wait(uint32_t barrier, int parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Starts a copy of the map's box at (column, row) to shared memory. */
DEVICE void copy_box(uint32_t to, const CUtensorMap *map, int column, int row, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
                     "r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}

/* --- tensor cores --- */

/* The descriptor of an operand in shared memory: its address, the distance to the next 64 columns where it is read
 * transposed, the distance to the next 8 rows, and the swizzle of rows of 128 bytes. */
DEVICE uint64_t describe(uint32_t address)
{
    return address >> 4 | (uint64_t)(PANEL >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* C[64, 128] += A[64, 16] B[16, 128], both operands in shared memory. A lane holds c[n][e]: row g + 8 (e / 2), column 8 n +
 * 2 t + e % 2 of its warp's 16 rows, with lane = 4 g + t. TA, TB: the operand's rows in memory run along the inner
 * dimension's transpose. */
#define RESULT(c) "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
template <int TA, int TB> DEVICE void wgmma(float c[N / 8][4], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, 1, 1, 1, %66, %67;"
                 : RESULT(c[0]), RESULT(c[1]), RESULT(c[2]), RESULT(c[3]), RESULT(c[4]), RESULT(c[5]), RESULT(c[6]), RESULT(c[7]), RESULT(c[8]), RESULT(c[9]), RESULT(c[10]), RESULT(c[11]), RESULT(c[12]), RESULT(c[13]), RESULT(c[14]), RESULT(c[15])
                 : "l"(a), "l"(b), "n"(TA), "n"(TB));
}

/* The compiler does not know that wgmma still writes c: it must not move uses of c across this line. */
DEVICE void tie(float c[N / 8][4])
{
    for (int n = 0; n < N / 8; n++) asm volatile("" : RESULT(c[n])::"memory");
}

/* c += the product of one stage. `half`: which 64 rows of the tile this warpgroup has. */
template <Form FORM> DEVICE void multiply_stage(float c[N / 8][4], uint32_t a, uint32_t b, int half)
{
    enum { TA = FORM == BACKWARD_WEIGHT, TB = FORM != FORWARD };
    tie(c);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < K / 16; k++) /* 16 rows are 2048 bytes, 16 columns 32 */
        wgmma<TA, TB>(c, describe(a + half * PANEL + k * (TA ? 2048 : 32)), describe(b + k * (TB ? 2048 : 32)));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* --- the kernel --- */

typedef struct {
    const RowTile *tiles; /* forward, backward input */
    const int *first;     /* backward weight */
    int n, k;             /* columns of the result; inner dimension of forward and backward input */
    int m;                /* rows of dw of a group */
    void *result;
} Multiplication;

/* What this block computes. */
typedef struct {
    int group, row, end, column; /* rows [row, min(row + M, end)) of the result, columns from `column` on */
    int inner, inner_end;        /* of the inner dimension */
} Task;

template <Form FORM> DEVICE Task task_of(const Multiplication *p)
{
    if (FORM == BACKWARD_WEIGHT) {
        int g = blockIdx.z;
        return (Task){g, (int)blockIdx.y * M, p->m, (int)blockIdx.x * N, p->first[g], p->first[g + 1]};
    }
    RowTile t = p->tiles[blockIdx.y];
    return (Task){t.group, t.row, t.end, (int)blockIdx.x * N, 0, p->k};
}

/* Fills a stage with the operands at `k` of the inner dimension. */
template <Form FORM>
DEVICE void fill_stage(uint32_t stage, const CUtensorMap *a, const CUtensorMap *b, Task t, const Multiplication *p, int k,
                       uint32_t full)
{
    barrier_expect(full, STAGE);
    for (int half = 0; half < 2; half++) {
        uint32_t to_a = stage + half * PANEL, to_b = to_a + OPERAND;
        if (FORM == BACKWARD_WEIGHT)
            copy_box(to_a, a, t.row + 64 * half, k, full);
        else
            copy_box(to_a, a, k, t.row + 64 * half, full);
        if (FORM == FORWARD)
            copy_box(to_b, b, k, t.group * p->n + t.column + 64 * half, full);
        else if (FORM == BACKWARD_INPUT)
            copy_box(to_b, b, t.column + 64 * half, t.group * p->k + k, full);
        else
            copy_box(to_b, b, t.column + 64 * half, k, full);
    }
}

/* Rows of the next group become zeros: rows [rows, 64) of all four panels of the stage. */
DEVICE void clear_rows(char *stage, int rows)
{
    int per_panel = (64 - rows) * 128 / 16;
    for (int i = threadIdx.x; i < 4 * per_panel; i += CONSUMERS)
        *(uint4 *)(stage + i / per_panel * PANEL + rows * 128 + i % per_panel * 16) = make_uint4(0, 0, 0, 0);
    asm volatile("fence.proxy.async.shared::cta; bar.sync 1, 256;" ::: "memory");
}

DEVICE uint32_t pack(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&pair;
}

template <Form FORM> DEVICE void write_result(const float c[N / 8][4], Task t, const Multiplication *p, int half)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    for (int e = 0; e < 2; e++) {
        int row = t.row + 64 * half + 16 * warp + lane / 4 + 8 * e;
        if (row >= t.end) continue;
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
            int column = t.column + 8 * n + lane % 4 * 2;
            if (column >= p->n) break;
            if (FORM == BACKWARD_WEIGHT) {
                float2 *to = (float2 *)((float *)p->result + ((size_t)t.group * p->m + row) * p->n + column);
                float2 old = *to;
                *to = make_float2(old.x + c[n][2 * e], old.y + c[n][2 * e + 1]);
            } else {
                *(uint32_t *)((real *)p->result + (size_t)row * p->n + column) = pack(c[n][2 * e], c[n][2 * e + 1]);
            }
        }
    }
}

template <Form FORM>
static __global__ void __launch_bounds__(THREADS, 2)
    grouped(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, const __grid_constant__ Multiplication p)
{
    extern __shared__ char memory[];
    Task t = task_of<FORM>(&p);
    if (t.group < 0 || t.inner == t.inner_end) return;
    uint32_t raw = (uint32_t)__cvta_generic_to_shared(memory), stages = (raw + 1023) / 1024 * 1024;
    uint32_t full = stages + STAGES * STAGE, empty = full + 8 * STAGES; /* barriers */
    int steps = (t.inner_end - t.inner + K - 1) / K;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, 2); /* one arrival of each warpgroup of consumers */
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    if (threadIdx.x >= CONSUMERS) { /* the producer */
        for (int i = 0; i < steps && threadIdx.x == CONSUMERS; i++) {
            int s = i % STAGES, turn = i / STAGES;
            if (turn > 0) barrier_wait(empty + 8 * s, (turn - 1) % 2);
            fill_stage<FORM>(stages + s * STAGE, &a, &b, t, &p, t.inner + i * K, full + 8 * s);
        }
        return;
    }

    int half = threadIdx.x / 128;
    float c[N / 8][4];
    for (int n = 0; n < N / 8; n++) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
    for (int i = 0; i < steps; i++) {
        int s = i % STAGES;
        uint32_t stage = stages + s * STAGE;
        barrier_wait(full + 8 * s, i / STAGES % 2);
        int rows = t.inner_end - t.inner - i * K;
        if (FORM == BACKWARD_WEIGHT && rows < K) clear_rows(memory + (stage - raw), rows);
        multiply_stage<FORM>(c, stage, stage + OPERAND, half);
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); /* the product before is done with its stage */
        if (i > 0 && threadIdx.x % 128 == 0) barrier_arrive(empty + 8 * ((i - 1) % STAGES));
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    tie(c);
    write_result<FORM>(c, t, &p, half);
}

/* --- the host's side --- */

typedef CUresult (*Encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                           const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's function that describes a matrix to the TMA. Found at run time, so that no program links the driver. */
static Encode encoder(void)
{
    static void *function;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    if (!function)
        CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
    if (!function) fatal("this driver has no cuTensorMapEncodeTiled");
    return (Encode)function;
}

/* A matrix [rows, columns] of bf16, from which boxes of 64 x 64 are copied. */
static CUtensorMap map_of(const real *matrix, size_t rows, int columns)
{
    CUtensorMap map;
    cuuint64_t size[2] = {(cuuint64_t)columns, rows}, stride[1] = {(cuuint64_t)columns * sizeof(real)};
    cuuint32_t box[2] = {64, 64}, step[2] = {1, 1};
    CUresult code = encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)matrix, size, stride, box, step,
                              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS) fatal("cuTensorMapEncodeTiled: error %d, for [%zu, %d]", (int)code, rows, columns);
    return map;
}

/* TMA reads rows that are multiples of 16 bytes. */
static bool fits(const void *a, const void *b, const void *c, int in, int out)
{
    return ((size_t)a | (size_t)b | (size_t)c) % 16 == 0 && in % 8 == 0 && out % 8 == 0;
}

template <Form FORM> static void launch(dim3 grid, CUtensorMap a, CUtensorMap b, Multiplication p)
{
    static bool ready;
    if (!ready)
        CUDA_CHECK(cudaFuncSetAttribute(grouped<FORM>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED));
    ready = true;
    grouped<FORM><<<grid, THREADS, SHARED, cuda_stream()>>>(a, b, p);
    CUDA_LAUNCHED();
}

static unsigned tiles_of(int n)
{
    return (n + N - 1) / N;
}

bool grouped_tensor_forward(real *y, const real *x, const real *w, const int *first, int groups, int rows, int in,
                            int out)
{
    if (rows == 0 || !fits(y, x, w, in, out)) return false;
    RowTile *tiles;
    int count = grouped_tiles(&tiles, first, groups, rows, M);
    launch<FORWARD>(dim3(tiles_of(out), count), map_of(x, rows, in), map_of(w, (size_t)groups * out, in),
                    (Multiplication){tiles, NULL, out, in, 0, y});
    return true;
}

bool grouped_tensor_backward_input(real *dx, const real *dy, const real *w, const int *first, int groups, int rows,
                                   int in, int out)
{
    if (rows == 0 || !fits(dx, dy, w, in, out)) return false;
    RowTile *tiles;
    int count = grouped_tiles(&tiles, first, groups, rows, M);
    launch<BACKWARD_INPUT>(dim3(tiles_of(in), count), map_of(dy, rows, out), map_of(w, (size_t)groups * out, in),
                           (Multiplication){tiles, NULL, in, out, 0, dx});
    return true;
}

bool grouped_tensor_backward_weight(acc *dw, const real *dy, const real *x, const int *first, int groups, int rows,
                                    int in, int out)
{
    if (rows == 0 || !fits(dw, dy, x, in, out)) return false;
    launch<BACKWARD_WEIGHT>(dim3(tiles_of(in), tiles_of(out), groups), map_of(dy, rows, out), map_of(x, rows, in),
                            (Multiplication){NULL, first, in, 0, out, dw});
    return true;
}
