/* Moving rows to the slots of their experts and back. */
#include <string.h>

#include "cpu.h"

void expert_slots(int *slot, int *first, int64_t *count, const int *choice, int n, int k, int experts, int capacity)
{
    memset(first, 0, ((size_t)experts + 1) * sizeof *first);
    for (int c = 0; c < n * k; c++) {
        int *taken = &first[choice[c] + 1]; /* the expert's choices so far */
        count[choice[c]]++;
        if (capacity && *taken == capacity) {
            count[experts]++;
            slot[c] = -1;
        } else {
            slot[c] = (*taken)++;
        }
    }
    for (int e = 0; e < experts; e++) first[e + 1] += first[e];
    for (int c = 0; c < n * k; c++)
        if (slot[c] >= 0) slot[c] += first[choice[c]];
}

void rows_to_slots(real *out, const real *x, const int *slot, int n, int k, int width)
{
#pragma omp parallel for
    for (int i = 0; i < n; i++)
        for (int j = 0; j < k; j++) {
            int to = slot[(size_t)i * k + j];
            if (to >= 0) memcpy(out + (size_t)to * width, x + (size_t)i * width, (size_t)width * sizeof *x);
        }
}

void rows_from_slots(real *y, const real *base, const real *in, const int *slot, const acc *weight, int n, int k,
                     int width)
{
#pragma omp parallel for
    for (int i = 0; i < n; i++) {
        real *yi = y + (size_t)i * width;
        if (!base)
            memset(yi, 0, (size_t)width * sizeof *yi);
        else if (base != y)
            memcpy(yi, base + (size_t)i * width, (size_t)width * sizeof *yi);
        for (int j = 0; j < k; j++) {
            int from = slot[(size_t)i * k + j];
            if (from < 0) continue;
            const real *x = in + (size_t)from * width;
            acc w = weight ? weight[(size_t)i * k + j] : 1;
            for (int c = 0; c < width; c++) yi[c] += w * x[c];
        }
    }
}

void rows_from_slots_backward(real *din, acc *dweight, const real *dy, const real *in, const int *slot,
                              const acc *weight, int n, int k, int width)
{
#pragma omp parallel for
    for (int i = 0; i < n; i++)
        for (int j = 0; j < k; j++) {
            size_t at = (size_t)i * k + j;
            dweight[at] = 0;
            if (slot[at] < 0) continue;
            const real *d = dy + (size_t)i * width, *x = in + (size_t)slot[at] * width;
            real *dx = din + (size_t)slot[at] * width;
            acc dot = 0;
            for (int c = 0; c < width; c++) {
                dot += d[c] * x[c];
                dx[c] = weight[at] * d[c];
            }
            dweight[at] = dot;
        }
}
