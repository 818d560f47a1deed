/* ranks: 2  builds: fp64 fp32
 *
 * The auto-tuner with kernels whose speed is known: it takes the faster one on every rank, remembers it, and leaves alone what
 * --kernel named. The same of plans for products. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autotune.h"
#include "comm.h"
#include "error.h"
#include "model_config.h"
#include "testing.h"

static Kernels plain;
static int slow_calls, fast_calls;

static void slow_forward(real *y, const real *x, const real *w, int n, int in, int out)
{
    slow_calls++;
    usleep(2000);
    plain.linear_forward(y, x, w, n, in, out);
}

static void fast_forward(real *y, const real *x, const real *w, int n, int in, int out)
{
    fast_calls++;
    plain.linear_forward(y, x, w, n, in, out);
}

static void use_slow(Kernels *k)
{
    k->linear_forward = slow_forward;
}

static void use_fast(Kernels *k)
{
    k->linear_forward = fast_forward;
}

static const Variant variants[] = {{"linear=fast", use_fast}, {"alone=only", use_slow}, {"linear=slow", use_slow}};

static char path[64];

/* A backend whose default is the slow kernel. */
static Kernels two_speeds(void)
{
    Kernels k = plain;
    k.variants = variants;
    k.variant_count = 3;
    use_slow(&k);
    slow_calls = fast_calls = 0;
    return k;
}

static bool takes_fast(const char *chosen, const char *file, const char **complaint)
{
    Kernels k = two_speeds();
    *complaint = autotune(&k, &preset_find("nano")->model, 96, 48, 1, chosen, file);
    return k.linear_forward == fast_forward;
}

static void takes_the_faster(void **state)
{
    (void)state;
    const char *complaint;
    bool first = comm_world_rank() == 0;
    bool fast = takes_fast("", path, &complaint);
    assert_together(fast && !complaint, "the slow kernel was taken");
    assert_together((slow_calls > 0 && fast_calls > 0) == first, "measured %d and %d times", slow_calls, fast_calls);
}

static void remembers(void **state)
{
    (void)state;
    const char *complaint;
    bool fast = takes_fast("", path, &complaint);
    assert_together(fast && !complaint, "the cache was not believed");
    assert_together(slow_calls == 0 && fast_calls == 0, "measured again");

    Kernels k = two_speeds(); /* other shapes are measured */
    complaint = autotune(&k, &preset_find("nano")->model, 48, 48, 1, "", path);
    assert_together(k.linear_forward == fast_forward && !complaint, "other rows");
    assert_together((slow_calls > 0) == (comm_world_rank() == 0), "other rows were not measured");
}

/* A cache that names a kernel which is not there is no cache; one that names the slow kernel is obeyed. */
static void reads_the_cache(void **state)
{
    (void)state;
    const char *const names[] = {"linear=gone", "linear=slow"};
    for (int n = 0; n < 2; n++) {
        if (comm_world_rank() == 0) {
            char line[500];
            FILE *f = fopen(path, "r");
            CHECK(f && fgets(line, sizeof line, f) &&
                  fgets(line, sizeof line, f)); /* the header, and the first choice */
            fclose(f);
            char *value = strstr(line, " = ");
            CHECK(value);
            *value = '\0';
            f = fopen(path, "w");
            CHECK(f);
            fprintf(f, "# kernels chosen by --autotune\n%s = %s\n", line, names[n]);
            fclose(f);
        }
        comm_barrier(comm_control());
        const char *complaint;
        bool fast = takes_fast("", path, &complaint);
        assert_together(!complaint && fast == (n == 0), "with %s in the cache", names[n]);
        comm_barrier(comm_control());
    }
}

static void leaves_alone_what_is_chosen(void **state)
{
    (void)state;
    const char *complaint;
    bool fast = takes_fast("attention=naive,linear=slow", path, &complaint);
    assert_together(!fast && !complaint && slow_calls + fast_calls == 0, "--kernel was overruled");
}

