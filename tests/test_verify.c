/* ranks: 4  builds: fp64 fp32
 *
 * The test of --verify itself. A run equals the twin to the bit, but for one planted error: in each parameter, on each
 * rank that owns a part of it, in each step, of each kind, under every placement. --verify must fail, and must name
 * that error and no other. Errors below the bounds must pass. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "capture.h"
#include "planted.h"
#include "testing.h"
#include "training.h"

#if defined(PRECISION_FP64)
static const double FIRST = 1e-12, LATER = 1e-9;
static const bool JUDGES_LATER = true;
#else
static const double FIRST = 1e-5, LATER = 1e-5;
static const bool JUDGES_LATER = false;
#endif

static const char *off_line(const Subject *s, const Fault *f)
{
    static char line[120];
    const char *what = f->kind == LOSS   ? "the loss"
                       : f->kind == AUX  ? "the auxiliary loss"
                       : f->kind == NORM ? "the norm of the gradients"
                       : f->kind == BIAS ? "the router's bias"
                                         : planted_view(s, f->view).view->name;
    snprintf(line, sizeof line, "verify: %s at step %d is off by ", what, f->step + 1);
    return line;
}

/* Is it a value of before the first update? */
static bool is_first(Kind kind, int step)
{
    return step == 0 && kind != WEIGHT && kind != BIAS;
}

static bool is_judged(Kind kind, int step)
{
    return JUDGES_LATER || is_first(kind, step);
}

static double bound_of(Kind kind, int step)
{
    return is_first(kind, step) ? FIRST : LATER;
}

/* [all ranks] Calls `check` for each kind, step and view, and for each rank that owns a part of the view. */
static void for_each_tensor_fault(const Subject *s, void (*check)(const Subject *, Fault))
{
    for (int kind = GRADIENT; kind <= WEIGHT; kind++)
        for (int step = 0; step < STEPS; step++)
            for (int n = 0; n < planted_views(s); n++)
                for (int rank = 0; rank < group_size(comm_world()); rank++) {
                    bool here = rank == comm_world_rank() && planted_owns(s, n);
                    int64_t planted = here;
                    comm_all_reduce(comm_control(), &planted, 1, COMM_INT64, COMM_MAX);
                    if (planted) check(s, (Fault){(Kind)kind, step, n, 0, here});
                }
}

static void check_finite(const Subject *s, Fault f)
{
    if (!is_judged(f.kind, f.step)) return;
    f.size = 1.2 * bound_of(f.kind, f.step);
    planted_expect(s, &f, 1, false, STEPS, off_line(s, &f));
}

/* One fault in eight is enough. */
static void check_not_finite(const Subject *s, Fault f)
{
    static int turn;
    if (turn++ % 8) return;
    f.size = turn % 16 == 1 ? (double)NAN : INFINITY;
    planted_expect(s, &f, 1, false, STEPS, off_line(s, &f));
}

/* --- tests --- */

static void passes_below_the_bounds(const Subject *s)
{
    planted_expect(s, NULL, 0, true, STEPS, NULL);
    for (int kind = LOSS; kind <= WEIGHT; kind++)
        for (int step = 0; step < STEPS; step++) {
            double size = is_judged((Kind)kind, step) ? 0.8 * bound_of((Kind)kind, step) : 1;
            Fault f = {(Kind)kind, step, EVERYWHERE, size, true};
            planted_expect(s, &f, 1, false, STEPS, NULL);
        }
}

static void fails_above_the_bounds(const Subject *s)
{
    for_each_tensor_fault(s, check_finite);
}

static void fails_without_end(const Subject *s)
{
    for_each_tensor_fault(s, check_not_finite);
}

