/* ranks: 8  builds: fp64
 *
 * The schemes together, on random configurations, against a single device. Layers are split along tp, with sequence
 * parallelism or without. Along fsdp and dp runs every strategy of tiny-fsdp, or tiny-ddp. With accumulation,
 * recompute, clipping, tied and untied heads. Bytes sent and held equal the sum of the schemes' formulas. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "case.h"

enum { CASES = 100 };

static void equals_single_device(void **state)
{
    (void)state;
    Random r = {.seed = 91};
    double gradient = 0, weight = 0;
    int together = 0, sp = 0, accumulated = 0, clipped = 0, tied = 0;
    for (int i = 0; i < CASES * testing_grid(); i++) {
        Case c = random_composed_case(&r, i);
        Outcome out = check_case(&c, i, ROUNDING);
        gradient = fmax(gradient, out.gradient);
        weight = fmax(weight, out.weight);
        together += (c.tp > 1) + (c.fsdp > 1) + (c.dp > 1) > 1;
        sp += c.tensor.sp != 0;
        accumulated += c.t.accumulate > 1;
        clipped += c.t.clip < 1;
        tied += c.t.model.tied;
    }
    printf(
        "%d configurations (%d on two or three axes, SP in %d, accumulation in %d, clipping in %d, tied %d): gradients "
        "off by at most %.1e, weights after two steps by %.1e\n",
        CASES * testing_grid(), together, sp, accumulated, clipped, tied, gradient, weight);
}

/* All three axes with two ranks along each, for every sharding strategy: two micro-steps, shared kv heads, uneven
 * labels. */
static void all_three_axes(void **state)
{
    (void)state;
    static const char *const strategies[] = {"zero1", "zero2", "zero3", "fsdp"};
    for (int i = 0; i < 8; i++) {
        Random r = {.seed = 92};
        Case c = random_composed_case(&r, 0);
        c.sharding = sharding_defaults(strategies[i / 2]);
        c.sharding.accumulate_sharded = i % 2;
        c.fsdp = c.dp = c.tp = c.tensor.tp = 2;
        c.tensor.sp = i % 2;
        c.tensor.overlap_chunks = 1;
        c.t.seq = c.t.model.max_seq = 8;
        c.t.model.heads = 4;
        c.t.model.kv_heads = 1;
        c.t.model.ff = 10;
        c.t.model.qk_norm = true;
        c.t.accumulate = 2;
        c.t.ignore = 0.5;
        c.t.clip = 0.1;
        check_case(&c, i, ROUNDING);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(equals_single_device),
    cmocka_unit_test(all_three_axes),
};

TESTING_MAIN(tests)
