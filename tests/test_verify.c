/* ranks: 4  builds: fp64 fp32
 *
 * The test of --verify itself. A run equals the twin to the bit, but for one planted error: in each parameter, on each
 * rank that owns a part of it, in each step, of each kind, under every placement. --verify must fail, and must name
 * that error and no other. Errors below the bounds must pass. */
#include <math.h>
#include <stdio.h>

#include "planted.h"
#include "testing.h"

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

/* Choices of experts that differ are reported. They are no error. If they are few, rounding may have decided them; then
 * a build that does not judge later steps does not judge the first one either. */
static void reports_choices(const Subject *s)
{
    for (int rank = 0; rank < group_size(comm_world()) && planted_has_experts(s); rank++)
        for (int moved = 1; moved <= 2; moved++) { /* 1 is few, 2 is not */
            Fault faults[] = {{CHOICES, 0, 0, moved, rank == comm_world_rank()}, {GRADIENT, 0, 0, 1.2 * FIRST, true}};
            bool excused = moved == 1 && !JUDGES_LATER;
            planted_expect(s, faults, 1, true, STEPS, NULL);
            planted_expect(s, faults, 2, true, STEPS, excused ? NULL : off_line(s, &faults[1]));
        }
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
TEST(reports_choices)

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
    cmocka_unit_test(passes_below_the_bounds_test), cmocka_unit_test(fails_above_the_bounds_test),
    cmocka_unit_test(fails_without_end_test),       cmocka_unit_test(judges_numbers_test),
    cmocka_unit_test(compares_replicas_test),       cmocka_unit_test(names_what_failed_test),
    cmocka_unit_test(reports_choices_test),         cmocka_unit_test(the_metric),
};
TESTING_MAIN(tests)
