/* The grouped products on Hopper's tensor cores: bf16 in, fp32 sums.
 *
 *   forward          y[rows, out] = x[rows, in] w^T         inner dimension: in
 *   backward input   dx[rows, in] = dy[rows, out] w         inner dimension: out
 *   backward weight  dw[out, in] adds dy^T x                inner dimension: the rows of the group
 *
 * A block runs on each multiprocessor and takes one tile of the result after the other: 128 x 256 elements of one group. It
 * has two warpgroups of consumers, each with 64 rows of the tile in registers, and a warp that only copies, the producer. The
 * producer fills stages in shared memory, 64 elements of the inner dimension each; the consumers multiply a stage and hand
 * it back. Two barriers for each stage say that it is full, and that it is empty. The consumers write a finished tile to
 * shared memory, from where it is copied, or added to dw, while they go on; the producer meanwhile fetches the next tile's
 * operands.
 *
 * Why 256 columns: for 16 elements of the inner dimension, a tile of 128 x 128 reads 12 KB of shared memory and fills 8 KB, in
 * 128 cycles of the tensor cores. That is more than the 128 bytes that shared memory moves in a cycle. With 256 columns it is
 * 32 KB in 256 cycles.
 *
 * Where the inner dimension runs along the rows of a matrix in memory, wgmma reads the operand transposed. A tile may end
 * past its group. Rows of the result past it are not written. Past the inner dimension of forward and backward input TMA
 * reads zeros; of backward weight the rows there are those of the next group, and the consumers overwrite them with zeros.
 *
 * Each element of dw is added to once in a call, so the result has the same bits every time.
 *
 * Source: Gale et al., "MegaBlocks", 2022, for grouped products of experts. */
#include "grouped.cuh"
#include "wgmma.cuh"

typedef enum { FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT } Form;

enum {
    M = 128, /* rows and columns of a tile */
    N = TILE_COLUMNS,
    K = 64,              /* of a stage */
    A = 2 * PANEL,       /* bytes of the first operand of a stage */
    STAGE = A + 4 * PANEL,
    STAGES = 3,
    ROW = 512,            /* bytes of a row of the result in shared memory: all columns, or of dw half of them */
    ROW_APART = ROW + 16, /* so that neighbouring rows lie in other banks */
    SHARED = STAGES * STAGE + M * ROW_APART + 2 * STAGES * 8 + 1024, /* the swizzle wants multiples of 1024 */
    CONSUMERS = 256,
    THREADS = CONSUMERS + 32, /* and the producer */
};

/* Starts c += the product of one stage. `half`: which 64 rows of the tile this warpgroup has. */
template <Form FORM> DEVICE void multiply_stage(float c[N / 8][4], uint32_t a, int half)
{
    enum { TA = FORM == BACKWARD_WEIGHT, TB = FORM != FORWARD };
    uint32_t b = a + A;
    tie(c);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < K / 16; k++) /* 16 rows are 2048 bytes, 16 columns 32 */
        wgmma<TA, TB>(c, describe(a + half * PANEL + k * (TA ? 2048 : 32)), describe(b + k * (TB ? 2048 : 32)));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* --- tiles --- */

typedef struct {
    const RowTile *tiles; /* forward, backward input */
    int tile_count;
    const int *first;     /* backward weight */
    int groups, m;        /* of backward weight; m: rows of dw of a group */
    int n, k;             /* columns of the result; inner dimension of forward and backward input */
    void *result;
} Job;

/* A tile of the result: rows [row, min(row + M, end)), columns from `column` on. The inner dimension is [inner,
 * inner_end). group -1: there are no more tiles. */
typedef struct {
    int group, row, end, column, inner, inner_end;
} Tile;