static void judges_numbers(const Subject *s)
{
    for (int kind = LOSS; kind <= BIAS; kind++)
        for (int step = 0; step < STEPS; step++)
            for (int rank = EVERYWHERE; rank < group_size(comm_world()); rank++)
                for (int size = 0; size < 3; size++) {
                    if ((kind == AUX || kind == BIAS) && !planted_has_experts(s)) continue;
                    const double sizes[] = {1.2 * bound_of((Kind)kind, step), (double)NAN, INFINITY};
                    Fault f = {(Kind)kind, step, 0, sizes[size], rank == EVERYWHERE || rank == comm_world_rank()};
                    bool fails = size > 0 || is_judged((Kind)kind, step);
                    planted_expect(s, &f, 1, false, STEPS, fails ? off_line(s, &f) : NULL);
                }
}

static bool concerns(Equality equal, const View *v)
{
    if (equal == EQUAL_OVER_TP) return v->vector;
    return equal != EQUAL_KV_HEADS || v->partial == PARTIAL_BY_KV_HEADS;
}

/* Flips one bit of one view, for each row of the table of replicas. First on all ranks that have the same place in
 * their groups of that row: then only this row can notice. Then on one rank alone: then other ranks must hear of it. */
static void compares_replicas(const Subject *s)
{
    for (int r = 0; r < s->replicas.rows; r++) {
        Group *group = s->replicas.row[r].group;
        Equality equal = s->replicas.row[r].equal;
        Kind kind = equal == EQUAL_WHOLE_WEIGHTS ? WHOLE_WEIGHT_BIT : WEIGHT_BIT;
        for (int n = 0; n < planted_views(s); n++) {
            Parameter of = planted_view(s, n);
            if (of.params != s->replicas.row[r].params || !concerns(equal, of.view)) continue;
            for (int alone = 0; alone < 2; alone++)
                for (int k = 0; k < group_size(alone ? comm_world() : group); k++) {
                    bool here = k == (alone ? comm_world_rank() : group_rank(group));
                    int64_t planted = here && (kind == WHOLE_WEIGHT_BIT || planted_owns(s, n));
                    comm_all_reduce(comm_control(), &planted, 1, COMM_INT64, COMM_MAX);
                    Fault f = {kind, (n + k) % STEPS, n, 0, here};
                    char line[120];
                    snprintf(line, sizeof line, "verify: replicas of %s differ", of.view->name);
                    if (planted) planted_expect(s, &f, 1, true, STEPS, line);
                }
        }
    }
}

/* An error beyond the bound of step 1 is named, although a later one, within its wider bound, is larger. */
static void names_what_failed(const Subject *s)
{
    Fault faults[] = {{GRADIENT, 0, 1, 10 * FIRST, true}, {GRADIENT, 1, 0, LATER / 10, true}};
    if (JUDGES_LATER) planted_expect(s, faults, 2, false, STEPS, off_line(s, &faults[0]));
    planted_expect(s, NULL, 0, true, 1, "verify: 1 of 2 steps were compared");
}

/* Choices of experts that a rank has counted for another expert. */
static void finds_miscounted_choices(const Subject *s)
{
    for (int rank = 0; rank < group_size(comm_world()) && planted_has_experts(s); rank++)
        for (int step = 0; step < STEPS; step++) {
            Fault fault = {CHOICES, step, 0, 2, rank == comm_world_rank()};
            planted_expect(s, &fault, 1, true, STEPS, "verify: 2 of ");
        }
}

/* Sends row 0 of layer 0 elsewhere: hook and self are those of --verify. */
typedef struct {
    const int *(*hook)(void *self, int l, const int *choice, int rows);
    void *self;
    int choice[64], top_k, experts;
} Detour;

static const int *take_detour(void *self, int l, const int *choice, int rows)
{
    Detour *d = self;
    memcpy(d->choice, choice, (size_t)(rows * d->top_k) * sizeof *choice);
    if (l == 0) d->choice[0] = d->experts - 1 - d->choice[0]; /* top-k is 1 */
    d->hook(d->self, l, d->choice, rows);
    return d->choice;
}

