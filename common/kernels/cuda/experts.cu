/* Moving rows to the slots of their experts and back.
 *
 * expert_slots sorts choices by expert, those of one expert in order. It uses no atomics whose order matters. A part is
 * PART neighbouring choices:
 *
 *   count_parts   counts, in each part, the choices of each expert
 *   place_parts   adds the counts up: where each part's choices of each expert begin
 *   place         each thread counts the equal choices before its own in its part
 */
#include "math.cuh"

enum { PART = 256, ROWS = 8, THREADS = 32 * ROWS };

static __global__ void count_parts(int *counts, const int *choice, int total, int experts)
{
    __shared__ int count[EXPERTS_MAX];
    for (int e = threadIdx.x; e < experts; e += PART) count[e] = 0;
    __syncthreads();
    int c = blockIdx.x * PART + threadIdx.x;
    if (c < total) atomicAdd(&count[choice[c]], 1);
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += PART) counts[(size_t)blockIdx.x * experts + e] = count[e];
}

/* One block, a thread for each expert. counts[part, e] becomes the number of choices of e in the parts before. */
static __global__ void place_parts(int *counts, int *first, int64_t *count, int parts, int experts, int capacity)
{
    __shared__ int taken[EXPERTS_MAX], dropped[EXPERTS_MAX];
    int e = threadIdx.x, all = 0;
    for (int p = 0; p < parts; p++) {
        int here = counts[(size_t)p * experts + e];
        counts[(size_t)p * experts + e] = all;
        all += here;
    }
    taken[e] = capacity && all > capacity ? capacity : all;
    dropped[e] = all - taken[e];
    count[e] += all;
    __syncthreads();
    int begin = 0;
    for (int f = 0; f < e; f++) begin += taken[f];
    first[e] = begin;
    if (e == experts - 1) {
        first[experts] = begin + taken[e];
        for (int f = 0; f < experts; f++) count[experts] += dropped[f];
    }
}

static __global__ void place(int *slot, const int *choice, const int *counts, const int *first, int total, int experts,
                             int capacity)
{
    __shared__ int others[PART];
    int c = blockIdx.x * PART + threadIdx.x, mine = c < total ? choice[c] : -1;
    others[threadIdx.x] = mine;
    __syncthreads();
    if (c >= total) return;
    int before = counts[(size_t)blockIdx.x * experts + mine];
    for (int t = 0; t < (int)threadIdx.x; t++) before += others[t] == mine;
    slot[c] = capacity && before >= capacity ? -1 : first[mine] + before;
}

/* A warp moves one row; V columns at a time. */
template <int V>
static __global__ void to_slots(real *out, const real *x, const int *slot, int n, int k, int width)
{
    int i = blockIdx.x * ROWS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (i >= n) return;
    for (int c = lane * V; c < width; c += 32 * V) {
        Pack<V> p = *(const Pack<V> *)(x + (size_t)i * width + c);
        for (int j = 0; j < k; j++) {
            int to = slot[(size_t)i * k + j];
            if (to >= 0) *(Pack<V> *)(out + (size_t)to * width + c) = p;
        }
    }
}

template <int V>
static __global__ void from_slots(real *y, const real *base, const real *in, const int *slot, const acc *weight, int n,
                                  int k, int width)
{
    int i = blockIdx.x * ROWS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (i >= n) return;
    for (int c = lane * V; c < width; c += 32 * V) {
        acc sum[V] = {0};
        Pack<V> p;
        if (base) {
            p = *(const Pack<V> *)(base + (size_t)i * width + c);
            for (int v = 0; v < V; v++) sum[v] = to_acc(p.value[v]);
        }
        for (int j = 0; j < k; j++) {
            int from = slot[(size_t)i * k + j];
            if (from < 0) continue;
            acc w = weight ? weight[(size_t)i * k + j] : acc(1);
            p = *(const Pack<V> *)(in + (size_t)from * width + c);
            for (int v = 0; v < V; v++) sum[v] += w * to_acc(p.value[v]);
        }
        for (int v = 0; v < V; v++) p.value[v] = to_real(sum[v]);
        *(Pack<V> *)(y + (size_t)i * width + c) = p;
    }
}