/* Tile number i, those of one row of tiles side by side. */
template <Form FORM> DEVICE Tile tile_at(const Job *p, int i)
{
    int across = (p->n + N - 1) / N, row = i / across, column = i % across * N;
    if (FORM == BACKWARD_WEIGHT) {
        int down = (p->m + M - 1) / M, g = row / down;
        if (g >= p->groups) return (Tile){-1, 0, 0, 0, 0, 0};
        return (Tile){g, row % down * M, p->m, column, p->first[g], p->first[g + 1]};
    }
    if (row >= p->tile_count) return (Tile){-1, 0, 0, 0, 0, 0};
    RowTile t = p->tiles[row];
    return (Tile){t.group, t.row, t.end, column, 0, p->k};
}

/* Fills a stage with the operands from `k` of the inner dimension on. */
template <Form FORM>
DEVICE void fill_stage(uint32_t stage, const CUtensorMap *a, const CUtensorMap *b, Tile t, const Job *p, int k,
                       uint32_t full)
{
    barrier_expect(full, STAGE);
    for (int half = 0; half < 2; half++)
        if (FORM == BACKWARD_WEIGHT)
            copy_box(stage + half * PANEL, a, t.row + 64 * half, k, full);
        else
            copy_box(stage + half * PANEL, a, k, t.row + 64 * half, full);
    for (int panel = 0; panel < N / 64; panel++) {
        uint32_t to = stage + A + panel * PANEL;
        if (FORM == FORWARD)
            copy_box(to, b, k, t.group * p->n + t.column + 64 * panel, full);
        else
            copy_box(to, b, t.column + 64 * panel, FORM == BACKWARD_INPUT ? t.group * p->k + k : k, full);
    }
}

/* Rows of the next group become zeros: rows [rows, 64) of all panels of the stage. */
template <Form FORM> DEVICE void clear_rows(char *stage, int rows)
{
    int per_panel = (64 - rows) * 128 / 16;
    for (int i = threadIdx.x; i < STAGE / PANEL * per_panel; i += CONSUMERS)
        *(uint4 *)(stage + i / per_panel * PANEL + rows * 128 + i % per_panel * 16) = make_uint4(0, 0, 0, 0);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    meet(1, CONSUMERS);
}

DEVICE uint32_t pack(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&pair;
}

/* Writes this warpgroup's 64 rows to shared memory, and starts copying them out; half of the columns at a time if a row
 * does not fit. */
template <Form FORM>
DEVICE void write_result(const float c[N / 8][4], Tile t, const Job *p, char *result, uint32_t address, int half)
{
    enum { WEIGHT = FORM == BACKWARD_WEIGHT, BYTES = WEIGHT ? 4 : 2, COLUMNS = ROW / BYTES };
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, mine = threadIdx.x % 128;
#pragma unroll
    for (int first = 0; first < N; first += COLUMNS) {
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); /* what was written before is read */
        meet(2 + half, 128);
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++)
            for (int e = 0; e < 2; e++) {
                const float *pair = &c[first / 8 + n][2 * e];
                int row = 64 * half + 16 * warp + lane / 4 + 8 * e, column = 8 * n + lane % 4 * 2;
                char *to = result + row * ROW_APART + column * BYTES;
                if (WEIGHT)
                    *(float2 *)to = make_float2(pair[0], pair[1]);
                else
                    *(uint32_t *)to = pack(pair[0], pair[1]);
            }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        meet(2 + half, 128);
        int row = 64 * half + mine, columns = min((int)COLUMNS, p->n - t.column - first);
        if (mine < 64 && t.row + row < t.end && columns > 0) {
            size_t at = ((WEIGHT ? (size_t)t.group * p->m : 0) + t.row + row) * p->n + t.column + first;
            copy_out<WEIGHT>((char *)p->result + at * BYTES, address + row * ROW_APART, columns * BYTES);
        }
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
}

/* --- the kernel --- */

