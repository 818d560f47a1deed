/* ranks: 16  builds: fp64
 *
 * All schemes at once, composed as in tiny-hybrid, on random configurations against a single device: loss, every gradient,
 * every weight after three optimizer steps, bytes sent and held. Meshes over all axes of up to 16 ranks, dense models and
 * models of experts, every strategy, method and layout, masks, tied and untied heads, accumulation, recompute, clipping. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case.h"

enum { CASES = 60 };

/* A number from the environment, for make grid; or what it is without. */
static long given(const char *name, long without)
{
    const char *text = getenv(name);
    return text && *text ? atol(text) : without;
}

static void count_case(const Case *c, int *axes, int *experts, int *masked)
{
    *axes += (c->tp > 1) + (c->cp > 1) + (c->fsdp > 1) + (c->dp > 1) + (c->experts.ep > 1) > 2;
    *experts += c->t.model.moe.experts > 0;
    *masked += c->t.window || c->t.prefix || c->t.pack;
}

static void equals_single_device(void **state)
{
    (void)state;
    long seed = given("SEED", 151), n = given("N", CASES), only = given("ONLY", -1);
    double gradient = 0, weight = 0;
    int ran = 0, axes = 0, experts = 0, masked = 0;
    bool table = given("TABLE", 0);
    for (int i = 0; i < n; i++) {
        Random r = {.seed = (uint64_t)(seed * 1000003 + i)};
        Case c = random_hybrid_case(&r);
        if (only >= 0 && i != only) continue;
        Outcome out = check_case(&c, i, ROUNDING);
        if (table)
            printf("%4d  loss %.1e  norm %.1e  gradient %.1e  weights %.1e  %s\n", i, out.loss, out.norm, out.gradient,
                   out.weight, describe_case(&c));
        gradient = fmax(gradient, fmax(out.gradient, out.later_gradient));
        weight = fmax(weight, out.weight);
        count_case(&c, &axes, &experts, &masked);
        ran++;
    }
    printf("%d configurations (%d on three axes or more, experts in %d, masks in %d): gradients off by at most %.1e, weights "
           "after three steps by %.1e\n",
           ran, axes, experts, masked, gradient, weight);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(equals_single_device),
};

TESTING_MAIN(tests)
