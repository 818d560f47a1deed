/* ranks: 1  builds: fp64 fp32 fp32-noblas fp64-debug fp32-san
 *
 * Each kernel's backward pass against finite differences of its forward pass (fp64), and variants against each other.
 * For attention see test_attention.c, for the loss test_loss.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "gradient.h"
#include "testing.h"

static Kernels kernels;

/* --- linear --- */

typedef struct {
    int n, in, out;
    real *x, *w, *y, *dy;
} LinearProblem;

static double linear_scalar(void *problem)
{
    LinearProblem *p = problem;
    kernels.linear_forward(p->y, p->x, p->w, p->n, p->in, p->out);
    return weighted(p->y, p->dy, (size_t)p->n * p->out);
}

static void linear_gradients(void **state)
{
    (void)state;
    Random r = {.seed = 1};
    for (int round = 0; round < 20; round++) {
        LinearProblem p = {random_int(&r, 1, 33), random_int(&r, 1, 40), random_int(&r, 1, 40), 0, 0, 0, 0};
        size_t nx = (size_t)p.n * p.in, nw = (size_t)p.out * p.in, ny = (size_t)p.n * p.out;
        p.x = random_array(&r, nx), p.w = random_array(&r, nw), p.y = random_array(&r, ny), p.dy = random_array(&r, ny);
        real *dx = random_array(&r, nx);
        acc *dw = zeros(nw);
        kernels.linear_backward_input(dx, p.dy, p.w, p.n, p.in, p.out);
        kernels.linear_backward_weight(dw, p.dy, p.x, p.n, p.in, p.out);
        check_gradient("dx", linear_scalar, &p, p.x, dx, (int)nx);
        check_gradient("dw", linear_scalar, &p, p.w, dw, (int)nw);

        /* the weight's gradient adds: a second call doubles it */
        acc *twice = zeros(nw);
        memcpy(twice, dw, nw * sizeof *dw);
        kernels.linear_backward_weight(twice, p.dy, p.x, p.n, p.in, p.out);
        for (size_t i = 0; i < nw; i++) twice[i] /= 2;
        assert_true(error_of(twice, dw, nw) <= ROUNDING);
        free(p.x), free(p.w), free(p.y), free(p.dy), free(dx), free(dw), free(twice);
    }
}

static void linear_variants(void **state)
{
    (void)state;
    Random r = {.seed = 2};
    for (int threads = 1; threads <= 3; threads++) {
        kernels_set_threads(threads);
        for (int round = 0; round < 20; round++) {
            int n = random_int(&r, 1, 50), in = random_int(&r, 1, 70), out = random_int(&r, 1, 70);
            size_t nx = (size_t)n * in, nw = (size_t)out * in, ny = (size_t)n * out;
            real *x = random_array(&r, nx), *w = random_array(&r, nw), *dy = random_array(&r, ny);
            real *y1 = random_array(&r, ny), *y2 = random_array(&r, ny), *dx1 = random_array(&r, nx);
            real *dx2 = random_array(&r, nx);
            acc *dw1 = zeros(nw), *dw2 = zeros(nw);
            kernels.linear_forward(y1, x, w, n, in, out);
            linear_forward_naive(y2, x, w, n, in, out);
            kernels.linear_backward_input(dx1, dy, w, n, in, out);
            linear_backward_input_naive(dx2, dy, w, n, in, out);
            kernels.linear_backward_weight(dw1, dy, x, n, in, out);
            linear_backward_weight_naive(dw2, dy, x, n, in, out);
            assert_true(error_of(y1, y2, ny) <= ROUNDING);
            assert_true(error_of(dx1, dx2, nx) <= ROUNDING);
            assert_true(error_of(dw1, dw2, nw) <= ROUNDING);
            free(x), free(w), free(dy), free(y1), free(y2), free(dx1), free(dx2), free(dw1), free(dw2);
        }
    }
    kernels_set_threads(1);
}

/* --- norm --- */

typedef struct {
    int n, width;
    real *x, *delta, *w, *sum, *y, *dy, *dsum;
    acc *rstd;
} Norm;

static double norm_scalar(void *problem)
{
    Norm *p = problem;
    kernels.residual_norm_forward(p->sum, p->y, p->rstd, p->x, p->delta, p->w, 1e-5, p->n, p->width);
    size_t n = (size_t)p->n * p->width;
    return weighted(p->y, p->dy, n) + weighted(p->sum, p->dsum, n);
}

