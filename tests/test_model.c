/* ranks: 1  builds: fp64 fp64-debug fp32-san
 *
 * The whole model: gradients against finite differences, attention masks, memory equal to its formula. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/memory.h"
#include "model/model.h"
#include "settings/presets.h"
#include "testing.h"

/* Compares the gradient of a few elements of every parameter with finite differences of the loss. */
static void finite_differences(void **state)
{
    (void)state;
    if (sizeof(real) != sizeof(double)) return;
    Random r = {.seed = 21};
    Kernels kernels = kernels_cpu();
    for (int round = 0; round < 8; round++) {
        int seq = random_int(&r, 2, 12), sequences = random_int(&r, 1, 3);
        ModelConfig c = random_model(&r, seq);
        Rows rows = random_rows(&r, sequences, seq, c.vocab, (unsigned)round);
        Model *m = model_create(&c, &kernels, rows.count);
        params_init(&m->params, &kernels, 5);
        model_zero_grads(m);
        loss_of(m, &rows);
        model_backward(m, m->activations);
        for (int n = 0; n < m->params.views; n++) {
            const View *v = &m->params.view[n];
            for (size_t i = 0; i < v->size; i += 1 + v->size / 5) {
                real *w = &m->params.weights[v->offset + i], keep = *w;
                const double h = 3e-4, place[4] = {-2, -1, 1, 2};
                double value[4];
                for (int p = 0; p < 4; p++) {
                    *w = (real)((double)keep + place[p] * h);
                    value[p] = loss_of(m, &rows);
                }
                *w = keep;
                double numeric = (value[0] - 8 * value[1] + 8 * value[2] - value[3]) / (12 * h);
                double exact = (double)m->params.grads[v->offset + i];
                if (fabs(numeric - exact) > 1e-7 * fmax(1, fabs(exact)))
                    fail_msg("round %d, %s[%zu]: backward %.12g, differences %.12g", round, v->name, i, exact, numeric);
            }
        }
        model_free(m);
        rows_free_host(&rows);
    }
}

/* Two sequences in one call give the loss and the gradients that they give in two calls. A sequence does not change
 * if another one, to which it may not attend, changes. */
static void packed_documents(void **state)
{
    (void)state;
    Random r = {.seed = 22};
    Kernels kernels = kernels_cpu();
    ModelConfig c = random_model(&r, 8);
    Rows packed = random_rows(&r, 2, 8, c.vocab, 0); /* both in one call */
    Model *m = model_create(&c, &kernels, packed.count);
    params_init(&m->params, &kernels, 5);
    model_zero_grads(m);
    double apart = loss_of(m, &packed);
    model_backward(m, m->activations);
    acc *want = malloc(m->params.count * sizeof *want);
    memcpy(want, m->params.grads, m->params.count * sizeof *want);

    /* each in a call of its own; gradients and losses add up */
    model_zero_grads(m);
    double sum = 0;
    for (int b = 0; b < 2; b++) {
        Rows one = rows_slice(&packed, 8 * b, 8);
        sum += loss_of(m, &one);
        model_backward(m, m->activations);
    }
    assert_true(fabs(sum - apart) <= 10 * ROUNDING * apart);
    assert_true(error_of(m->params.grads, want, m->params.count) <= ROUNDING);

    /* change the tokens of the first sequence: the logits of the second must stay */
    model_forward(m, m->activations, &packed);
    size_t half = (size_t)8 * c.vocab;
    real *second = malloc(half * sizeof *second);
    memcpy(second, m->activations->logits + half, half * sizeof *second);
    for (int i = 0; i < 8; i++) packed.token[i] = (packed.token[i] + 1) % c.vocab;
    model_forward(m, m->activations, &packed);
    assert_true(error_of(m->activations->logits + half, second, half) <= ROUNDING);
    free(want), free(second);
    model_free(m);
    rows_free_host(&packed);
}

/* A micro-step of fewer rows than the model has room for, after one that filled it, gives the loss and the gradients of
 * a model that has room for these rows alone. What lies behind these rows in the buffers stays as it was. */