template <Form FORM>
static __global__ void __launch_bounds__(THREADS, 1)
    grouped(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, const __grid_constant__ Job p)
{
    extern __shared__ char memory[];
    uint32_t raw = (uint32_t)__cvta_generic_to_shared(memory), stages = (raw + 1023) / 1024 * 1024;
    uint32_t result = stages + STAGES * STAGE, full = result + M * ROW_APART, empty = full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, 2); /* one arrival of each warpgroup of consumers */
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    int i = 0; /* stages filled so far, or multiplied so far */
    if (threadIdx.x >= CONSUMERS) { /* the producer: one thread */
        for (int tile = blockIdx.x; threadIdx.x == CONSUMERS; tile += gridDim.x) {
            Tile t = tile_at<FORM>(&p, tile);
            if (t.group < 0) break;
            for (int k = t.inner; k < t.inner_end; k += K, i++) {
                int s = i % STAGES, turn = i / STAGES;
                if (turn > 0) barrier_wait(empty + 8 * s, (turn - 1) % 2);
                fill_stage<FORM>(stages + s * STAGE, &a, &b, t, &p, k, full + 8 * s);
            }
        }
        return;
    }

    int half = threadIdx.x / 128;
    bool speaks = threadIdx.x % 128 == 0;
    for (int tile = blockIdx.x;; tile += gridDim.x) {
        Tile t = tile_at<FORM>(&p, tile);
        if (t.group < 0) break;
        if (t.inner == t.inner_end) continue; /* a group without rows */
        float c[N / 8][4];
        for (int n = 0; n < N / 8; n++) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
        for (int k = t.inner; k < t.inner_end; k += K, i++) {
            int s = i % STAGES;
            uint32_t stage = stages + s * STAGE;
            barrier_wait(full + 8 * s, i / STAGES % 2);
            if (FORM == BACKWARD_WEIGHT && t.inner_end - k < K) clear_rows<FORM>(memory + (stage - raw), t.inner_end - k);
            multiply_stage<FORM>(c, stage, half);
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); /* the stage before is multiplied */
            if (k > t.inner && speaks) barrier_arrive(empty + 8 * ((i - 1) % STAGES));
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        tie(c);
        if (speaks) barrier_arrive(empty + 8 * ((i - 1) % STAGES));
        write_result<FORM>(c, t, &p, memory + (result - raw), result, half);
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); /* shared memory must last until it is read */
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

static int multiprocessors(void)
{
    static int count;
    int device;
    if (count) return count;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return count;
}

template <Form FORM> static void launch(CUtensorMap a, CUtensorMap b, Job p)
{
    static bool ready;
    if (!ready)
        CUDA_CHECK(cudaFuncSetAttribute(grouped<FORM>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED));
    ready = true;
    grouped<FORM><<<multiprocessors(), THREADS, SHARED, cuda_stream()>>>(a, b, p);
    CUDA_LAUNCHED();
}

bool grouped_tensor_forward(real *y, const real *x, const real *w, const int *first, int groups, int rows, int in,
                            int out)
{
    if (rows == 0 || !fits(y, x, w, in, out)) return false;
    Job p = {};
    p.n = out, p.k = in, p.result = y;
    p.tile_count = grouped_tiles(&p.tiles, first, groups, rows, M);
    launch<FORWARD>(map_of(x, rows, in), map_of(w, (size_t)groups * out, in), p);
    return true;
}

bool grouped_tensor_backward_input(real *dx, const real *dy, const real *w, const int *first, int groups, int rows,
                                   int in, int out)
{
    if (rows == 0 || !fits(dx, dy, w, in, out)) return false;
    Job p = {};
    p.n = in, p.k = out, p.result = dx;
    p.tile_count = grouped_tiles(&p.tiles, first, groups, rows, M);
    launch<BACKWARD_INPUT>(map_of(dy, rows, out), map_of(w, (size_t)groups * out, in), p);
    return true;
}

bool grouped_tensor_backward_weight(acc *dw, const real *dy, const real *x, const int *first, int groups, int rows,
                                    int in, int out)
{
    if (rows == 0 || !fits(dw, dy, x, in, out)) return false;
    Job p = {};
    p.first = first, p.groups = groups, p.m = out, p.n = in, p.result = dw;
    launch<BACKWARD_WEIGHT>(map_of(dy, rows, out), map_of(x, rows, in), p);
    return true;
}
