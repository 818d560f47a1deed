/* The router of a mixture of experts. A warp computes one row, in double like the CPU: so both choose the same experts. */
#include "math.cuh"

enum { ROWS = 2, THREADS = 32 * ROWS, FLAT = 256 };

/* Two arrays [E] of this warp in shared memory. */
static __device__ double *score_of(double *shared, int experts)
{
    return shared + threadIdx.x / 32 * 2 * experts;
}

/* The largest of x over a warp, and of equals the one with the smallest index. Every lane gets both. */
static __device__ void warp_best(double *x, int *index)
{
    for (int distance = 16; distance > 0; distance /= 2) {
        double other = __shfl_xor_sync(~0u, *x, distance);
        int place = __shfl_xor_sync(~0u, *index, distance);
        if (other > *x || (other == *x && place < *index)) *x = other, *index = place;
    }
}

/* Fills in the row's scores. Returns log sum exp of its logits. */
static __device__ double scores(double *score, const real *logits, RouterShape s)
{
    int lane = threadIdx.x % 32;
    double top = -INFINITY, total = 0;
    for (int e = lane; e < s.experts; e += 32) top = fmax(top, (double)to_acc(logits[e]));
    top = warp_max(top);
    for (int e = lane; e < s.experts; e += 32) total += score[e] = exp((double)to_acc(logits[e]) - top);
    total = warp_sum(total);
    for (int e = lane; e < s.experts; e += 32)
        score[e] = s.sigmoid ? 1 / (1 + exp(-(double)to_acc(logits[e]))) : score[e] / total;
    __syncwarp();
    return top + log(total);
}

static __global__ void forward(int *choice, acc *weight, const real *logits, const acc *bias, const int *forced,
                               RouterShape s)
{
    extern __shared__ double shared[];
    int i = blockIdx.x * ROWS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (i >= s.rows) return;
    double *score = score_of(shared, s.experts), *value = score + s.experts, total = 0;
    scores(score, logits + (size_t)i * s.experts, s);
    for (int e = lane; e < s.experts; e += 32) value[e] = (double)(acc)score[e] + (bias ? (double)bias[e] : 0);
    __syncwarp();
    for (int j = 0; j < s.top_k; j++) {
        double best = -INFINITY;
        int at = s.experts;
        for (int e = lane; e < s.experts; e += 32) /* ascending, so among equals the first stays */
            if (value[e] > best) best = value[e], at = e;
        warp_best(&best, &at);
        if (at == s.experts) at = 0; /* every logit is NaN: the run ends at the loss */
        if (forced) at = forced[(size_t)i * s.top_k + j];
        total += score[at];
        if (lane == 0) {
            choice[(size_t)i * s.top_k + j] = at;
            value[at] = -INFINITY;
        }
        __syncwarp();
    }
    for (int j = lane; j < s.top_k; j += 32) {
        size_t c = (size_t)i * s.top_k + j;
        weight[c] = (acc)(score[choice[c]] / (s.renormalize ? total : 1));
    }
}

/* The formulas are explained in cpu/router.c. */
static __global__ void backward(real *dlogits, acc *aux, const acc *dweight, const real *logits, const int *choice,
                                const acc *weight, const acc *slope, int group_rows, double z, RouterShape s)
{
    extern __shared__ double shared[];
    int i = blockIdx.x * ROWS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (i >= s.rows) return;
    const real *row = logits + (size_t)i * s.experts;
    const acc *dw = dweight + (size_t)i * s.top_k, *w = weight + (size_t)i * s.top_k;
    const int *chosen = choice + (size_t)i * s.top_k;
    const acc *slope_of_row = slope ? slope + (size_t)(i / group_rows) * s.experts : NULL;
    double *score = score_of(shared, s.experts), *dscore = score + s.experts;
    double lse = scores(score, row, s), all = 0, loss = z * lse * lse, balance = 0, total = 0, mean = 0, sum = 0;

    for (int e = lane; e < s.experts; e += 32) {
        all += score[e];
        if (slope_of_row) balance += (double)slope_of_row[e] * score[e];
    }
    all = warp_sum(all);
    balance = warp_sum(balance) / all;
    for (int e = lane; e < s.experts; e += 32)
        dscore[e] = slope_of_row ? ((double)slope_of_row[e] - balance) / all : 0;
    for (int j = lane; j < s.top_k; j += 32) {
        total += score[chosen[j]];
        mean += (double)w[j] * (double)dw[j];
    }
    total = warp_sum(total);
    mean = warp_sum(mean);
    __syncwarp();
    for (int j = lane; j < s.top_k; j += 32) /* a row's experts differ, so no two lanes add to the same */
        dscore[chosen[j]] += s.renormalize ? ((double)dw[j] - mean) / total : (double)dw[j];
    __syncwarp();
    for (int e = lane; e < s.experts; e += 32) sum += score[e] * dscore[e];
    sum = warp_sum(sum);
    for (int e = lane; e < s.experts; e += 32) {
        double d = s.sigmoid ? score[e] * (1 - score[e]) * dscore[e] : score[e] * (dscore[e] - sum);
        double through_z = z != 0 ? 2 * z * lse * exp((double)to_acc(row[e]) - lse) : 0;
        dlogits[(size_t)i * s.experts + e] = to_real((acc)(d + through_z));
    }
    if (lane == 0) aux[i] = (acc)(loss + balance);
}

