/* ranks: 1  builds: fp64 fp32 fp32-san
 *
 * Random numbers, verify's metric, options and presets: units that need one rank and no training. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/batch.h"
#include "settings/config.h"
#include "base/error.h"
#include "model/optimizer.h"
#include "model/params.h"
#include "base/rng.h"
#include "settings/presets.h"
#include "testing.h"
#include "observe/verify.h"

/* --- random numbers --- */

/* The known answers from Random123, the library of the Philox paper. */
static void philox_known_answers(void **state)
{
    (void)state;
    const struct {
        uint64_t key, low, high;
        uint32_t want[4];
    } known[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int k = 0; k < 3; k++) {
        Philox got = philox(known[k].key, known[k].low, known[k].high);
        for (int w = 0; w < 4; w++) assert_int_equal(got.word[w], known[k].want[w]);
    }
}

static void draws_have_the_right_moments(void **state)
{
    (void)state;
    enum { N = 200000 };
    double mean = 0, square = 0, fourth = 0, uniform = 0;
    int bucket[7] = {0};
    for (int i = 0; i < N; i++) {
        double x = (double)rng_normal(3, 4, (uint64_t)i, 2.0) / 2.0, u = rng_uniform(3, 5, (uint64_t)i);
        mean += x / N;
        square += x * x / N;
        fourth += x * x * x * x / N;
        uniform += u / N;
        assert_true(u >= 0 && u < 1);
        bucket[rng_below(3, 6, (uint64_t)i, 7)]++;
    }
    assert_true(fabs(mean) < 0.01 && fabs(square - 1) < 0.02);
    assert_true(fabs(fourth - 2.85) < 0.1); /* the fourth moment of a sum of eight uniforms: 3 - 6 / (5 * 8) */
    assert_true(fabs(uniform - 0.5) < 0.005);
    for (int b = 0; b < 7; b++) assert_true(abs(bucket[b] - N / 7) < N / 100);
}

/* The initial weights depend only on seed, name and index. They are equal in fp32 and fp64. */
static void first_weights(void **state)
{
    (void)state;
    ModelConfig c = preset_find("nano")->model;
    Kernels kernels = kernels_cpu();
    Params a = params_create(&c, (Placement){0}, &kernels);
    params_init(&a, &kernels, 1);
    const View *q = params_find(&a, "model.layers.1.self_attn.q_proj.weight");
    float drawn = rng_normal(1, rng_stream(q->name), 17, q->init_std);
    assert_true((float)a.weights[q->offset + 17] == drawn && (double)a.weights[q->offset + 17] == (double)drawn);
    assert_true(a.weights[params_find(&a, "model.norm.weight")->offset] == 1);
    const View *o = params_find(&a, "model.layers.1.self_attn.o_proj.weight");
    assert_true(fabs(o->init_std - c.init_std / sqrt(2.0 * c.layers)) < 1e-15);
    real before = a.weights[0];
    params_init(&a, &kernels, 2);
    assert_true(a.weights[0] != before);
    params_free(&a);
}

static void draws_below(void **state)
{
    (void)state;
    Philox p = philox(9, 3, 4); /* rng_below uses all 64 bits: n bits / 2^64 */
    uint64_t bits = (uint64_t)p.word[1] << 32 | p.word[0];
    assert_true(rng_below(9, 4, 3, 1ull << 63) == bits / 2);
    assert_true(rng_below(9, 4, 3, 1) == 0);
}

/* --- verify's metric --- */

static void metric(void **state)
{
    (void)state;
    acc a[3] = {1, 2, 3}, b[3] = {1, 2, 4};
    double difference, largest;
    verify_compare(a, b, 3, &difference, &largest);
    assert_true(difference == 1 && largest == 4);
    a[0] = (acc)NAN;
    verify_compare(a, b, 3, &difference, &largest);
    assert_true(isinf(difference));
    double floor = sizeof(acc) == 8 ? 1e-3 : 5e-2;
    assert_true(verify_error(2, 4, 4) == 0.5);
    assert_true(fabs(verify_error(2, 0, 1000) - 2 / (1000 * floor)) < 1e-12);
    assert_true(verify_error(0, 0, 0) == 0 && isinf(verify_error(1, 0, 0)));
}

/* --- options and presets --- */

static const char *parse(Config *config, char *flags)
{
    char *argv[16] = {"program"};
    int argc = 1, help;
    for (char *word = strtok(flags, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    *config = (Config){.lr = -1};
    OptionTable table = config_options(config);
    const char *complaint = options_parse(&table, 1, argc, argv, &help);
    return complaint ? complaint : config_finish(config, 1, 0);
}

static void flags(void **state)
{
    (void)state;
    Config c;
    char good[] = "--model nano --steps 7 --lr=0.5 --verify --clip 0";
    assert_null(parse(&c, good));
    assert_true(c.steps == 7 && c.lr == 0.5 && c.verify == 3 && c.clip == 0 && c.batch == 48 && c.seq == 48);
    char some[] = "--verify=5";
    assert_null(parse(&c, some));
    assert_int_equal(c.verify, 5);

    const struct {
        char flags[64];
        const char *complaint;
    } bad[] = {
        {"--stepz 3", "--stepz"},
        {"--steps", "--steps: needs a value"},
        {"--log --verify", "--log --verify: needs a value"},
        {"--log --verify --lr 1", "--log --verify: needs a value"},
        {"--steps 0", "--steps 0: must be a whole number from 1"},
        {"--steps -4", "--steps -4: must"},
        {"--steps 3x", "--steps 3x: must"},
        {"--steps 99999999999999999999", "must be a whole number"},
        {"--lr nan", "--lr nan: must be a number"},
        {"--lr inf", "--lr inf: must be a number"},
        {"--lr -1", "--lr -1: must be a number from 0"},
        {"--optimizer adam", "--optimizer adam: must be one of adamw|sgd"},
        {"--optimizer ada", "must be one of"},
        {"--model gigantic", "--model gigantic: neither a preset"},
        {"--batch 50 --accumulate 4 --model nano",
         "--batch 50: must be a multiple of data ranks x --accumulate = 1 x 4"},
        {"--seq 0", "--seq 0: must"},
        {"--verify=0", "--verify 0: must"},
        {"--kernel linear=magic", "--kernel linear=magic: no such kernel"},
        {"stray", "stray: not a flag"},
        {"--batch 2000000000 --model nano", "must be at most"},
    };
    for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
        char text[64];
        memcpy(text, bad[b].flags, sizeof text);
        const char *complaint = parse(&c, text);
        if (!complaint || !strstr(complaint, bad[b].complaint))
            fail_msg("%s: complaint \"%s\"", bad[b].flags, complaint ? complaint : "none");
        assert_null(strchr(complaint, '\n'));
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(philox_known_answers),
    cmocka_unit_test(draws_have_the_right_moments),
    cmocka_unit_test(first_weights),
    cmocka_unit_test(draws_below),
    cmocka_unit_test(metric),
    cmocka_unit_test(flags),
};
TESTING_MAIN(tests)
