/* ranks: 1  builds: fp64 fp32 fp32-san
 *
 * The optimizer: its learning-rate schedule, its constants, which weights decay, and clipping. */
#include <math.h>

#include "settings/config.h"
#include "model/optimizer.h"
#include "model/params.h"
#include "settings/presets.h"
#include "testing.h"

static void learning_rate(void **state)
{
    (void)state;
    OptimizerConfig c = {.lr = 1, .warmup = 4, .steps = 104};
    assert_true(optimizer_lr(&c, 0) == 0.25 && optimizer_lr(&c, 3) == 1 && optimizer_lr(&c, 4) == 1);
    assert_true(fabs(optimizer_lr(&c, 54) - 0.55) < 1e-12); /* half-way between 1 and 0.1 */
    assert_true(optimizer_lr(&c, 103) > 0.1 && optimizer_lr(&c, 103) < 0.101);
    c.warmup = 0;
    assert_true(optimizer_lr(&c, 0) == 1);
}

static void constants_of_the_optimizer(void **state)
{
    (void)state;
    Config c = {.optimizer = "adamw", .lr = 0.5, .warmup = 3, .steps = 9, .weight_decay = 0.25, .clip = 2};
    OptimizerConfig o = config_optimizer(&c);
    assert_true(o.kind == OPTIMIZER_ADAMW && o.lr == 0.5 && o.warmup == 3 && o.steps == 9 && o.weight_decay == 0.25);
    assert_true(o.clip == 2 && o.beta1 == 0.9 && o.beta2 == 0.95 && o.eps == 1e-8);
    c.optimizer = "sgd";
    assert_true(config_optimizer(&c).kind == OPTIMIZER_SGD);
}

static Params params_of_ones(void)
{
    ModelConfig c = preset_find("nano")->model;
    Kernels kernels = kernels_cpu();
    Params p = params_create(&c, (Placement){0}, &kernels);
    for (size_t i = 0; i < p.count; i++) p.weights[i] = 1;
    for (size_t i = 0; i < p.count; i++) p.grads[i] = 0;
    return p;
}

/* With gradients of 0 the weights of norms do not change, and matrices are multiplied by 1 - lr weight_decay. */
static void decay_goes_by_shape(void **state)
{
    (void)state;
    Kernels kernels = kernels_cpu();
    for (int kind = 0; kind < 2; kind++) {
        Params p = params_of_ones();
        OptimizerConfig c = {.kind = (OptimizerKind)kind,
                             .lr = 0.5,
                             .steps = 1,
                             .weight_decay = 0.1,
                             .clip = 1,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8};
        Optimizer o = optimizer_create(c, &p, &kernels);
        optimizer_measure(&o, &p, 0);
        optimizer_step(&o, &p);
        for (int n = 0; n < p.views; n++)
            for (size_t i = 0; i < p.view[n].size; i++) {
                double want = p.view[n].vector ? 1 : 0.95;
                assert_true(fabs((double)p.weights[p.view[n].offset + i] - want) < 1e-7);
            }
        optimizer_free(&o);
        params_free(&p);
    }
}

/* Clipping uses the norm of the whole gradient; 0 means no clipping. SGD's step is lr times the clipped gradient. */
static void clipping(void **state)
{
    (void)state;
    Kernels kernels = kernels_cpu();
    Params p = params_of_ones();
    for (size_t i = 0; i < p.count; i++) p.grads[i] = 2;
    double norm = 2 * sqrt((double)p.count);
    const double clips[] = {0, 1, 1e9, 1e-6};
    const double want[] = {2, 2 / norm, 2, 2 * 1e-6 / (norm + 1e-6)}; /* each entry of the clipped gradient */
    for (int k = 0; k < 4; k++) {
        p.weights[0] = 1;
        OptimizerConfig c = {.kind = OPTIMIZER_SGD, .lr = 0.1, .steps = 1, .clip = clips[k]};
        Optimizer o = optimizer_create(c, &p, &kernels);
        optimizer_measure(&o, &p, 0);
        assert_true(fabs(optimizer_read_norm(&o) - norm) < 1e-9 * norm);
        optimizer_step(&o, &p);
        assert_true(fabs((double)p.weights[0] - (1 - 0.1 * want[k])) < 1e-6);
        if (k == 3 && sizeof(acc) == 8) { /* a norm so small that the epsilon of 1e-6 matters */
            for (size_t i = 0; i < p.count; i++) p.grads[i] = 0;
            p.grads[0] = 1e-6;
            p.weights[0] = 0;
            optimizer_measure(&o, &p, 0);
            optimizer_step(&o, &p);
            assert_true(fabs((double)p.weights[0] + 0.1 * 0.5e-6) < 1e-12); /* clip / (norm + 1e-6) = 1/2 */
        }
        optimizer_free(&o);
    }
    params_free(&p);
}

/* Each step uses the schedule's learning rate. */
static void schedule_is_applied(void **state)
{
    (void)state;
    Kernels kernels = kernels_cpu();
    Params p = params_of_ones();
    for (size_t i = 0; i < p.count; i++) p.grads[i] = 1;
    OptimizerConfig c = {.kind = OPTIMIZER_SGD, .lr = 0.5, .warmup = 4, .steps = 8};
    Optimizer o = optimizer_create(c, &p, &kernels);
    double want = 1;
    for (long step = 0; step < 8; step++) {
        optimizer_measure(&o, &p, step);
        optimizer_step(&o, &p);
        want -= optimizer_lr(&c, step);
        assert_true(fabs((double)p.weights[0] - want) < 1e-6);
    }
    assert_true(want < 0 && optimizer_lr(&c, 0) != optimizer_lr(&c, 7));
    optimizer_free(&o);
    params_free(&p);
}

/* A gradient that is not finite changes neither weights nor moments, of any parameter. */
static void not_finite_changes_nothing(void **state)
{
    (void)state;
    Kernels kernels = kernels_cpu();
    const double bad[] = {NAN, INFINITY, -INFINITY};
    for (int kind = 0; kind < 2; kind++)
        for (int b = 0; b < 3; b++) {
            Params p = params_of_ones();
            for (size_t i = 0; i < p.count; i++) p.grads[i] = 1;
            p.grads[p.count / 2] = (acc)bad[b];
            OptimizerConfig c = {.kind = kind ? OPTIMIZER_SGD : OPTIMIZER_ADAMW,
                                 .lr = 0.1,
                                 .steps = 1,
                                 .weight_decay = 0.1,
                                 .clip = b % 2,
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .eps = 1e-8};
            Optimizer o = optimizer_create(c, &p, &kernels);
            optimizer_measure(&o, &p, 0);
            assert_false(isfinite(optimizer_read_norm(&o)));
            optimizer_step(&o, &p);
            for (size_t i = 0; i < p.count; i++) {
                assert_true(p.weights[i] == 1);
                assert_true(kind || (o.m[i] == 0 && o.v[i] == 0));
            }
            optimizer_free(&o);
            params_free(&p);
        }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(not_finite_changes_nothing),
    cmocka_unit_test(learning_rate),
    cmocka_unit_test(constants_of_the_optimizer),
    cmocka_unit_test(decay_goes_by_shape),
    cmocka_unit_test(clipping),
    cmocka_unit_test(schedule_is_applied),
};
TESTING_MAIN(tests)
