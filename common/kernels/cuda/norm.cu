/* RMSNorm, fused with the residual add before it. */
#include "math.cuh"

/* ROWS: rows per block, a warp each. PARTS: the most parts of the rows that the sum for dw is computed in. */
enum { THREADS = 256, ROWS = THREADS / 32, PARTS = 512 };

/* A warp computes one row; a lane handles packs of V neighbouring columns. */
template <int V>
static __global__ void forward(real *sum, real *y, acc *rstd, const real *x, const real *delta, const real *w, acc eps,
                               int n, int width)
{
    int i = blockIdx.x * ROWS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (i >= n) return;
    size_t row = (size_t)i * width;
    acc squares = 0;
    for (int c = lane * V; c < width; c += 32 * V) {
        Pack<V> s = *(const Pack<V> *)(x + row + c);
        if (delta) {
            Pack<V> d = *(const Pack<V> *)(delta + row + c);
            for (int k = 0; k < V; k++) s.value[k] = to_real(to_acc(s.value[k]) + to_acc(d.value[k]));
        }
        for (int k = 0; k < V; k++) squares += to_acc(s.value[k]) * to_acc(s.value[k]);
        *(Pack<V> *)(sum + row + c) = s;
    }
    acc factor = 1 / sqrt(warp_sum(squares) / width + eps);
    if (lane == 0) rstd[i] = factor;
    for (int c = lane * V; c < width; c += 32 * V) { /* each lane reads the values that it wrote itself */
        Pack<V> s = *(const Pack<V> *)(sum + row + c), g = *(const Pack<V> *)(w + c), out;
        for (int k = 0; k < V; k++) out.value[k] = to_real(to_acc(s.value[k]) * factor * to_acc(g.value[k]));
        *(Pack<V> *)(y + row + c) = out;
    }
}

/* With u = sum rstd and du = dy w:  dx adds rstd (du - u mean_c(du u)). A warp computes one row. */
template <int V>
static __global__ void backward_x(real *dx, const real *dy, const real *sum, const acc *rstd, const real *w, int n,
                                  int width)
{
    int i = blockIdx.x * ROWS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (i >= n) return;
    size_t row = (size_t)i * width;
    acc factor = rstd[i], mean = 0;
    for (int c = lane * V; c < width; c += 32 * V) {
        Pack<V> d = *(const Pack<V> *)(dy + row + c), s = *(const Pack<V> *)(sum + row + c);
        Pack<V> g = *(const Pack<V> *)(w + c);
        for (int k = 0; k < V; k++) mean += to_acc(d.value[k]) * to_acc(g.value[k]) * to_acc(s.value[k]);
    }
    mean = warp_sum(mean) * factor / width;
    for (int c = lane * V; c < width; c += 32 * V) {
        Pack<V> d = *(const Pack<V> *)(dy + row + c), s = *(const Pack<V> *)(sum + row + c);
        Pack<V> g = *(const Pack<V> *)(w + c), out = *(const Pack<V> *)(dx + row + c);
        for (int k = 0; k < V; k++) {
            acc through = factor * (to_acc(d.value[k]) * to_acc(g.value[k]) - to_acc(s.value[k]) * factor * mean);
            out.value[k] = to_real(to_acc(out.value[k]) + through);
        }
        *(Pack<V> *)(dx + row + c) = out;
    }
}

/* dw[c] is the sum over rows of dy sum rstd. Two kernels compute it without atomics, so the order of the additions is
 * fixed. This one writes part[p, C], the sum over part p of the rows. Part p is blockIdx.y; a thread sums V columns. */
template <int V>
static __global__ void backward_w(acc *part, const real *dy, const real *sum, const acc *rstd, int n, int width)
{
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * V;
    if (c >= width) return;
    acc total[V] = {0};
    int begin = (int)((long)n * blockIdx.y / gridDim.y), end = (int)((long)n * (blockIdx.y + 1) / gridDim.y);
    for (int row = begin; row < end; row++) {
        Pack<V> d = *(const Pack<V> *)(dy + (size_t)row * width + c),
                s = *(const Pack<V> *)(sum + (size_t)row * width + c);
        for (int i = 0; i < V; i++) total[i] += to_acc(d.value[i]) * to_acc(s.value[i]) * rstd[row];
    }
    for (int i = 0; i < V; i++) part[(size_t)blockIdx.y * width + c + i] = total[i];
}

/* dw += the sum of part[parts, C]. A warp per column. */
static __global__ void add_parts(acc *dw, const acc *part, int parts, int width)
{
    int c = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (c >= width) return;
    acc total = 0;
    for (int p = threadIdx.x % 32; p < parts; p += 32) total += part[(size_t)p * width + c];
    total = warp_sum(total);
    if (threadIdx.x % 32 == 0) dw[c] += total;
}

size_t cuda_norm_workspace(int width)
{
    return (size_t)PARTS * width * sizeof(acc);
}

void cuda_residual_norm_forward(real *sum, real *y, acc *rstd, const real *x, const real *delta, const real *w,
                                double eps, int n, int width)
{
    unsigned blocks = (n + ROWS - 1) / ROWS;
    bool packs = packs_fit(width, sum, y, x, w) && packs_fit(width, delta, w, w, w);
    if (packs)
        forward<PACK><<<blocks, THREADS, 0, cuda_stream()>>>(sum, y, rstd, x, delta, w, (acc)eps, n, width);
    else
        forward<1><<<blocks, THREADS, 0, cuda_stream()>>>(sum, y, rstd, x, delta, w, (acc)eps, n, width);
    CUDA_LAUNCHED();
}

template <int V>
static void backward(real *dx, acc *dw, const real *dy, const real *sum, const acc *rstd, const real *w, int n,
                     int width)
{
    int parts = n < PARTS ? n : PARTS, threads = 64;
    acc *part = (acc *)cuda_workspace(cuda_norm_workspace(width));
    dim3 grid((width / V + threads - 1) / threads, parts);
    backward_x<V><<<(n + ROWS - 1) / ROWS, THREADS, 0, cuda_stream()>>>(dx, dy, sum, rstd, w, n, width);
    backward_w<V><<<grid, threads, 0, cuda_stream()>>>(part, dy, sum, rstd, n, width);
    add_parts<<<(width * 32 + THREADS - 1) / THREADS, THREADS, 0, cuda_stream()>>>(dw, part, parts, width);
    CUDA_LAUNCHED();
}

void cuda_residual_norm_backward(real *dx, acc *dw, const real *dy, const real *sum, const acc *rstd, const real *w,
                                 int n, int width)
{
    if (packs_fit(width, dx, dy, sum, w))
        backward<PACK>(dx, dw, dy, sum, rstd, w, n, width);
    else
        backward<1>(dx, dw, dy, sum, rstd, w, n, width);
}
