#include "gradient.h"

#include <math.h>
#include <stdlib.h>

#include "testing.h"

void check_gradient(const char *name, Scalar f, void *problem, real *x, const acc *gradient, int n)
{
    if (sizeof(real) != sizeof(double)) return; /* fp32 is too coarse for differences */
    double largest = 0;
    for (int i = 0; i < n; i++) largest = fmax(largest, fabs((double)gradient[i]));
    for (int i = 0; i < n; i += 1 + n / 61) {
        const double h = 1e-3;
        real keep = x[i];
        double value[4];
        const double place[4] = {-2, -1, 1, 2};
        for (int p = 0; p < 4; p++) {
            x[i] = (real)((double)keep + place[p] * h);
            value[p] = f(problem);
        }
        x[i] = keep;
        double numeric = (value[0] - 8 * value[1] + 8 * value[2] - value[3]) / (12 * h);
        double error = fabs(numeric - (double)gradient[i]);
        if (error > 1e-8 * fmax(1, largest))
            fail_msg("%s[%d]: backward gives %.12g, differences give %.12g", name, i, (double)gradient[i], numeric);
    }
}

double weighted(const real *y, const real *weight, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)y[i] * (double)weight[i];
    return sum;
}

acc *zeros(size_t n)
{
    acc *x = calloc(n ? n : 1, sizeof *x);
    assert_non_null(x);
    return x;
}
