#include <math.h>
#include <string.h>

#include "cpu.h"

/* With p = softmax(logits):  loss = -scale log p_label,  dlogits = scale (p - onehot(label)). */
void cross_entropy(acc *loss, real *logits, const int *label, double scale, int n, int vocab)
{
#pragma omp parallel for
    for (int i = 0; i < n; i++) {
        real *x = logits + (size_t)i * vocab; /* [V] */
        loss[i] = 0;
        if (label[i] < 0) { /* not counted */
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