static __global__ void slope_of_counts(acc *slope, const int64_t *count, int layers, int experts, double factor)
{
    int e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= experts) return;
    int64_t total = 0;
    for (int l = 0; l < layers; l++) total += count[(size_t)l * (experts + 1) + e];
    slope[e] = (acc)(factor * (double)total);
}

/* A block counts the choices of one sequence. Integer atomics: any order gives the same counts. */
static __global__ void slope_of_sequences(acc *slope, const int *choice, int per_sequence, int experts, double factor)
{
    __shared__ int count[EXPERTS_MAX];
    for (int e = threadIdx.x; e < experts; e += blockDim.x) count[e] = 0;
    __syncthreads();
    for (int c = threadIdx.x; c < per_sequence; c += blockDim.x)
        atomicAdd(&count[choice[(size_t)blockIdx.x * per_sequence + c]], 1);
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += blockDim.x)
        slope[(size_t)blockIdx.x * experts + e] = (acc)(factor * count[e]);
}

static __global__ void add(int64_t *sum, const int64_t *x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sum[i] += x[i];
}

static unsigned blocks_of(int rows)
{
    return (rows + ROWS - 1) / ROWS;
}

static size_t shared_bytes(int experts)
{
    return (size_t)ROWS * 2 * experts * sizeof(double);
}

void cuda_router_forward(int *choice, acc *weight, const real *logits, const acc *bias, const int *forced,
                         RouterShape s)
{
    if (s.rows == 0) return;
    forward<<<blocks_of(s.rows), THREADS, shared_bytes(s.experts), cuda_stream()>>>(choice, weight, logits, bias,
                                                                                        forced, s);
    CUDA_LAUNCHED();
}

void cuda_router_backward(real *dlogits, acc *aux, const acc *dweight, const real *logits, const int *choice,
                          const acc *weight, const acc *slope, int group_rows, double z, RouterShape s)
{
    if (s.rows == 0) return;
    backward<<<blocks_of(s.rows), THREADS, shared_bytes(s.experts), cuda_stream()>>>(
        dlogits, aux, dweight, logits, choice, weight, slope, group_rows, z, s);
    CUDA_LAUNCHED();
}

void cuda_count_slope(acc *slope, const int64_t *count, int layers, int experts, double factor)
{
    slope_of_counts<<<(experts + FLAT - 1) / FLAT, FLAT, 0, cuda_stream()>>>(slope, count, layers, experts, factor);
    CUDA_LAUNCHED();
}

void cuda_sequence_slope(acc *slope, const int *choice, int n, int k, int experts, int seq, double factor)
{
    if (n == 0) return;
    slope_of_sequences<<<n / seq, FLAT, 0, cuda_stream()>>>(slope, choice, seq * k, experts, factor);
    CUDA_LAUNCHED();
}

void cuda_add_counts(int64_t *sum, const int64_t *x, int n)
{
    add<<<(n + FLAT - 1) / FLAT, FLAT, 0, cuda_stream()>>>(sum, x, n);
    CUDA_LAUNCHED();
}