static void norm_gradients(void **state)
{
    (void)state;
    Random r = {.seed = 3};
    for (int round = 0; round < 20; round++) {
        Norm p = {.n = random_int(&r, 1, 9), .width = random_int(&r, 1, 150)};
        size_t n = (size_t)p.n * p.width;
        p.x = random_array(&r, n), p.delta = random_array(&r, n), p.w = random_array(&r, p.width);
        p.sum = random_array(&r, n), p.y = random_array(&r, n), p.dy = random_array(&r, n),
        p.dsum = random_array(&r, n);
        p.rstd = zeros(p.n);
        real *dx = malloc(n * sizeof *dx);
        acc *dw = zeros(p.width);
        norm_scalar(&p);
        memcpy(dx, p.dsum, n * sizeof *dx);
        kernels.residual_norm_backward(dx, dw, p.dy, p.sum, p.rstd, p.w, p.n, p.width);
        check_gradient("dx", norm_scalar, &p, p.x, dx, (int)n);
        check_gradient("ddelta", norm_scalar, &p, p.delta, dx, (int)n);
        check_gradient("dw", norm_scalar, &p, p.w, dw, p.width);
        free(p.x), free(p.delta), free(p.w), free(p.sum), free(p.y), free(p.dy), free(p.dsum), free(p.rstd);
        free(dx), free(dw);
    }
}

/* --- QK-norm and RoPE --- */

typedef struct {
    int n, heads, kv_heads, head_dim, *position;
    real *qkv, *work, *raw, *wq, *wk, *dy;
    acc *rstd, *rope;
} Rope;

static size_t rope_size(const Rope *p)
{
    return (size_t)p->n * (p->heads + 2 * p->kv_heads) * p->head_dim;
}

static double rope_scalar(void *problem)
{
    Rope *p = problem;
    memcpy(p->work, p->qkv, rope_size(p) * sizeof *p->work);
    kernels.qk_rope_forward(p->work, p->raw, p->rstd, p->wq, p->wk, p->rope, p->position, 1e-6, p->n, p->heads,
                            p->kv_heads, p->head_dim);
    return weighted(p->work, p->dy, rope_size(p));
}

static void rope_gradients(void **state)
{
    (void)state;
    Random r = {.seed = 4};
    for (int round = 0; round < 20; round++) {
        Rope p = {.n = random_int(&r, 1, 20), .kv_heads = random_int(&r, 1, 3), .head_dim = 2 * random_int(&r, 1, 8)};
        p.heads = p.kv_heads * random_int(&r, 1, 3);
        bool qk_norm = round % 2;
        size_t n = rope_size(&p), turned = (size_t)p.n * (p.heads + p.kv_heads);
        p.qkv = random_array(&r, n), p.work = random_array(&r, n), p.dy = random_array(&r, n);
        p.raw = random_array(&r, turned * p.head_dim), p.rstd = zeros(turned);
        p.wq = qk_norm ? random_array(&r, p.head_dim) : NULL, p.wk = qk_norm ? random_array(&r, p.head_dim) : NULL;
        p.rope = random_array(&r, (size_t)p.n * p.head_dim);
        p.position = malloc(p.n * sizeof *p.position);
        for (int i = 0; i < p.n; i++) p.position[i] = random_int(&r, 0, p.n - 1);

        for (int i = 0; i < p.n; i++) /* a rotation: the cosine and sine of a random angle */
            for (int d = 0; d < p.head_dim / 2; d++) {
                double angle = random_real(&r);
                p.rope[i * p.head_dim + d] = (acc)cos(angle);
                p.rope[i * p.head_dim + p.head_dim / 2 + d] = (acc)sin(angle);
            }
        real *dqkv = malloc(n * sizeof *dqkv);
        acc *dwq = zeros(p.head_dim), *dwk = zeros(p.head_dim);
        rope_scalar(&p);
        memcpy(dqkv, p.dy, n * sizeof *dqkv);
        kernels.qk_rope_backward(dqkv, dwq, dwk, p.raw, p.rstd, p.wq, p.wk, p.rope, p.position, p.n, p.heads,
                                 p.kv_heads, p.head_dim);
        check_gradient("dqkv", rope_scalar, &p, p.qkv, dqkv, (int)n);
        if (qk_norm) {
            check_gradient("dwq", rope_scalar, &p, p.wq, dwq, p.head_dim);
            check_gradient("dwk", rope_scalar, &p, p.wk, dwk, p.head_dim);
        }
        free(p.qkv), free(p.work), free(p.dy), free(p.raw), free(p.rstd), free(p.wq), free(p.wk), free(p.rope);
        free(p.position), free(dqkv), free(dwq), free(dwk);
    }
}

/* --- SwiGLU --- */

typedef struct {
    int n, ff;
    real *gate_up, *y, *dy;
} Swiglu;

static double swiglu_scalar(void *problem)
{
    Swiglu *p = problem;
    kernels.swiglu_forward(p->y, p->gate_up, p->n, p->ff);
    return weighted(p->y, p->dy, (size_t)p->n * p->ff);
}

