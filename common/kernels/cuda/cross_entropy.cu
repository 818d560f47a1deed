/* Softmax and cross-entropy. A block computes one row. */
#include "math.cuh"

enum { THREADS = 512 };

/* The first pass over the row computes its maximum and the sum of exponentials together, as an online softmax does. The
 * second pass overwrites the logits with their gradient. */
template <int V> static __global__ void cross_entropy(acc *loss, real *logits, const int *label, acc scale, int vocab)
{
    __shared__ acc shared_top[32], shared_sum[32];
    real *x = logits + (size_t)blockIdx.x * vocab;
    int target = label[blockIdx.x];
    if (target < 0) { /* this row is not counted in the loss */
        for (int v = threadIdx.x; v < vocab; v += blockDim.x) x[v] = to_real(0);
        if (threadIdx.x == 0) loss[blockIdx.x] = 0;
        return;
    }
    acc top = -INFINITY, total = 0; /* over this thread's columns */
    for (int v = threadIdx.x * V; v < vocab; v += blockDim.x * V) {
        Pack<V> p = *(const Pack<V> *)(x + v);
        acc new_top = top;
        for (int i = 0; i < V; i++) new_top = fmax(new_top, to_acc(p.value[i]));
        if (!(new_top > -INFINITY)) continue;
        total *= exp_of(top - new_top);
        for (int i = 0; i < V; i++) total += exp_of(to_acc(p.value[i]) - new_top);
        top = new_top;
    }
    acc x_target = to_acc(x[target]);

    /* combine top and total over the warp, then over the block */
    acc warp_top = warp_max(top);
    total = warp_sum(top > -INFINITY ? total * exp_of(top - warp_top) : acc(0));
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) shared_top[warp] = warp_top, shared_sum[warp] = total;
    __syncthreads();
    top = lane < blockDim.x / 32 ? shared_top[lane] : acc(-INFINITY);
    total = lane < blockDim.x / 32 ? shared_sum[lane] : acc(0);
    acc block_top = warp_max(top);
    total = warp_sum(top > -INFINITY ? total * exp_of(top - block_top) : acc(0));

    if (threadIdx.x == 0) loss[blockIdx.x] = scale * (log(total) + block_top - x_target);
    acc factor = scale / total;
    for (int v = threadIdx.x * V; v < vocab; v += blockDim.x * V) {
        Pack<V> p = *(const Pack<V> *)(x + v);
        for (int i = 0; i < V; i++) {
            acc d = exp_of(to_acc(p.value[i]) - block_top) * factor;
            p.value[i] = to_real(v + i == target ? d - scale : d);
        }
        *(Pack<V> *)(x + v) = p;
    }
}

void cuda_cross_entropy(acc *loss, real *logits, const int *label, double scale, int n, int vocab)
{
    if (packs_fit(vocab, logits, logits, logits, logits))
        cross_entropy<PACK><<<n, THREADS, 0, cuda_stream()>>>(loss, logits, label, (acc)scale, vocab);
    else
        cross_entropy<1><<<n, THREADS, 0, cuda_stream()>>>(loss, logits, label, (acc)scale, vocab);
    CUDA_LAUNCHED();
}

/* --- logits that are split over ranks by column --- */

/* The maximum over a block. Every thread gets it. `shared` is shared memory for 32 values. */
static __device__ acc block_max(acc x, acc *shared)
{
    x = warp_max(x);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_max(threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : acc(-INFINITY));
}

static __global__ void find_top(acc *top, const real *logits, int vocab, int stride)
{
    __shared__ acc shared[32];
    const real *x = logits + (size_t)blockIdx.x * stride;
    acc largest = -INFINITY;
    for (int v = threadIdx.x; v < vocab; v += blockDim.x) largest = fmax(largest, to_acc(x[v]));
    largest = block_max(largest, shared);
    if (threadIdx.x == 0) top[blockIdx.x] = largest;
}

static __global__ void add_exponentials(acc *total, acc *target, const real *logits, const acc *top, const int *label,
                                        int first, int vocab, int stride)
{
    __shared__ acc shared[32];
    const real *x = logits + (size_t)blockIdx.x * stride;
    acc largest = top[blockIdx.x], sum = 0;
    for (int v = threadIdx.x; v < vocab; v += blockDim.x) sum += exp_of(to_acc(x[v]) - largest);
    sum = block_sum(sum, shared);
    if (threadIdx.x > 0) return;
    int mine = label[blockIdx.x] - first;
    total[blockIdx.x] = sum;
    target[blockIdx.x] = label[blockIdx.x] >= 0 && mine >= 0 && mine < vocab ? to_acc(x[mine]) - largest : acc(0);
}

static __global__ void split_gradient(acc *loss, real *logits, const acc *top, const acc *total, const acc *target,
                                      const int *label, int first, acc scale, int vocab, int stride)
{
    real *x = logits + (size_t)blockIdx.x * stride;
    int mine = label[blockIdx.x] - first;
    bool counted = label[blockIdx.x] >= 0;
    acc largest = top[blockIdx.x], factor = scale / total[blockIdx.x];
    for (int v = threadIdx.x; v < stride; v += blockDim.x) {
        acc d = counted && v < vocab ? exp_of(to_acc(x[v]) - largest) * factor : acc(0);
        x[v] = to_real(counted && v == mine && v < vocab ? d - scale : d);
    }
    if (threadIdx.x == 0)
        loss[blockIdx.x] = counted ? scale * (log(total[blockIdx.x]) - target[blockIdx.x]) : acc(0);
}

void cuda_logits_top(acc *top, const real *logits, int n, int vocab, int stride)
{
    find_top<<<n, THREADS, 0, cuda_stream()>>>(top, logits, vocab, stride);
    CUDA_LAUNCHED();
}

void cuda_logits_sum(acc *total, acc *target, const real *logits, const acc *top, const int *label, int first, int n,
                     int vocab, int stride)
{
    add_exponentials<<<n, THREADS, 0, cuda_stream()>>>(total, target, logits, top, label, first, vocab, stride);
    CUDA_LAUNCHED();
}

void cuda_logits_gradient(acc *loss, real *logits, const acc *top, const acc *total, const acc *target,
                          const int *label, int first, double scale, int n, int vocab, int stride)
{
    split_gradient<<<n, THREADS, 0, cuda_stream()>>>(loss, logits, top, total, target, label, first, (acc)scale, vocab,
                                                     stride);
    CUDA_LAUNCHED();
}
