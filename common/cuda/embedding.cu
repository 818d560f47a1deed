/* Embedding. The backward pass adds rows that carry the same token; without atomics, so that the sum always comes in the
 * same order: the rows are sorted by token first, and one block adds up each token's run. */
#include "math.cuh"

enum { THREADS = 256 };

static __global__ void forward(real *y, const real *w, const int *token, int width)
{
    const real *from = w + (size_t)token[blockIdx.x] * width;
    for (int c = threadIdx.x; c < width; c += blockDim.x) y[(size_t)blockIdx.x * width + c] = from[c];
}

/* order[rank of row i] = i, by (token, row). The rank is counted: every row looks at every other, N^2 comparisons, which
 * is a third of a millisecond for 65536 rows and simpler than any sort. */
static __global__ void sort_by_token(int *order, const int *token, int n)
{
    __shared__ int others[THREADS];
    int i = blockIdx.x * blockDim.x + threadIdx.x, mine = i < n ? token[i] : 0, rank = 0;
    for (int base = 0; base < n; base += THREADS) {
        __syncthreads();
        if (base + (int)threadIdx.x < n) others[threadIdx.x] = token[base + threadIdx.x];
        __syncthreads();
        int count = n - base < THREADS ? n - base : THREADS;
        for (int j = 0; j < count; j++) rank += others[j] < mine || (others[j] == mine && base + j < i);
    }
    if (i < n) order[rank] = i;
}

/* Block b works if the run of a token begins at place b of the order. A thread adds up a column. */
static __global__ void add_runs(acc *dw, const real *dy, const int *order, const int *token, int n, int width)
{
    int place = blockIdx.x, mine = token[order[place]];
    if (place > 0 && token[order[place - 1]] == mine) return;
    for (int c = threadIdx.x; c < width; c += blockDim.x) {
        acc sum = 0;
        for (int p = place; p < n && token[order[p]] == mine; p++) sum += to_acc(dy[(size_t)order[p] * width + c]);
        dw[(size_t)mine * width + c] += sum;
    }
}

void cuda_embedding_forward(real *y, const real *w, const int *token, int n, int width)
{
    forward<<<n, THREADS, 0, cuda_stream()>>>(y, w, token, width);
    CUDA_LAUNCHED();
}

void cuda_embedding_backward(acc *dw, const real *dy, const int *token, int n, int width)
{
    int *order = (int *)cuda_scratch(SCRATCH_ORDER, (size_t)n * sizeof(int));
    sort_by_token<<<(n + THREADS - 1) / THREADS, THREADS, 0, cuda_stream()>>>(order, token, n);
    add_runs<<<n, THREADS, 0, cuda_stream()>>>(dw, dy, order, token, n, width);
    CUDA_LAUNCHED();
}
