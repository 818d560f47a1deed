/* Operations over flat buffers: first weights, copies, sums and optimizers. */
#include <math.h>
#include <string.h>

#include "cpu.h"
#include "base/rng.h"

#if defined(PRECISION_FP64)
#define SQRT sqrt
#else
#define SQRT sqrtf
#endif

void flat_draw(acc *w, size_t first, size_t n, uint64_t seed, uint64_t stream, double std)
{
#pragma omp parallel for
    for (size_t i = 0; i < n; i++) w[i] = std == 0 ? 1 : (acc)rng_normal(seed, stream, first + i, std);
}

/* On the CPU `real` and `acc` are the same type, so a cast is a copy. If w is the master copy itself, nothing is
 * copied. */
void flat_cast(real *w, const acc *master, size_t n)
{
    if (w != master) memcpy(w, master, n * sizeof *w);
}

/* Serves the entries add and add_real: on the CPU `real` and `acc` are the same type. */
void flat_add(acc *sum, const acc *x, size_t n)
{
#pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) sum[i] += x[i];
}

enum { PARTS = 64 }; /* a sum has PARTS fixed parts, added in order: any number of threads gives the same bits */

static double add_up(const double part[PARTS])
{
    double total = 0;
    for (int p = 0; p < PARTS; p++) total += part[p];
    return total;
}

void flat_sum(double *total, const acc *x, size_t n)
{
    double part[PARTS];
#pragma omp parallel for
    for (int p = 0; p < PARTS; p++) {
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t i = n * (size_t)p / PARTS; i < n * (size_t)(p + 1) / PARTS; i++) sum += (double)x[i];
        part[p] = sum;
    }
    *total += add_up(part);
}

void flat_sum_squares(double *total, const acc *x, size_t n)
{
    double part[PARTS];
#pragma omp parallel for
    for (int p = 0; p < PARTS; p++) {
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t i = n * (size_t)p / PARTS; i < n * (size_t)(p + 1) / PARTS; i++) sum += (double)x[i] * (double)x[i];
        part[p] = sum;
    }
    *total += add_up(part);
}

/* The factor of torch.nn.utils.clip_grad_norm_. */
static double clip_factor(const StepScalars *s)
{
    return s->clip > 0 ? fmin(1, s->clip / (sqrt(s->squares) + 1e-6)) : 1;
}

void flat_adamw(real *w, acc *master, acc *m, acc *v, const acc *g, size_t n, double weight_decay, const StepScalars *s)
{
    acc beta1 = (acc)s->beta1, beta2 = (acc)s->beta2, eps = (acc)s->eps, scale = (acc)clip_factor(s);
    acc keep = (acc)(1 - s->lr * weight_decay), rate = (acc)(s->lr / s->correction1);
    acc root2 = (acc)(1 / sqrt(s->correction2)), left1 = (acc)(1 - s->beta1), left2 = (acc)(1 - s->beta2);
    if (!isfinite(s->squares)) return;
#pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) {
        acc gi = scale * g[i];
        m[i] = beta1 * m[i] + left1 * gi;
        v[i] = beta2 * v[i] + left2 * gi * gi;
        master[i] = keep * master[i] - rate * m[i] / (SQRT(v[i]) * root2 + eps);
    }
    flat_cast(w, master, n);
}

void flat_sgd(real *w, acc *master, const acc *g, size_t n, double weight_decay, const StepScalars *s)
{
    acc keep = (acc)(1 - s->lr * weight_decay), rate = (acc)(s->lr * clip_factor(s));
    if (!isfinite(s->squares)) return;
#pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) master[i] = keep * master[i] - rate * g[i];
    flat_cast(w, master, n);
}