/* A warp computes one choice. */
template <int V>
static __global__ void from_slots_backward(real *din, acc *dweight, const real *dy, const real *in, const int *slot,
                                           const acc *weight, int choices, int k, int width)
{
    int c0 = blockIdx.x * ROWS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (c0 >= choices) return;
    int at = slot[c0];
    if (at < 0) {
        if (lane == 0) dweight[c0] = 0;
        return;
    }
    acc dot = 0, w = weight[c0];
    for (int c = lane * V; c < width; c += 32 * V) {
        Pack<V> d = *(const Pack<V> *)(dy + (size_t)(c0 / k) * width + c);
        Pack<V> x = *(const Pack<V> *)(in + (size_t)at * width + c);
        for (int v = 0; v < V; v++) {
            dot += to_acc(d.value[v]) * to_acc(x.value[v]);
            d.value[v] = to_real(w * to_acc(d.value[v]));
        }
        *(Pack<V> *)(din + (size_t)at * width + c) = d;
    }
    dot = warp_sum(dot);
    if (lane == 0) dweight[c0] = dot;
}

template <int V> static __global__ void sum_rows(real *sum, const real *x, size_t packs)
{
    for (size_t p = blockIdx.x * (size_t)blockDim.x + threadIdx.x; p < packs; p += (size_t)gridDim.x * blockDim.x) {
        Pack<V> a = ((const Pack<V> *)sum)[p], b = ((const Pack<V> *)x)[p];
        for (int v = 0; v < V; v++) a.value[v] = to_real(to_acc(a.value[v]) + to_acc(b.value[v]));
        ((Pack<V> *)sum)[p] = a;
    }
}

static unsigned blocks_of(int rows)
{
    return (rows + ROWS - 1) / ROWS;
}

void cuda_expert_slots(int *slot, int *first, int64_t *count, const int *choice, int n, int k, int experts,
                       int capacity)
{
    int total = n * k, parts = (total + PART - 1) / PART;
    int *counts = (int *)cuda_workspace(((size_t)parts * experts + 1) * sizeof(int));
    if (parts > 0) count_parts<<<parts, PART, 0, cuda_stream()>>>(counts, choice, total, experts);
    place_parts<<<1, experts, 0, cuda_stream()>>>(counts, first, count, parts, experts, capacity);
    if (parts > 0) place<<<parts, PART, 0, cuda_stream()>>>(slot, choice, counts, first, total, experts, capacity);
    CUDA_LAUNCHED();
}

void cuda_rows_to_slots(real *out, const real *x, const int *slot, int n, int k, int width)
{
    if (n == 0) return;
    if (packs_fit(width, out, x, x, x))
        to_slots<PACK><<<blocks_of(n), THREADS, 0, cuda_stream()>>>(out, x, slot, n, k, width);
    else
        to_slots<1><<<blocks_of(n), THREADS, 0, cuda_stream()>>>(out, x, slot, n, k, width);
    CUDA_LAUNCHED();
}

void cuda_rows_from_slots(real *y, const real *base, const real *in, const int *slot, const acc *weight, int n, int k,
                          int width)
{
    if (n == 0) return;
    if (packs_fit(width, y, base, in, in))
        from_slots<PACK><<<blocks_of(n), THREADS, 0, cuda_stream()>>>(y, base, in, slot, weight, n, k, width);
    else
        from_slots<1><<<blocks_of(n), THREADS, 0, cuda_stream()>>>(y, base, in, slot, weight, n, k, width);
    CUDA_LAUNCHED();
}

void cuda_rows_from_slots_backward(real *din, acc *dweight, const real *dy, const real *in, const int *slot,
                                   const acc *weight, int n, int k, int width)
{
    if (n == 0) return;
    if (packs_fit(width, din, dy, in, in))
        from_slots_backward<PACK>
            <<<blocks_of(n * k), THREADS, 0, cuda_stream()>>>(din, dweight, dy, in, slot, weight, n * k, k, width);
    else
        from_slots_backward<1>
            <<<blocks_of(n * k), THREADS, 0, cuda_stream()>>>(din, dweight, dy, in, slot, weight, n * k, k, width);
    CUDA_LAUNCHED();
}

void cuda_add_rows(real *sum, const real *x, size_t n)
{
    if (n % PACK == 0 && ((size_t)sum | (size_t)x) % 16 == 0)
        sum_rows<PACK><<<blocks_for(n / PACK, THREADS), THREADS, 0, cuda_stream()>>>(sum, x, n / PACK);
    else
        sum_rows<1><<<blocks_for(n, THREADS), THREADS, 0, cuda_stream()>>>(sum, x, n);
    CUDA_LAUNCHED();
}