static void says_what_cannot_be_written(void **state)
{
    (void)state;
    const char *complaint;
    takes_fast("", "/none/such/file", &complaint);
    assert_together((complaint != NULL) == (comm_world_rank() == 0), "no complaint");
    takes_fast("", "LICENSE", &complaint); /* somebody's file */
    assert_together((complaint != NULL) == (comm_world_rank() == 0), "no complaint about LICENSE");
}

/* --- plans: a library that knows three ways, one is never the fastest, another is by the product and its shape --- */

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

static int fastest(Product product, int in, int out)
{
    return (in + out + 8 * (int)product) / 8 % 2 ? 2 : 0;
}

static void compute(Product product, int n, int in, int out)
{
    products_computed++;
    usleep(plan_at(product, n, in, out)->plan == fastest(product, in, out) ? 100 : 1000);
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

/* Products of 96 rows with the matrices of nano, in 2 chunks. Returns how many were computed. */
static int tune_plans(const char **complaint)
{
    Kernels k = plain;
    k.variant_count = 0;
    k.linear_forward = planned_forward;
    k.linear_backward_input = planned_backward_input;
    k.linear_backward_weight = planned_backward_weight;
    k.linear_plans = plans_of;
    k.linear_choose_plan = choose_plan;
    chosen_count = products_computed = 0;
    *complaint = autotune(&k, &preset_find("nano")->model, 96, 48, 2, "", path);
    return products_computed;
}

/* Is the fastest plan chosen for all products, and were they asked for with the rows that the run multiplies? */
static bool plans_are_the_fastest(void)
{
    const ModelConfig *c = &preset_find("nano")->model;
    bool head = false;
    for (int i = 0; i < chosen_count; i++) {
        const Chosen *a = &chosen_plans[i];
        if (a->plan != fastest(a->product, a->in, a->out)) return false;
        if (a->n != (a->product == PRODUCT_BACKWARD_WEIGHT ? 96 : 48)) return false;
        head |= a->in == c->width && a->out == c->vocab;
    }
    return head && chosen_count % PRODUCTS == 0 && chosen_count >= 4 * PRODUCTS;
}

static void takes_the_fastest_plans(void **state)
{
    (void)state;
    const char *complaint;
    bool first = comm_world_rank() == 0;
    int computed = tune_plans(&complaint);
    assert_together(!complaint && plans_are_the_fastest(), "a slow plan was taken");
    assert_together((computed > 0) == first, "%d products were computed", computed);
    computed = tune_plans(&complaint);
    assert_together(!complaint && plans_are_the_fastest() && computed == 0, "the cache was not believed");
}

/* A plan that is not there any more is measured anew. */
static void measures_plans_that_are_gone(void **state)
{
    (void)state;
    const char *complaint;
    if (comm_world_rank() == 0) {
        char command[200];
        snprintf(command, sizeof command, "sed -i 's/\\(^plan .* = \\).*/\\1%d/' %s", PLANS, path);
        CHECK(system(command) == 0);
    }
    comm_barrier(comm_control());
    int computed = tune_plans(&complaint);
    assert_together(!complaint && plans_are_the_fastest(), "a slow plan was taken");
    assert_together((computed > 0) == (comm_world_rank() == 0), "%d products were computed", computed);
}

/* The real backend: whatever it takes is one of its own, and computes. */
static void of_this_machine(void **state)
{
    (void)state;
    Kernels k = plain;
    const char *complaint = autotune(&k, &preset_find("nano")->model, 96, 48, 1, "", path);
    assert_together(!complaint && k.linear_forward && k.attention_backward, "no kernels");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(takes_the_faster),
    cmocka_unit_test(remembers),
    cmocka_unit_test(reads_the_cache),
    cmocka_unit_test(leaves_alone_what_is_chosen),
    cmocka_unit_test(says_what_cannot_be_written),
    cmocka_unit_test(takes_the_fastest_plans),
    cmocka_unit_test(measures_plans_that_are_gone),
    cmocka_unit_test(of_this_machine),
};

int main(int argc, char **argv)
{
    plain = kernels_cpu();
    snprintf(path, sizeof path, "/tmp/tiny-autotune-%d", (int)getppid());
    unlink(path);
    int failed = testing_run("test_autotune", tests, sizeof tests / sizeof tests[0], argc, argv);
    unlink(path);
    return failed;
}
