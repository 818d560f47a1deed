/* ranks: 16  builds: fp64
 *
 * All schemes at once, composed as in tiny-hybrid, on random configurations against a single device: loss, every gradient,
 * every weight after three optimizer steps, bytes sent and held. Meshes over all axes of up to 16 ranks, dense models and
 * models of experts, every strategy, method and layout, masks, tied and untied heads, accumulation, recompute, clipping.
 *
 * make grid N=500 SEED=7 runs others than these and prints a line for each. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "case.h"

enum { CASES = 60 };

/* A number from the environment; or what it is without. */
static int given(const char *name, int without)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : without;
}

typedef struct {
    int ran, axes, experts, masked;
    double gradient, weight;
} Summary;

static void add(Summary *s, const Case *c, const Outcome *out)
{
    s->ran++;
    s->axes += (c->tp > 1) + (c->cp > 1) + (c->fsdp > 1) + (c->dp > 1) + (c->experts.ep > 1) > 2;
    s->experts += c->t.model.moe.experts > 0;
    s->masked += c->t.window || c->t.prefix || c->t.pack;
    s->gradient = fmax(s->gradient, fmax(out->gradient, out->later_gradient));
    s->weight = fmax(s->weight, out->weight);
}

static void equals_single_device(void **state)
{
    (void)state;
    int n = given("N", 0), seed = given("SEED", 151), first = given("FIRST", 0);
    Summary all = {0};
    for (int i = first; i < first + (n ? n : CASES * testing_grid()); i++) {
        Random r = {.seed = (uint64_t)seed * 1000003 + (uint64_t)i};
        Case c = random_hybrid_case(&r);
        Outcome out = run_case(&c, training_tokens());
        if (n)
            printf("%4d  loss %.0e  norm %.0e  gradient %.0e  weights %.0e  %s\n", i, out.loss, out.norm, out.gradient,
                   out.weight, describe_case(&c));
        if (case_is_wrong(&out) || *out.ledger) {
            printf("again: make grid N=1 FIRST=%d SEED=%d\n", i, seed);
            check_case(&c, i, ROUNDING); /* says what is wrong */
        }
        assert_together(!case_is_wrong(&out) && !*out.ledger, "case %d was wrong once, and right when it was repeated",
                        i);
        add(&all, &c, &out);
    }
    printf("%d configurations (%d on three axes or more, experts in %d, masks in %d): gradients off by at most %.1e, "
           "weights "
           "after three steps by %.1e\n",
           all.ran, all.axes, all.experts, all.masked, all.gradient, all.weight);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(equals_single_device),
};
TESTING_MAIN(tests)