static void fewer_rows_than_there_is_room_for(void **state)
{
    (void)state;
    Random r = {.seed = 26};
    Kernels kernels = kernels_cpu();
    for (int recompute = 0; recompute < 2; recompute++)
        for (int round = 0; round < 4; round++) {
            ModelConfig c = random_model(&r, 8);
            Rows many = random_rows(&r, 3, 8, c.vocab, 0), few = rows_slice(&many, 0, 8);
            Model *m[2];
            double loss[2];
            for (int i = 0; i < 2; i++) {
                m[i] = model_create_part(&c, &kernels, i ? few.count : many.count, (ModelPart){.recompute = recompute});
                params_init(&m[i]->params, &kernels, 5);
                if (i == 0) loss_of(m[i], &many), model_backward(m[i], m[i]->activations);
                model_zero_grads(m[i]);
                const Activations *a = m[i]->activations;
                size_t used = (size_t)few.count * (size_t)c.width;
                real *behind[] = {a->layer[0].n1 + used, a->layer[0].n2 + used, a->n_final + used};
                for (int k = 0; k < 3 && i == 0; k++) *behind[k] = real_of(777);
                loss[i] = loss_of(m[i], &few);
                model_backward(m[i], m[i]->activations);
                for (int k = 0; k < 3 && i == 0; k++) assert_true(real_double(*behind[k]) == 777);
            }
            assert_true(fabs(loss[0] - loss[1]) <= ROUNDING * loss[1]);
            assert_true(error_of(m[0]->params.grads, m[1]->params.grads, m[1]->params.count) <= ROUNDING);
            model_free(m[0]);
            model_free(m[1]);
            rows_free_host(&many);
        }
}

static void no_counted_label(void **state)
{
    (void)state;
    Random r = {.seed = 23};
    Kernels kernels = kernels_cpu();
    ModelConfig c = random_model(&r, 5);
    Rows rows = random_rows(&r, 2, 5, c.vocab, 0);
    for (int i = 0; i < rows.count; i++) rows.label[i] = -1;
    Model *m = model_create(&c, &kernels, rows.count);
    params_init(&m->params, &kernels, 5);
    model_zero_grads(m);
    assert_true(loss_of(m, &rows) == 0);
    model_backward(m, m->activations);
    for (size_t i = 0; i < m->params.count; i++) assert_true(m->params.grads[i] == 0);
    model_free(m);
    rows_free_host(&rows);
}

/* --- memory and counts --- */

static void memory_is_the_formula(void **state)
{
    (void)state;
    Random r = {.seed = 25};
    Kernels kernels = kernels_cpu();
    for (int round = 0; round < 20; round++) {
        ModelConfig c = random_model(&r, random_int(&r, 1, 40));
        int n = random_int(&r, 1, 60);
        bool recompute = round % 2;
        Model *m = model_create_part(&c, &kernels, n, (ModelPart){.recompute = recompute});
        assert_int_equal(memory_held(MEMORY_ACTIVATIONS), model_activation_bytes(&c, (size_t)n, recompute, 1));
        assert_int_equal(memory_held(MEMORY_PARAMETERS), m->params.count * sizeof(real));
        assert_int_equal(memory_held(MEMORY_GRADIENTS), m->params.count * sizeof(acc));
        model_free(m);
        assert_int_equal(memory_total(), 0);
    }
}

static void counts_of_presets(void **state)
{
    (void)state;
    const struct {
        const char *name;
        size_t parameters;
    } known[] = {{"nano", 9552}, {"demo", 1016960}, {"124m", 123587328}, {"350m", 359842816}, {"1b", 1235814400}};
    for (int p = 0; p < 5; p++) {
        Params table = params_table(&preset_find(known[p].name)->model);
        assert_int_equal(table.count, known[p].parameters);
        params_free(&table);
    }
    /* a layer of 124m has 12 C^2 matmul weights, as in GPT-2 */
    const ModelConfig *c = &preset_find("124m")->model;
    assert_int_equal(model_matmul_weights(c), 12u * 12 * 768 * 768 + 50304u * 768);
    assert_true(model_flops(c, 10, 7) == 60.0 * (double)model_matmul_weights(c) + 12.0 * 12 * 768 * 7);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(finite_differences), cmocka_unit_test(packed_documents),
    cmocka_unit_test(no_counted_label),   cmocka_unit_test(memory_is_the_formula),
    cmocka_unit_test(counts_of_presets),  cmocka_unit_test(fewer_rows_than_there_is_room_for),
};
TESTING_MAIN(tests)
