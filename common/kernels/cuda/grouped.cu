/* The grouped products, for any shape and precision: tiles of 64 x 64, computed by the ordinary cores. bf16 builds for
 * compute capability 9.0 use grouped_tensor.cu instead, for shapes that it takes.
 *
 * How many rows a group has is known on the GPU only. So the host launches as many blocks as there may be tiles, and a
 * small kernel first lists the tiles that there are. */
#include "grouped.cuh"
#include "math.cuh"

enum { TILE = 64, STEP = 16, THREADS = 256, EACH = 4 }; /* a thread computes EACH x EACH elements */

/* One block, a thread for each group. */
static __global__ void list_tiles(RowTile *tiles, int room, const int *first, int groups, int rows_of_tile)
{
    __shared__ int count[EXPERTS_MAX];
    int g = threadIdx.x, begin = first[g], end = first[g + 1];
    count[g] = (end - begin + rows_of_tile - 1) / rows_of_tile;
    __syncthreads();
    int at = 0, all = 0;
    for (int f = 0; f < groups; f++) {
        if (f < g) at += count[f];
        all += count[f];
    }
    for (int t = 0; t < count[g]; t++) tiles[at + t] = (RowTile){g, begin + t * rows_of_tile, end};
    for (int t = all + g; t < room; t += groups) tiles[t] = (RowTile){-1, 0, 0};
}

int grouped_tiles(const RowTile **tiles, const int *first, int groups, int rows, int rows_of_tile)
{
    int room = rows / rows_of_tile + groups;
    RowTile *list = (RowTile *)cuda_workspace((size_t)room * sizeof *list);
    list_tiles<<<1, groups, 0, cuda_stream()>>>(list, room, first, groups, rows_of_tile);
    *tiles = list;
    return room;
}

/* A matrix: element (i, j) is at[i * row + j * column]. */
typedef struct {
    const real *at;
    size_t row, column;
} Matrix;

/* sum[EACH, EACH] = the part of a[m, k] b[k, n] that this thread computes, of the tile at (m0, n0). */
static __device__ void multiply(acc sum[EACH][EACH], Matrix a, Matrix b, int m, int n, int k)
{
    __shared__ acc as[STEP][TILE + 1], bs[STEP][TILE + 1];
    int x = threadIdx.x % (TILE / EACH), y = threadIdx.x / (TILE / EACH);
    for (int k0 = 0; k0 < k; k0 += STEP) {
        __syncthreads();
        for (int i = threadIdx.x; i < TILE * STEP; i += THREADS) {
            /* neighbouring threads read neighbouring elements, along whichever index they lie side by side */
            int ak = a.column == 1 ? i % STEP : i / TILE, am = a.column == 1 ? i / STEP : i % TILE;
            int bk = b.row == 1 ? i % STEP : i / TILE, bn = b.row == 1 ? i / STEP : i % TILE;
            bool in_a = am < m && k0 + ak < k, in_b = bn < n && k0 + bk < k;
            as[ak][am] = in_a ? to_acc(a.at[am * a.row + (k0 + ak) * a.column]) : acc(0);
            bs[bk][bn] = in_b ? to_acc(b.at[(k0 + bk) * b.row + bn * b.column]) : acc(0);
        }
        __syncthreads();
        for (int kk = 0; kk < STEP; kk++)
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++)
                    sum[i][j] += as[kk][y + i * (TILE / EACH)] * bs[kk][x + j * (TILE / EACH)];
    }
}

/* y[rows, n] = x[rows, k] times b(g)[k, n], for the rows of group g. */
static __global__ void rows_times_weights(real *y, const real *x, Matrix b, size_t group_size, const RowTile *tiles,
                                          int n, int k)
{
    RowTile tile = tiles[blockIdx.y];
    if (tile.group < 0) return;
    int n0 = blockIdx.x * TILE, m = min(TILE, tile.end - tile.row);
    acc sum[EACH][EACH] = {{0}};
    b.at += tile.group * group_size + n0 * b.column;
    multiply(sum, (Matrix){x + (size_t)tile.row * k, (size_t)k, 1}, b, m, n - n0, k);
    int tx = threadIdx.x % (TILE / EACH), ty = threadIdx.x / (TILE / EACH);
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            int row = ty + i * (TILE / EACH), column = tx + j * (TILE / EACH);
            if (row < m && n0 + column < n) y[(size_t)(tile.row + row) * n + n0 + column] = to_real(sum[i][j]);
        }
}

/* dw[g, out, in] adds dy^T x over the rows of group g. */
static __global__ void weight_gradient(acc *dw, const real *dy, const real *x, const int *first, int in, int out)
{
    int g = blockIdx.z, begin = first[g], rows = first[g + 1] - begin, m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE;
    if (rows == 0) return;
    acc sum[EACH][EACH] = {{0}};
    multiply(sum, (Matrix){dy + (size_t)begin * out + m0, 1, (size_t)out},
             (Matrix){x + (size_t)begin * in + n0, (size_t)in, 1}, out - m0, in - n0, rows);
    int tx = threadIdx.x % (TILE / EACH), ty = threadIdx.x / (TILE / EACH);
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            int row = m0 + ty + i * (TILE / EACH), column = n0 + tx + j * (TILE / EACH);
            if (row < out && column < in) dw[((size_t)g * out + row) * in + column] += sum[i][j];
        }
}

static unsigned tiles_of(int n)
{
    return (n + TILE - 1) / TILE;
}

static void multiply_rows(real *y, const real *x, Matrix w, const int *first, int groups, int rows, int n, int k)
{
    const RowTile *tiles;
    int count = grouped_tiles(&tiles, first, groups, rows, TILE);
    rows_times_weights<<<dim3(tiles_of(n), count), THREADS, 0, cuda_stream()>>>(y, x, w, (size_t)n * k, tiles, n, k);
    CUDA_LAUNCHED();
}

void cuda_grouped_forward(real *y, const real *x, const real *w, const int *first, int groups, int rows, int in, int out)
{
    if (grouped_tensor_forward(y, x, w, first, groups, rows, in, out)) return;
    multiply_rows(y, x, (Matrix){w, 1, (size_t)in}, first, groups, rows, out, in);
}

void cuda_grouped_backward_input(real *dx, const real *dy, const real *w, const int *first, int groups, int rows,
                                 int in, int out)
{
    if (grouped_tensor_backward_input(dx, dy, w, first, groups, rows, in, out)) return;
    multiply_rows(dx, dy, (Matrix){w, (size_t)in, 1}, first, groups, rows, in, out);
}

void cuda_grouped_backward_weight(acc *dw, const real *dy, const real *x, const int *first, int groups, int rows,
                                  int in, int out)
{
    (void)rows;
    if (grouped_tensor_backward_weight(dw, dy, x, first, groups, rows, in, out)) return;
    weight_gradient<<<dim3(tiles_of(in), tiles_of(out), groups), THREADS, 0, cuda_stream()>>>(dw, dy, x, first, in,
                                                                                           out);
    CUDA_LAUNCHED();
}
