/* Products with weight matrices. A scheme that splits the matrices computes them through the feature seam. Without
 * one, the kernels are called directly. */
#include "comm/comm.h"
#include "model/model.h"

static void plain_backward(Model *m, real *dx, const real *dy, const real *x, Linear l, int rows, unsigned gradients)
{
    if (gradients & GRADIENT_OF_WEIGHT) m->kernels.linear_backward_weight(l.dw, dy, x, rows, l.in, l.out);
    comm_progress();
    if (gradients & GRADIENT_OF_INPUT) m->kernels.linear_backward_input(dx, dy, l.w, rows, l.in, l.out);
    comm_progress();
}

void model_column_forward(Model *m, real *y, const real *x, Linear l, int rows)
{
    FeatureSeam *s = &m->seams.features;
    if (s->column_forward)
        s->column_forward(s->self, y, x, l, rows);
    else
        m->kernels.linear_forward(y, x, l.w, rows, l.in, l.out);
}

const real *model_column_backward(Model *m, real *dx, const real *dy, const real *x, Linear l, int rows,
                                  unsigned gradients)
{
    FeatureSeam *s = &m->seams.features;
    if (s->column_backward) return s->column_backward(s->self, dx, dy, x, l, rows, gradients);
    plain_backward(m, dx, dy, x, l, rows, gradients);
    return dx;
}

const real *model_row_forward(Model *m, real *y, const real *x, Linear l, int rows)
{
    FeatureSeam *s = &m->seams.features;
    if (s->row_forward) return s->row_forward(s->self, y, x, l, rows);
    m->kernels.linear_forward(y, x, l.w, rows, l.in, l.out);
    return y;
}

void model_row_backward(Model *m, real *dx, const real *dy, const real *x, Linear l, int rows, unsigned gradients)
{
    FeatureSeam *s = &m->seams.features;
    if (s->row_backward)
        s->row_backward(s->self, dx, dy, x, l, rows, gradients);
    else
        plain_backward(m, dx, dy, x, l, rows, gradients);
    comm_progress();
}
