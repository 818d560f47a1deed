#include <math.h>
#include <string.h>

#include "cpu.h"

#if defined(PRECISION_FP64)
#define EXP exp
#else
#define EXP expf
#endif

/* With p = softmax(logits):  loss = -scale log p_label,  dlogits = scale (p - onehot(label)). */
void cross_entropy(acc *loss, real *logits, const int *label, double scale, int n, int vocab)
{
#pragma omp parallel for
    for (int i = 0; i < n; i++) {
        real *x = logits + (size_t)i * vocab; /* [V] */
        loss[i] = 0;
        if (label[i] < 0) { /* this row is not counted in the loss */
            memset(x, 0, (size_t)vocab * sizeof *x);
            continue;
        }
        real top = x[0], target = x[label[i]];
#pragma omp simd reduction(max : top)
        for (int v = 1; v < vocab; v++) top = x[v] > top ? x[v] : top;
        for (int v = 0; v < vocab; v++) x[v] -= top;
        cpu_exp(x, x, vocab);
        acc total = 0;
#pragma omp simd reduction(+ : total)
        for (int v = 0; v < vocab; v++) total += x[v];
        loss[i] = (acc)(scale * (log(total) + top - target));
        real factor = (real)(scale / total);
        for (int v = 0; v < vocab; v++) x[v] *= factor;
        x[label[i]] -= (real)scale;
    }
}

/* --- logits that are split over ranks by column --- */

void logits_top(acc *top, const real *logits, int n, int vocab, int stride)
{
#pragma omp parallel for
    for (int i = 0; i < n; i++) {
        const real *x = logits + (size_t)i * stride;
        real largest = -INFINITY;
        for (int v = 0; v < vocab; v++) largest = x[v] > largest ? x[v] : largest;
        top[i] = largest;
    }
}

void logits_sum(acc *total, acc *target, const real *logits, const acc *top, const int *label, int first, int n,
                int vocab, int stride)
{
#pragma omp parallel for
    for (int i = 0; i < n; i++) {
        const real *x = logits + (size_t)i * stride;
        int mine = label[i] - first;
        acc sum = 0;
        for (int v = 0; v < vocab; v++) sum += EXP(x[v] - top[i]);
        total[i] = sum;
        target[i] = label[i] >= 0 && mine >= 0 && mine < vocab ? x[mine] - top[i] : 0;
    }
}

void logits_gradient(acc *loss, real *logits, const acc *top, const acc *total, const acc *target, const int *label,
                     int first, double scale, int n, int vocab, int stride)
{
#pragma omp parallel for
    for (int i = 0; i < n; i++) {
        real *x = logits + (size_t)i * stride;
        int mine = label[i] - first, valid = label[i] < 0 ? 0 : vocab; /* a row that is not counted has no gradient */
        loss[i] = label[i] < 0 ? 0 : (acc)(scale * (log(total[i]) - target[i]));
        real factor = (real)(scale / total[i]);
        for (int v = 0; v < valid; v++) x[v] = EXP(x[v] - top[i]) * factor;
        for (int v = valid; v < stride; v++) x[v] = 0;
        if (valid && mine >= 0 && mine < vocab) x[mine] -= (real)scale;
    }
}
