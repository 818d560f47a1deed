/* ranks: 8  builds: fp64 fp32 fp64-debug
 *
 * tiny-cp against a single device, on random configurations of cp and dp: ring, all-gather, all-to-all, and teams; both
 * layouts; causal rows, packed documents, windows, prefixes; fewer kv heads than ranks of a team; the shortest sequences
 * that can be cut; ranks without a label. Bytes sent and held equal the formulas. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "case.h"

/* The bound for step 1. In fp32 the results of blocks are rounded before they are merged. */
static const double FIRST = sizeof(acc) == 8 ? 1e-12 : 1e-4;

#ifdef DEBUG
enum { CASES = 42 }; /* fewer: debug builds are slow and compare every collective over its group */
#else
enum { CASES = 210 };
#endif

static void equals_single_device(void **state)
{
    (void)state;
    Random r = {.seed = 101};
    double gradient = 0, weight = 0;
    int teams = 0, shared = 0, window = 0, prefix = 0, pack = 0, shortest = 0, no_label = 0;
    for (int i = 0; i < CASES * testing_grid(); i++) {
        Case c = random_context_case(&r, i);
        Outcome out = check_case(&c, i, FIRST);
        gradient = fmax(gradient, out.gradient);
        weight = fmax(weight, out.weight);
        teams += c.context.ulysses_size > 1 && c.context.ulysses_size < c.cp;
        shared += c.t.model.kv_heads < c.context.ulysses_size;
        window += c.t.window > 0;
        prefix += c.t.prefix > 0;
        pack += c.t.pack;
        shortest += c.t.seq == cut_multiple(context_cut(&c.context));
        no_label += c.t.ignore == 1;
    }
    printf("%d configurations (teams in %d, shared kv heads in %d, windows in %d, prefixes in %d, documents in %d, the "
           "shortest sequence in %d, no label in %d): gradients off by at most %.1e, weights after two steps by %.1e\n",
           CASES * testing_grid(), teams, shared, window, prefix, pack, shortest, no_label, gradient, weight);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(equals_single_device),
};

TESTING_MAIN(tests)
