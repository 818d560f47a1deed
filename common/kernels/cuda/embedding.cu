/* Embedding. The backward pass adds rows that carry the same token; without atomics, so that the sum always comes in the
 * same order: the rows are sorted by token first, then each token's run is added up. */
#include "math.cuh"

enum { THREADS = 256, CHUNK = 64 };

static __global__ void forward(real *y, const real *w, const int *token, int first, int vocab, int width)
{
    int t = token[blockIdx.x] - first;
    for (int c = threadIdx.x; c < width; c += blockDim.x)
        y[(size_t)blockIdx.x * width + c] = t >= 0 && t < vocab ? w[(size_t)t * width + c] : to_real(0);
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

/* A run is added up in pieces, cut where the place is a multiple of CHUNK: frequent tokens make up much of a batch, and a
 * single block would still work on them when all others are done. Is `place` the first of its run, and does the run go on
 * in the next chunk? */
static __device__ bool starts(const int *order, const int *token, int place)
{
    return place == 0 || token[order[place - 1]] != token[order[place]];
}

static __device__ bool goes_on(const int *order, const int *token, int place, int n)
{
    int next = (place / CHUNK + 1) * CHUNK;
    return next < n && token[order[next]] == token[order[place]];
}

/* In a chunk at most two pieces belong to longer runs: the one at its start, and one that starts further in. */
static __device__ size_t slot(int place)
{
    return place / CHUNK * 2 + (place % CHUNK != 0);
}

/* Block b works if a piece begins at place b; a thread adds up columns. A run of one piece goes to dw at once. */
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
