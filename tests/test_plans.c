/* ranks: 2  builds: fp64
 *
 * The auto-tuner with a library that knows three plans for each product: the first or the last is the fastest, by the
 * product and its shape, the one between never is. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tune/autotune.h"
#include "comm/comm.h"
#include "base/error.h"
#include "settings/presets.h"
#include "testing.h"

static Kernels plain;
static char path[64];

enum { PLANS = 3 };
typedef struct {
    Product product;
    int n, in, out, plan;
} Chosen;
static Chosen chosen_plans[64];
static int chosen_count, products_computed;

static Chosen *plan_at(Product product, int n, int in, int out)
{
    for (int i = 0; i < chosen_count; i++) {
        Chosen *c = &chosen_plans[i];
        if (c->product == product && c->n == n && c->in == in && c->out == out) return c;
    }
    CHECK(chosen_count < 64);
    chosen_plans[chosen_count] = (Chosen){product, n, in, out, 0};
    return &chosen_plans[chosen_count++];
}

static int fastest(Product product, int n, int in, int out)
{
    return (in / 8 + out / 16 + n / 48 + (int)product) % 2 ? 2 : 0; /* each of them matters among nano's matrices */
}

/* Differences that a busy machine does not turn round. */
static void compute(Product product, int n, int in, int out)
{
    products_computed++;
    int plan = plan_at(product, n, in, out)->plan;
    usleep(plan == fastest(product, n, in, out) ? 100 : plan == 1 ? 5000 : 12000);
}

static void planned_forward(real *y, const real *x, const real *w, int n, int in, int out)
{
    (void)y, (void)x, (void)w;
    compute(PRODUCT_FORWARD, n, in, out);
}

static void planned_backward_input(real *dx, const real *dy, const real *w, int n, int in, int out)
{
    (void)dx, (void)dy, (void)w;
    compute(PRODUCT_BACKWARD_INPUT, n, in, out);
}

static void planned_backward_weight(acc *dw, const real *dy, const real *x, int n, int in, int out)
{
    (void)dw, (void)dy, (void)x;
    compute(PRODUCT_BACKWARD_WEIGHT, n, in, out);
}

static int plans_of(Product product, int n, int in, int out)
{
    (void)product, (void)n, (void)in, (void)out;
    return PLANS;
}

static void choose_plan(Product product, int n, int in, int out, int plan)
{
    plan_at(product, n, in, out)->plan = plan;
}

/* Products of 96 rows with the matrices of nano, in chunks. Returns how many were computed. */
static int tune_plans(int chunks, const char **complaint)
{
    Kernels k = plain;
    k.variant_count = 0;
    k.linear_forward = planned_forward;
    k.linear_backward_input = planned_backward_input;
    k.linear_backward_weight = planned_backward_weight;
    k.linear_plans = plans_of;
    k.linear_choose_plan = choose_plan;
    chosen_count = products_computed = 0;
    *complaint = autotune(&k, &preset_find("nano")->model, 96, 48, chunks, "", path);
    if (!*complaint && comm_world_rank() == 0) autotune_save(path);
    comm_barrier(comm_control());
    return products_computed;
}

/* Is the fastest plan chosen for all products, and were they asked for with the rows that the run multiplies? */
static bool plans_are_the_fastest(int chunks)
{
    const ModelConfig *c = &preset_find("nano")->model;
    bool head = false;
    for (int i = 0; i < chosen_count; i++) {
        const Chosen *a = &chosen_plans[i];
        if (a->plan != fastest(a->product, a->n, a->in, a->out)) return false;
        if (a->n != (a->product == PRODUCT_BACKWARD_WEIGHT ? 96 : 96 / chunks)) return false;
        head |= a->in == c->width && a->out == c->vocab;
    }
    return head && chosen_count == 5 * PRODUCTS;
}

static void takes_the_fastest_plans(void **state)
{
    (void)state;
    const char *complaint;
    bool first = comm_world_rank() == 0;
    for (int chunks = 2; chunks >= 1; chunks--) { /* other rows are measured, too */
        int computed = tune_plans(chunks, &complaint);
        assert_together(!complaint && plans_are_the_fastest(chunks), "a slow plan was taken");
        assert_together((computed > 0) == first, "%d products were computed", computed);
    }
    int computed = tune_plans(2, &complaint);
    assert_together(!complaint && plans_are_the_fastest(2) && computed == 0, "the cache was not believed");
}

/* Replaces what the file says of plans by sed. */
static void edit(const char *script)
{
    if (comm_world_rank() == 0) {
        char command[300];
        snprintf(command, sizeof command, "sed -i '%s' %s", script, path);
        CHECK(system(command) == 0);
    }
    comm_barrier(comm_control());
}

/* A plan that is not there (any more), or of another shape, is measured anew; the last line that is good is obeyed. */
static void reads_plans_with_care(void **state)
{
    (void)state;
    const char *complaint;
    const char *const bad[] = {"s/^\\(plan .*\\) = .*/\\1 = 3/", "s/^\\(plan .*\\) = .*/\\1 = -1/",
                               "s/^\\(plan .*\\) = .*/\\1 = 0abc/", "s/^\\(plan .*\\) = .*/\\10 = 1/"};
    for (int b = 0; b < 4; b++) {
        edit(bad[b]);
        int computed = tune_plans(2, &complaint);
        assert_together(!complaint && plans_are_the_fastest(2), "after %s", bad[b]);
        assert_together((computed > 0) == (comm_world_rank() == 0), "after %s, %d were computed", bad[b], computed);
    }
    edit("s/^\\(plan .*\\) = .*/\\1 = 1/");
    int computed = tune_plans(2, &complaint);
    bool obeyed = true;
    for (int i = 0; i < chosen_count; i++) obeyed = obeyed && chosen_plans[i].plan == 1;
    assert_together(!complaint && obeyed && computed == 0, "the file was not obeyed");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(takes_the_fastest_plans),
    cmocka_unit_test(reads_plans_with_care),
};

int main(int argc, char **argv)
{
    plain = kernels_cpu();
    snprintf(path, sizeof path, "/tmp/tiny-plans-%d", (int)getppid());
    unlink(path);
    int failed = testing_run("test_plans", tests, sizeof tests / sizeof tests[0], argc, argv);
    unlink(path);
    return failed;
}
