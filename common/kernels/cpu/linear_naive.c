/* Matrix products written as their formulas. Each output element is one sum, added in order. */
#include "cpu.h"

void linear_forward_naive(real *y, const real *x, const real *w, int n, int in, int out)
{
#pragma omp parallel for
    for (int i = 0; i < n; i++)
        for (int o = 0; o < out; o++) {
            acc sum = 0;
            for (int c = 0; c < in; c++) sum += x[(size_t)i * in + c] * w[(size_t)o * in + c];
            y[(size_t)i * out + o] = sum;
        }
}

void linear_backward_input_naive(real *dx, const real *dy, const real *w, int n, int in, int out)
{
#pragma omp parallel for
    for (int i = 0; i < n; i++)
        for (int c = 0; c < in; c++) {
            acc sum = 0;
            for (int o = 0; o < out; o++) sum += dy[(size_t)i * out + o] * w[(size_t)o * in + c];
            dx[(size_t)i * in + c] = sum;
        }
}

void linear_backward_weight_naive(acc *dw, const real *dy, const real *x, int n, int in, int out)
{
#pragma omp parallel for
    for (int o = 0; o < out; o++)
        for (int c = 0; c < in; c++) {
            acc sum = 0;
            for (int i = 0; i < n; i++) sum += dy[(size_t)i * out + o] * x[(size_t)i * in + c];
            dw[(size_t)o * in + c] += sum;
        }
}
