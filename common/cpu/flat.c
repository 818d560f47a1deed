/* Operations over flat buffers: sums and optimizers. */
#include <math.h>

#include "cpu.h"

#if defined(PRECISION_FP64)
#define SQRT sqrt
#else
#define SQRT sqrtf
#endif

void flat_zero(acc *x, size_t n)
{
#pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) x[i] = 0;
}

double flat_sum_squares(const acc *x, size_t n)
{
    enum { PARTS = 64 }; /* fixed parts, added in order: the same bits with any number of threads */
    double part[PARTS];
#pragma omp parallel for
    for (int p = 0; p < PARTS; p++) {
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t i = n * (size_t)p / PARTS; i < n * (size_t)(p + 1) / PARTS; i++) sum += (double)x[i] * (double)x[i];
        part[p] = sum;
    }
    double total = 0;
    for (int p = 0; p < PARTS; p++) total += part[p];
    return total;
}

void flat_adamw(acc *w, acc *m, acc *v, const acc *g, size_t n, AdamWStep s)
{
    acc beta1 = (acc)s.beta1, beta2 = (acc)s.beta2, eps = (acc)s.eps, scale = (acc)s.scale;
    acc keep = (acc)(1 - s.lr * s.weight_decay), rate = (acc)(s.lr / s.correction1);
    acc root2 = (acc)(1 / sqrt(s.correction2)), left1 = (acc)(1 - s.beta1), left2 = (acc)(1 - s.beta2);
#pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) {
        acc gi = scale * g[i];
        m[i] = beta1 * m[i] + left1 * gi;
        v[i] = beta2 * v[i] + left2 * gi * gi;
        w[i] = keep * w[i] - rate * m[i] / (SQRT(v[i]) * root2 + eps);
    }
}

void flat_sgd(acc *w, const acc *g, size_t n, double lr, double weight_decay, double scale)
{
    acc keep = (acc)(1 - lr * weight_decay), rate = (acc)(lr * scale);
#pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) w[i] = keep * w[i] - rate * g[i];
}
