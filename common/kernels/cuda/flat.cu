/* Operations over flat buffers: first weights, casts, sums and optimizers. A thread handles every (blocks x threads)-th
 * element. */
#include "math.cuh"

#include "base/rng_inline.h"

enum { THREADS = 256, PARTS = 1024 }; /* PARTS: blocks of a sum */

static __global__ void draw(acc *w, size_t first, size_t n, uint64_t seed, uint64_t stream, bool ones, double scale)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        size_t index = first + i;
        uint32_t word[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
        philox_rounds(word, (uint32_t)seed, (uint32_t)(seed >> 32));
        w[i] = ones ? acc(1) : (acc)(float)((double)philox_centred(word) * scale);
    }
}

static __global__ void cast(real *w, const acc *master, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        w[i] = to_real(master[i]);
}

template <typename T> static __global__ void add(acc *sum, const T *x, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        sum[i] += acc(x[i]);
}

/* part[p] = the sum of x, or of x^2, over the elements of block p. */
template <bool SQUARES> static __global__ void sum_parts(double *part, const acc *x, size_t n)
{
    __shared__ double shared[32];
    double sum = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        sum += SQUARES ? (double)x[i] * (double)x[i] : (double)x[i];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

/* total += the sum of part[PARTS]; one block of PARTS threads. The order of the additions is fixed. */
static __global__ void add_parts(double *total, const double *part)
{
    __shared__ double shared[32];
    double sum = block_sum(part[threadIdx.x], shared);
    if (threadIdx.x == 0) *total += sum;
}

/* The factor of torch.nn.utils.clip_grad_norm_. */
static __device__ acc clip_factor(const StepScalars *s)
{
    double factor = s->clip / (sqrt(s->squares) + 1e-6);
    return (acc)(s->clip > 0 && factor < 1 ? factor : 1.0);
}

static __global__ void adamw(real *w, acc *master, acc *m, acc *v, const acc *g, size_t n, double weight_decay,
                             const StepScalars *s)
{
    acc beta1 = (acc)s->beta1, beta2 = (acc)s->beta2, eps = (acc)s->eps, scale = clip_factor(s);
    acc keep = (acc)(1 - s->lr * weight_decay), rate = (acc)(s->lr / s->correction1);
    acc root2 = (acc)(1 / sqrt(s->correction2)), left1 = (acc)(1 - s->beta1), left2 = (acc)(1 - s->beta2);
    bool finite = isfinite(s->squares);
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        acc gi = scale * g[i], old_weight = master[i];
        acc new_m = beta1 * m[i] + left1 * gi;
        acc new_v = beta2 * v[i] + left2 * gi * gi;
        acc new_weight = keep * old_weight - rate * new_m / (sqrt(new_v) * root2 + eps);
        if (!finite) continue; /* after the loads, so that they do not wait for `squares` */
        m[i] = new_m;
        v[i] = new_v;
        master[i] = new_weight;
        if ((void *)w != (void *)master) w[i] = to_real(new_weight);
    }
}

static __global__ void sgd(real *w, acc *master, const acc *g, size_t n, double weight_decay, const StepScalars *s)
{
    acc keep = (acc)(1 - s->lr * weight_decay), rate = (acc)s->lr * clip_factor(s);
    bool finite = isfinite(s->squares);
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        acc new_weight = keep * master[i] - rate * g[i];
        if (!finite) continue;
        master[i] = new_weight;
        if ((void *)w != (void *)master) w[i] = to_real(new_weight);
    }
}

void cuda_draw(acc *w, size_t first, size_t n, uint64_t seed, uint64_t stream, double std)
{
    draw<<<blocks_for(n, THREADS), THREADS, 0, cuda_stream()>>>(w, first, n, seed, stream, std == 0, std / PHILOX_CENTRED_STD);
    CUDA_LAUNCHED();
}

void cuda_cast(real *w, const acc *master, size_t n)
{
    if ((const void *)w == (const void *)master) return;
    cast<<<blocks_for(n, THREADS), THREADS, 0, cuda_stream()>>>(w, master, n);
    CUDA_LAUNCHED();
}

void cuda_add(acc *sum, const acc *x, size_t n)
{
    add<<<blocks_for(n, THREADS), THREADS, 0, cuda_stream()>>>(sum, x, n);
    CUDA_LAUNCHED();
}

void cuda_add_real(acc *sum, const real *x, size_t n)
{
    add<<<blocks_for(n, THREADS), THREADS, 0, cuda_stream()>>>(sum, x, n);
    CUDA_LAUNCHED();
}

size_t cuda_sum_workspace(void)
{
    return PARTS * sizeof(double);
}

void cuda_sum(double *total, const acc *x, size_t n)
{
    double *part = (double *)cuda_workspace(cuda_sum_workspace());
    sum_parts<false><<<PARTS, THREADS, 0, cuda_stream()>>>(part, x, n);
    add_parts<<<1, PARTS, 0, cuda_stream()>>>(total, part);
    CUDA_LAUNCHED();
}

void cuda_sum_squares(double *total, const acc *x, size_t n)
{
    double *part = (double *)cuda_workspace(cuda_sum_workspace());
    sum_parts<true><<<PARTS, THREADS, 0, cuda_stream()>>>(part, x, n);
    add_parts<<<1, PARTS, 0, cuda_stream()>>>(total, part);
    CUDA_LAUNCHED();
}

void cuda_adamw(real *w, acc *master, acc *m, acc *v, const acc *g, size_t n, double weight_decay,
                const StepScalars *step)
{
    adamw<<<blocks_for(n, THREADS), THREADS, 0, cuda_stream()>>>(w, master, m, v, g, n, weight_decay, step);
    CUDA_LAUNCHED();
}

void cuda_sgd(real *w, acc *master, const acc *g, size_t n, double weight_decay, const StepScalars *step)
{
    sgd<<<blocks_for(n, THREADS), THREADS, 0, cuda_stream()>>>(w, master, g, n, weight_decay, step);
    CUDA_LAUNCHED();
}
