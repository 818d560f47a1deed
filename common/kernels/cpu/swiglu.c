/* SwiGLU. */
#include "cpu.h"

enum { CHUNK = 256 }; /* columns at a time, so that their sigmoids stay in the cache */

/* s[c] = 1 / (1 + exp(-gate[c])) */
static void sigmoid(real *s, const real *gate, int n)
{
    for (int c = 0; c < n; c++) s[c] = -gate[c];
    cpu_exp(s, s, n);
    for (int c = 0; c < n; c++) s[c] = 1 / (1 + s[c]);
}

void swiglu_forward(real *y, const real *gate_up, int n, int ff)
{
#pragma omp parallel for
    for (int i = 0; i < n; i++)
        for (int c0 = 0; c0 < ff; c0 += CHUNK) {
            int count = ff - c0 < CHUNK ? ff - c0 : CHUNK;
            const real *gate = gate_up + (size_t)i * 2 * ff + c0, *up = gate + ff;
            real *yi = y + (size_t)i * ff + c0, s[CHUNK];
            sigmoid(s, gate, count);
            for (int c = 0; c < count; c++) yi[c] = gate[c] * s[c] * up[c];
        }
}

/* silu(g) = g s(g), so its derivative is s (1 + g (1 - s)). */
void swiglu_backward(real *dgate_up, const real *dy, const real *gate_up, int n, int ff)
{
#pragma omp parallel for
    for (int i = 0; i < n; i++)
        for (int c0 = 0; c0 < ff; c0 += CHUNK) {
            int count = ff - c0 < CHUNK ? ff - c0 : CHUNK;
            const real *gate = gate_up + (size_t)i * 2 * ff + c0, *up = gate + ff, *d = dy + (size_t)i * ff + c0;
            real *dgate = dgate_up + (size_t)i * 2 * ff + c0, *dup = dgate + ff, s[CHUNK];
            sigmoid(s, gate, count);
            for (int c = 0; c < count; c++) {
                dup[c] = d[c] * gate[c] * s[c];
                dgate[c] = d[c] * up[c] * s[c] * (1 + gate[c] * (1 - s[c]));
            }
        }
}