static void swiglu_gradients(void **state)
{
    (void)state;
    Random r = {.seed = 9};
    for (int round = 0; round < 10; round++) {
        Swiglu p = {random_int(&r, 1, 5), random_int(&r, 1, 600), 0, 0, 0};
        size_t n = (size_t)p.n * p.ff;
        p.gate_up = random_array(&r, 2 * n), p.y = random_array(&r, n), p.dy = random_array(&r, n);
        real *d = random_array(&r, 2 * n);
        kernels.swiglu_backward(d, p.dy, p.gate_up, p.n, p.ff);
        check_gradient("dgate_up", swiglu_scalar, &p, p.gate_up, d, (int)(2 * n));
        for (size_t i = 0; i < n; i++) p.gate_up[i % p.ff] = i % 2 ? -1000 : 1000; /* saturated, but not NaN */
        swiglu_scalar(&p);
        kernels.swiglu_backward(d, p.dy, p.gate_up, p.n, p.ff);
        for (size_t i = 0; i < 2 * n; i++) assert_true(isfinite(d[i]));
        free(p.gate_up), free(p.y), free(p.dy), free(d);
    }
}

/* --- embedding and flat buffers --- */

static void embedding_sums(void **state)
{
    (void)state;
    Random r = {.seed = 12};
    int n = 50, V = 7, C = 130, token[50];
    real *w = random_array(&r, (size_t)V * C), *y = random_array(&r, (size_t)n * C),
         *dy = random_array(&r, (size_t)n * C);
    acc *dw = zeros((size_t)V * C), *want = zeros((size_t)V * C);
    for (int i = 0; i < n; i++) token[i] = random_int(&r, 0, V - 2); /* no token uses the last row */
    kernels.embedding_forward(y, w, token, 0, V, n, C);
    kernels.embedding_backward(dw, dy, token, 0, V, n, C);
    for (int i = 0; i < n; i++)
        for (int c = 0; c < C; c++) {
            assert_true(y[i * C + c] == w[token[i] * C + c]);
            want[token[i] * C + c] += dy[i * C + c];
        }
    assert_true(error_of(dw, want, (size_t)V * C) <= ROUNDING);
    for (int c = 0; c < C; c++) assert_true(dw[(V - 1) * C + c] == 0);

    /* a part of the table: the rows of tokens 2 and 3 */
    acc *part = zeros(2 * (size_t)C);
    kernels.embedding_forward(y, w + 2 * C, token, 2, 2, n, C);
    kernels.embedding_backward(part, dy, token, 2, 2, n, C);
    for (int i = 0; i < n; i++)
        for (int c = 0; c < C; c++)
            assert_true(y[i * C + c] == (token[i] == 2 || token[i] == 3 ? w[token[i] * C + c] : 0));
    assert_true(error_of(part, want + 2 * C, 2 * (size_t)C) <= ROUNDING);
    free(part);
    free(w), free(y), free(dy), free(dw), free(want);
}

static void flat_operations(void **state)
{
    (void)state;
    Random r = {.seed = 13};
    for (size_t n = 0; n < 300; n += 37) {
        real *x = random_array(&r, n);
        double want = 0;
        for (size_t i = 0; i < n; i++) want += (double)x[i] * (double)x[i];
        double squares = 1, sum = 1, plain = 0; /* not 0, because the kernels add to total */
        for (size_t i = 0; i < n; i++) plain += (double)x[i];
        kernels.sum_squares(&squares, x, n);
        kernels.sum(&sum, x, n);
        assert_true(fabs(squares - 1 - want) <= 1e-12 * (1 + want));
        assert_true(fabs(sum - 1 - plain) <= 1e-12 * (1 + want));
        kernels.fill(x, 0, n * sizeof *x);
        for (size_t i = 0; i < n; i++) assert_true(x[i] == 0);
        free(x);
    }
    /* any number of threads gives the same bits */
    real *x = random_array(&r, 10000);
    double one = 0, three = 0;
    kernels.sum_squares(&one, x, 10000);
    kernels_set_threads(3);
    kernels.sum_squares(&three, x, 10000);
    assert_true(three == one);
    kernels_set_threads(1);
    free(x);
}

static void variants_are_chosen_by_name(void **state)
{
    (void)state;
    Kernels k = kernels_cpu();
    assert_null(kernels_choose(&k, "linear=naive"));
    assert_ptr_equal(k.linear_forward, linear_forward_naive);
    assert_null(kernels_choose(&k, "attention=naive"));
    assert_ptr_equal(k.attention_backward, attention_backward_naive);
    assert_non_null(kernels_choose(&k, "linear=magic"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(linear_gradients), cmocka_unit_test(linear_variants),
    cmocka_unit_test(norm_gradients),   cmocka_unit_test(rope_gradients),
    cmocka_unit_test(swiglu_gradients), cmocka_unit_test(embedding_sums),
    cmocka_unit_test(flat_operations),  cmocka_unit_test(variants_are_chosen_by_name),
};

int main(int argc, char **argv)
{
    kernels = kernels_cpu();
    return testing_run("test_kernels", tests, sizeof tests / sizeof tests[0], argc, argv);
}
