/* SwiGLU. */
#include "math.cuh"

/* y[N, F] = silu(gate) up, with gate_up[N, 2F] = gate | up. A thread computes V neighbouring columns at a time. */
template <int V> static __global__ void forward(real *y, const real *gate_up, size_t packs, int ff)
{
    for (size_t p = blockIdx.x * (size_t)blockDim.x + threadIdx.x; p < packs; p += (size_t)gridDim.x * blockDim.x) {
        size_t row = p * V / ff, column = p * V % ff;
        const real *gate = gate_up + row * 2 * ff + column;
        Pack<V> g = *(const Pack<V> *)gate, u = *(const Pack<V> *)(gate + ff), out;
        for (int i = 0; i < V; i++) {
            acc x = to_acc(g.value[i]);
            out.value[i] = to_real(x / (1 + exp_of(-x)) * to_acc(u.value[i]));
        }
        *(Pack<V> *)(y + row * ff + column) = out;
    }
}

/* silu(g) = g s(g) with the sigmoid s, so its derivative is s (1 + g (1 - s)). */
template <int V>
static __global__ void backward(real *dgate_up, const real *dy, const real *gate_up, size_t packs, int ff)
{
    for (size_t p = blockIdx.x * (size_t)blockDim.x + threadIdx.x; p < packs; p += (size_t)gridDim.x * blockDim.x) {
        size_t row = p * V / ff, column = p * V % ff, at = row * 2 * ff + column;
        Pack<V> g = *(const Pack<V> *)(gate_up + at), u = *(const Pack<V> *)(gate_up + at + ff);
        Pack<V> d = *(const Pack<V> *)(dy + row * ff + column), dg, du;
        for (int i = 0; i < V; i++) {
            acc x = to_acc(g.value[i]), s = 1 / (1 + exp_of(-x)), grad = to_acc(d.value[i]);
            du.value[i] = to_real(grad * x * s);
            dg.value[i] = to_real(grad * to_acc(u.value[i]) * s * (1 + x * (1 - s)));
        }
        *(Pack<V> *)(dgate_up + at) = dg;
        *(Pack<V> *)(dgate_up + at + ff) = du;
    }
}

enum { THREADS = 256 };

void cuda_swiglu_forward(real *y, const real *gate_up, int n, int ff)
{
    size_t count = (size_t)n * ff;
    if (packs_fit(ff, y, gate_up, y, y))
        forward<PACK><<<blocks_for(count / PACK, THREADS), THREADS, 0, cuda_stream()>>>(y, gate_up, count / PACK, ff);
    else
        forward<1><<<blocks_for(count, THREADS), THREADS, 0, cuda_stream()>>>(y, gate_up, count, ff);
    CUDA_LAUNCHED();
}

void cuda_swiglu_backward(real *dgate_up, const real *dy, const real *gate_up, int n, int ff)
{
    size_t count = (size_t)n * ff, packs = count / PACK;
    if (packs_fit(ff, dgate_up, dy, gate_up, gate_up))
        backward<PACK><<<blocks_for(packs, THREADS), THREADS, 0, cuda_stream()>>>(dgate_up, dy, gate_up, packs, ff);
    else
        backward<1><<<blocks_for(count, THREADS), THREADS, 0, cuda_stream()>>>(dgate_up, dy, gate_up, count, ff);
    CUDA_LAUNCHED();
}
