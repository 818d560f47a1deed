/* The grouped products: one product of a linear layer for each group that has rows. The products themselves are those
 * of linear_naive.c or linear_blas.c. */
#include "cpu.h"

typedef void Forward(real *y, const real *x, const real *w, int n, int in, int out);
typedef void BackwardWeight(acc *dw, const real *dy, const real *x, int n, int in, int out);

/* from[rows, of_from] times w[g][out, in], to to[rows, of_to]: a forward product, or one for the input's gradient. */
static void multiply(Forward *product, real *to, int of_to, const real *from, int of_from, const real *w,
                     const int *first, int groups, int in, int out)
{
    for (int g = 0; g < groups; g++) {
        size_t at = (size_t)first[g];
        int n = first[g + 1] - first[g];
        if (n > 0) product(to + at * of_to, from + at * of_from, w + (size_t)g * out * in, n, in, out);
    }
}

static void add_gradients(BackwardWeight *product, acc *dw, const real *dy, const real *x, const int *first, int groups,
                          int in, int out)
{
    for (int g = 0; g < groups; g++) {
        size_t at = (size_t)first[g];
        int n = first[g + 1] - first[g];
        if (n > 0) product(dw + (size_t)g * out * in, dy + at * out, x + at * in, n, in, out);
    }
}

void grouped_forward_naive(real *y, const real *x, const real *w, const int *first, int groups, int rows, int in,
                           int out)
{
    (void)rows;
    multiply(linear_forward_naive, y, out, x, in, w, first, groups, in, out);
}

void grouped_backward_input_naive(real *dx, const real *dy, const real *w, const int *first, int groups, int rows,
                                  int in, int out)
{
    (void)rows;
    multiply(linear_backward_input_naive, dx, in, dy, out, w, first, groups, in, out);
}

void grouped_backward_weight_naive(acc *dw, const real *dy, const real *x, const int *first, int groups, int rows,
                                   int in, int out)
{
    (void)rows;
    add_gradients(linear_backward_weight_naive, dw, dy, x, first, groups, in, out);
}

#ifdef HAVE_BLAS
void grouped_forward_blas(real *y, const real *x, const real *w, const int *first, int groups, int rows, int in,
                          int out)
{
    (void)rows;
    multiply(linear_forward_blas, y, out, x, in, w, first, groups, in, out);
}

void grouped_backward_input_blas(real *dx, const real *dy, const real *w, const int *first, int groups, int rows,
                                 int in, int out)
{
    (void)rows;
    multiply(linear_backward_input_blas, dx, in, dy, out, w, first, groups, in, out);
}

void grouped_backward_weight_blas(acc *dw, const real *dy, const real *x, const int *first, int groups, int rows,
                                  int in, int out)
{
    (void)rows;
    add_gradients(linear_backward_weight_blas, dw, dy, x, first, groups, in, out);
}
#endif