/* A run whose rows go elsewhere, though their scores are the twin's: the twin follows, so all else is equal. */
static void the_twin_follows_the_routes(void **state)
{
    (void)state;
    enum { SEQ = 8 };
    Random r = {.seed = 3};
    Kernels kernels = kernels_cpu();
    ModelConfig c = random_model(&r, SEQ);
    c.vocab = 31;
    c.moe = (MoeConfig){.experts = 4, .top_k = 1, .ff = 5, .balance = BALANCE_AUX, .aux_coef = 0.1};
    OptimizerConfig recipe = {.lr = 1e-3, .steps = 2, .clip = 1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    Data *data;
    if (data_open(&data, training_tokens(), 31, SEQ, 0, 1) != NULL) fail();
    Batch batch = batch_create(data, (DataOrder){.seed = 3, .batch = 4, .seq = SEQ}, 2, (BatchShare){0}, &kernels);
    Model *m = model_create(&c, &kernels, batch.step_rows);
    params_init(&m->params, &kernels, 5);
    router_share(m, NULL, 2, SEQ);
    Optimizer optimizer = optimizer_create(recipe, &m->params, &kernels);
    Verify *v = verify_create(2, m, &batch, recipe, (Replicas){0});
    Detour detour = {.hook = m->router.chosen, .self = m->router.self, .top_k = 1, .experts = 4};
    for (int step = 0; step < 2; step++) {
        batch_read(&batch, step);
        model_zero_grads(m);
        m->router.chosen = take_detour;
        m->router.self = &detour;
        for (int i = 0; i < 2; i++) {
            Rows rows = batch_micro_step(&batch, i);
            model_begin(m, i, 2);
            model_forward(m, m->activations, &rows);
            model_loss(m, m->activations, batch_scale(&batch));
            model_backward(m, m->activations);
        }
        optimizer_measure(&optimizer, &m->params, step);
        verify_gradients(v, m, step);
        optimizer_step(&optimizer, &m->params);
        verify_weights(v, m, step);
        verify_numbers(v, step, model_read_loss(m), model_read_aux(m), optimizer_read_norm(&optimizer));
    }
    char report[4000], line[120];
    capture_begin();
    int status = verify_report(v), choices = 2 * 4 * SEQ * c.layers, flips = 4;
    capture_end(report, sizeof report);
    bool fails = JUDGES_LATER || flips > 1 + choices / 1000;
    snprintf(line, sizeof line, "verify: a single device would have made %d of %d choices of experts differently",
             flips, choices);
    bool told = strstr(report, line) && !strstr(report, "is off by") && strstr(report, fails ? "FAIL" : "PASS");
    assert_together(status == fails && (comm_world_rank() != 0 || told), "status %d:\n%s", status, report);
    optimizer_free(&optimizer);
    model_free(m);
    batch_free(&batch);
    data_close(data);
}

#define TEST(name)                                                                                                     \
    static void name##_test(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        planted_for_each(name);                                                                                        \
    }
TEST(passes_below_the_bounds)
TEST(fails_above_the_bounds)
TEST(fails_without_end)
TEST(judges_numbers)
TEST(compares_replicas)
TEST(names_what_failed)
TEST(finds_miscounted_choices)

/* The metric never loses an infinity or a NaN, not even where the twin has one too. */
static void the_metric(void **state)
{
    (void)state;
    const acc odd[] = {(acc)NAN, (acc)INFINITY, (acc)-INFINITY, 1};
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++) {
            double difference, largest;
            verify_compare(&odd[a], &odd[b], 1, &difference, &largest);
            double error = verify_error(difference, largest, largest);
            assert_together(a == 3 && b == 3 ? error == 0 : isinf(error), "%g and %g: %g", (double)odd[a],
                            (double)odd[b], error);
        }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(passes_below_the_bounds_test),
    cmocka_unit_test(fails_above_the_bounds_test),
    cmocka_unit_test(fails_without_end_test),
    cmocka_unit_test(judges_numbers_test),
    cmocka_unit_test(compares_replicas_test),
    cmocka_unit_test(names_what_failed_test),
    cmocka_unit_test(finds_miscounted_choices_test),
    cmocka_unit_test(the_twin_follows_the_routes),
    cmocka_unit_test(the_metric),
};
TESTING_MAIN(tests)
