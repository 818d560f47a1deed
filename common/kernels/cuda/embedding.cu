/* Embedding. The backward pass adds the rows of dy that have the same token. It uses no atomics, so the order of the
 * additions is fixed. It takes three kernels:
 *
 *   sort_by_token  sorts the rows by token, so that each token's rows become a run: neighbouring places in `order`
 *   add_pieces     cuts the runs into pieces at every CHUNK-th place and adds up each piece
 *   add_parts      adds up the pieces of each run that has several
 *
 * A frequent token makes up much of a batch. If one block added up its whole run, that block would still work when all
 * others are done. That is why runs are cut. */
#include "math.cuh"

enum { THREADS = 256, CHUNK = 64 };

/* A block computes one row. */
static __global__ void forward(real *y, const real *w, const int *token, int first, int vocab, int width)
{
    int t = token[blockIdx.x] - first;
    for (int c = threadIdx.x; c < width; c += blockDim.x)
        y[(size_t)blockIdx.x * width + c] = t >= 0 && t < vocab ? w[(size_t)t * width + c] : to_real(0);
}

/* Writes the row numbers to order[N], sorted by (token, row). The thread of row i counts the rows that come before it:
 * this count is the row's place. That is N^2 comparisons, a third of a millisecond for 65536 rows, and simpler than any
 * sorting algorithm. */
static __global__ void sort_by_token(int *order, const int *token, int n)
{
    __shared__ int others[THREADS];
    int i = blockIdx.x * blockDim.x + threadIdx.x, mine = i < n ? token[i] : 0, place = 0;
    for (int base = 0; base < n; base += THREADS) {
        __syncthreads();
        if (base + (int)threadIdx.x < n) others[threadIdx.x] = token[base + threadIdx.x];
        __syncthreads();
        int count = n - base < THREADS ? n - base : THREADS;
        for (int j = 0; j < count; j++) place += others[j] < mine || (others[j] == mine && base + j < i);
    }
    if (i < n) order[place] = i;
}

/* Is `place` the first place of its run? */
static __device__ bool starts(const int *order, const int *token, int place)
{
    return place == 0 || token[order[place - 1]] != token[order[place]];
}

/* Does the run of `place` continue in the next chunk of CHUNK places? */
static __device__ bool goes_on(const int *order, const int *token, int place, int n)
{
    int next = (place / CHUNK + 1) * CHUNK;
    return next < n && token[order[next]] == token[order[place]];
}

/* The index in part[] of the piece that begins at `place`. A chunk holds at most two pieces of runs that have several:
 * one begins at the chunk's first place, the other begins later and continues in the next chunk. */
static __device__ size_t slot(int place)
{
    return place / CHUNK * 2 + (place % CHUNK != 0);
}

/* Block b works if a piece begins at place b. Each thread adds up some columns. The sum goes to dw if the run is one
 * piece, else to part[]. */
static __global__ void add_pieces(acc *dw, acc *part, const real *dy, const int *order, const int *token, int first_word,
                                  int vocab, int n, int width)
{
    int place = blockIdx.x, mine = token[order[place]], row = mine - first_word;
    if (row < 0 || row >= vocab) return;
    bool first = starts(order, token, place);
    if (!first && place % CHUNK != 0) return;
    bool whole = first && !goes_on(order, token, place, n);
    int end = (place / CHUNK + 1) * CHUNK < n ? (place / CHUNK + 1) * CHUNK : n, last = place + 1;
    while (last < end && token[order[last]] == mine) last++;
    for (int c = threadIdx.x; c < width; c += blockDim.x) {
        acc sum = 0;
        for (int p = place; p < last; p++) sum += to_acc(dy[(size_t)order[p] * width + c]);
        if (whole)
            dw[(size_t)row * width + c] += sum;
        else
            part[slot(place) * width + c] = sum;
    }
}

/* Block b works if a run of several pieces begins at place b. It adds their sums to dw, in order. */
static __global__ void add_parts(acc *dw, const acc *part, const int *order, const int *token, int first_word, int vocab,
                                 int n, int width)
{
    int place = blockIdx.x, mine = token[order[place]], row = mine - first_word;
    if (row < 0 || row >= vocab) return;
    if (!starts(order, token, place) || !goes_on(order, token, place, n)) return;
    for (int c = threadIdx.x; c < width; c += blockDim.x) {
        acc sum = part[slot(place) * width + c];
        for (int p = (place / CHUNK + 1) * CHUNK; p < n && token[order[p]] == mine; p += CHUNK)
            sum += part[slot(p) * width + c];
        dw[(size_t)row * width + c] += sum;
    }
}

static size_t parts_bytes(int rows, int width)
{
    return (size_t)(rows / CHUNK + 1) * 2 * width * sizeof(acc);
}

size_t cuda_embedding_workspace(int rows, int width)
{
    return parts_bytes(rows, width) + (size_t)rows * sizeof(int);
}

void cuda_embedding_forward(real *y, const real *w, const int *token, int first, int vocab, int n, int width)
{
    forward<<<n, THREADS, 0, cuda_stream()>>>(y, w, token, first, vocab, width);
    CUDA_LAUNCHED();
}

void cuda_embedding_backward(acc *dw, const real *dy, const int *token, int first, int vocab, int n, int width)
{
    acc *part = (acc *)cuda_workspace(cuda_embedding_workspace(n, width));
    int *order = (int *)((char *)part + parts_bytes(n, width));
    sort_by_token<<<(n + THREADS - 1) / THREADS, THREADS, 0, cuda_stream()>>>(order, token, n);
    add_pieces<<<n, THREADS, 0, cuda_stream()>>>(dw, part, dy, order, token, first, vocab, n, width);
    add_parts<<<n, THREADS, 0, cuda_stream()>>>(dw, part, order, token, first, vocab, n, width);
    CUDA_LAUNCHED();
}
