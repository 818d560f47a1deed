/* ranks: 1  builds: fp64 fp32 fp32-noblas fp64-debug fp32-san
 *
 * Cross-entropy, of whole logits and of logits that are split over ranks by column: against finite differences (fp64),
 * with labels that do not count, with saturation and with padding. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradient.h"
#include "kernels/kernels.h"
#include "testing.h"

static Kernels kernels;

typedef struct {
    int n, vocab, *label;
    real *logits, *work;
    acc *loss;
} Entropy;

static double entropy_scalar(void *problem)
{
    Entropy *p = problem;
    memcpy(p->work, p->logits, (size_t)p->n * p->vocab * sizeof *p->work);
    kernels.cross_entropy(p->loss, p->work, p->label, 0.25, p->n, p->vocab);
    double sum = 0;
    for (int i = 0; i < p->n; i++) sum += (double)p->loss[i];
    return sum;
}

static void cross_entropy_gradients(void **state)
{
    (void)state;
    Random r = {.seed = 10};
    for (int round = 0; round < 10; round++) {
        Entropy p = {.n = random_int(&r, 1, 9), .vocab = random_int(&r, 1, 137)};
        size_t n = (size_t)p.n * p.vocab;
        p.logits = random_array(&r, n), p.work = random_array(&r, n), p.loss = zeros(p.n);
        p.label = malloc(p.n * sizeof *p.label);
        for (int i = 0; i < p.n; i++) p.label[i] = i % 3 == 2 ? -1 : random_int(&r, 0, p.vocab - 1);
        entropy_scalar(&p);
        acc *gradient = zeros(n);
        for (size_t i = 0; i < n; i++) gradient[i] = p.work[i];
        for (int i = 0; i < p.n; i++) {
            double sum = 0;
            for (int v = 0; v < p.vocab; v++) sum += (double)gradient[(size_t)i * p.vocab + v];
            assert_true(fabs(sum) < 1e-6); /* probabilities minus a one-hot vector */
            if (p.label[i] >= 0) continue;
            assert_true(p.loss[i] == 0);
            for (int v = 0; v < p.vocab; v++) assert_true(gradient[(size_t)i * p.vocab + v] == 0);
        }
        check_gradient("dlogits", entropy_scalar, &p, p.logits, gradient, (int)n);
        double before = entropy_scalar(&p);
        for (size_t i = 0; i < n; i++) p.logits[i] += 1000; /* exp(1000) overflows; the loss stays the same */
        assert_true(fabs(entropy_scalar(&p) - before) <= 1e-4 * (1 + before));
        p.logits[0] = (real)NAN;
        p.label[0] = 0;
        assert_true(isnan(entropy_scalar(&p))); /* the loss shows a NaN */
        free(p.logits), free(p.work), free(p.loss), free(p.label), free(gradient);
    }
}

/* The loss of logits that are split over ranks by column, with padding on the last rank, equals that of the whole
 * logits. */
static void split_cross_entropy(void **state)
{
    (void)state;
    Random r = {.seed = 14};
    for (int round = 0; round < 20; round++) {
        int n = random_int(&r, 1, 9), V = random_int(&r, 1, 60), ranks = random_int(&r, 1, 5),
            stride = (V + ranks - 1) / ranks;
        size_t count = (size_t)n * V, part = (size_t)n * stride;
        real *whole = random_array(&r, count), *mine = malloc(ranks * part * sizeof *mine);
        acc *loss = zeros(n), *want = zeros(n), *top = zeros(n), *all = zeros(n), *total = zeros(n), *target = zeros(n);
        acc *sum = zeros(n), *hit = zeros(n);
        int label[9];
        for (int i = 0; i < n; i++) label[i] = i % 4 == 3 ? -1 : random_int(&r, 0, V - 1);
        if (round % 5 == 0) whole[0] += 1000;
        for (int v = 0; v < V && round % 5 == 1; v++) whole[v] -= 1000; /* row 0 is far below 0 */
        real padding = round % 2 ? (real)NAN : (real)1e30;
        for (int k = 0; k < ranks; k++)
            for (int i = 0; i < n; i++)
                for (int v = 0; v < stride; v++) {
                    int word = k * stride + v;
                    mine[k * part + i * stride + v] = word < V ? whole[(size_t)i * V + word] : padding;
                }
        for (int i = 0; i < n; i++) all[i] = -INFINITY;
        for (int k = 0; k < ranks; k++) {
            int words = V - k * stride < stride ? V - k * stride : stride;
            kernels.logits_top(top, mine + k * part, n, words, stride);
            for (int i = 0; i < n; i++) all[i] = top[i] > all[i] ? top[i] : all[i];
        }
        for (int k = 0; k < ranks; k++) {
            int words = V - k * stride < stride ? V - k * stride : stride;
            kernels.logits_sum(sum, hit, mine + k * part, all, label, k * stride, n, words, stride);
            for (int i = 0; i < n; i++) total[i] += sum[i], target[i] += hit[i];
        }
        kernels.cross_entropy(want, whole, label, 0.25, n, V);
        for (int k = 0; k < ranks; k++) {
            int words = V - k * stride < stride ? V - k * stride : stride;
            kernels.logits_gradient(loss, mine + k * part, all, total, target, label, k * stride, 0.25, n, words,
                                    stride);
            for (int i = 0; i < n; i++) {
                assert_true(fabs((double)(loss[i] - want[i])) <= 10 * ROUNDING * (1 + fabs((double)want[i])));
                for (int v = 0; v < stride; v++) {
                    double d = (double)mine[k * part + i * stride + v];
                    double expected = v < words ? (double)whole[(size_t)i * V + k * stride + v] : 0;
                    assert_true(fabs(d - expected) <= ROUNDING);
                }
            }
        }
        free(whole), free(mine), free(loss), free(want), free(top), free(all), free(total), free(target), free(sum);
        free(hit);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cross_entropy_gradients),
    cmocka_unit_test(split_cross_entropy),
};

int main(int argc, char **argv)
{
    kernels = kernels_cpu();
    return testing_run("test_loss", tests, sizeof tests / sizeof tests[0], argc, argv);
}
