#include "math.cuh"

enum { THREADS = 512 };

/* One block per row. The first pass over the row finds its maximum and, online, the sum of exponentials; the second
 * writes the gradient over the logits. */
template <int V> static __global__ void cross_entropy(acc *loss, real *logits, const int *label, acc scale, int vocab)
{
    __shared__ acc shared_top[32], shared_sum[32];
    real *x = logits + (size_t)blockIdx.x * vocab;
    int target = label[blockIdx.x];
    if (target < 0) { /* not counted */
        for (int v = threadIdx.x; v < vocab; v += blockDim.x) x[v] = to_real(0);
        if (threadIdx.x == 0) loss[blockIdx.x] = 0;
        return;
    }
    acc top = -INFINITY, total = 0; /* of this thread's columns */
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

    /* over the warp, then over the block */
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
