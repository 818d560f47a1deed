/* ranks: 1  builds: fp64 fp32 fp32-san
 *
 * Random numbers, data, options, presets, optimizer: what needs neither a model nor other ranks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "batch.h"
#include "config.h"
#include "error.h"
#include "optimizer.h"
#include "params.h"
#include "rng.h"
#include "testing.h"
#include "verify.h"

/* --- random numbers --- */

/* The known answers that come with the Philox paper's library, Random123. */
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
    assert_true(fabs(fourth - 2.85) < 0.1); /* of eight uniforms: 3 - 6 / (5 * 8) */
    assert_true(fabs(uniform - 0.5) < 0.005);
    for (int b = 0; b < 7; b++) assert_true(abs(bucket[b] - N / 7) < N / 100);
}

/* The first weights depend on seed, name and index alone, and are the same number in fp32 and fp64. */
static void first_weights(void **state)
{
    (void)state;
    ModelConfig c = preset_find("nano")->model;
    Kernels kernels = kernels_cpu();
    Params a = params_create(&c, (Holding){.cut = CUT_NOTHING}, &kernels);
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

/* --- data --- */

static void write_file(const char *path, const void *bytes, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(bytes, 1, size, f);
    fclose(f);
}

static void text_and_folders(void **state)
{
    (void)state;
    char dir[] = "/tmp/tiny-data-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/b.txt", dir);
    write_file(path, "world", 5);
    snprintf(path, sizeof path, "%s/a.txt", dir);
    write_file(path, "hello", 5);
    snprintf(path, sizeof path, "%s/binary", dir);
    write_file(path, "x\0y", 3);
    snprintf(path, sizeof path, "%s/.hidden", dir);
    write_file(path, "secret", 6);

    Data *data;
    assert_null(data_open(&data, dir, 256, 9, 0, 1));
    assert_int_equal(data_tokens(data), 10); /* helloworld */
    Rows rows = rows_create(9);
    data_read(data, (DataOrder){.seed = 1, .batch = 1, .seq = 9}, 0, 0, 1, 0, &rows);
    const char text[] = "helloworld"; /* one window fits, so it must be this one */
    for (int t = 0; t < 9; t++) {
        assert_int_equal(rows.token[t], text[t]);
        assert_int_equal(rows.label[t], text[t + 1]);
        assert_int_equal(rows.position[t], t);
        assert_int_equal(rows.hi[t] - rows.lo[t], t + 1);
    }
    assert_int_equal(rows_area(&rows), 45);
    rows_free(&rows);
    data_close(data);

    assert_non_null(strstr(data_open(&data, dir, 256, 10, 0, 1), "--seq 10: a sequence and its labels need 11"));
    const char *complaint = data_open(&data, dir, 119, 4, 0, 1); /* 'w' is 119, the first byte of the second file */
    assert_non_null(strstr(complaint, "b.txt: token 119 at offset 0 is outside the vocabulary of 119"));
    assert_null(data_open(&data, dir, 119, 4, 0, 2)); /* rank 0 of 2 looks at the first half only */
    data_close(data);
    assert_non_null(data_open(&data, dir, 119, 4, 1, 2));
    snprintf(path, sizeof path, "rm -r %s", dir);
    assert_int_equal(system(path), 0);
}

static void token_files(void **state)
{
    (void)state;
    const char *path = "/tmp/tiny-unit-tokens.bin";
    int32_t file[256 + 4] = {20240801, 1, 4};
    file[256] = 70000, file[257] = 1, file[258] = 2, file[259] = 3;
    Data *data;
    write_file(path, file, sizeof file);
    assert_null(data_open(&data, path, 70001, 3, 0, 1));
    Rows rows = rows_create(3);
    data_read(data, (DataOrder){.seed = 1, .batch = 1, .seq = 3}, 0, 0, 1, 0, &rows);
    assert_true(rows.token[0] == 70000 && rows.label[2] == 3);
    rows_free(&rows);
    data_close(data);
    assert_non_null(strstr(data_open(&data, path, 70000, 3, 0, 1), "token 70000 at offset 0"));

    file[0] = 20240520; /* now eight tokens of two bytes, though the header says four */
    write_file(path, file, sizeof file);
    assert_null(data_open(&data, path, 65536, 3, 0, 1));
    assert_int_equal(data_tokens(data), 4);
    data_close(data);
    file[2] = 9;
    write_file(path, file, sizeof file);
    assert_non_null(strstr(data_open(&data, path, 65536, 3, 0, 1), "promises 9 tokens, the file holds 8"));
    file[0] = 7;
    write_file(path, file, sizeof file);
    assert_non_null(strstr(data_open(&data, path, 65536, 3, 0, 1), "magic number 7"));
    file[0] = 20240520, file[1] = 2;
    write_file(path, file, sizeof file);
    assert_non_null(strstr(data_open(&data, path, 65536, 3, 0, 1), "version 2"));
    write_file(path, file, 100);
    assert_non_null(strstr(data_open(&data, path, 65536, 3, 0, 1), "header"));
    write_file(path, file, 0);
    assert_non_null(strstr(data_open(&data, path, 65536, 3, 0, 1), "empty"));
    unlink(path);
    assert_non_null(strstr(data_open(&data, path, 65536, 3, 0, 1), "No such file"));
}

/* Sequence b of step s is the same whoever reads it, and --ignore drops about its fraction, unevenly. */
static void data_order(void **state)
{
    (void)state;
    const char *path = testing_token_file(50, 5000);
    Data *data;
    assert_null(data_open(&data, path, 50, 10, 0, 1));
    DataOrder order = {.seed = 3, .batch = 600, .seq = 10, .ignore = 0.4};
    Rows all = rows_create(6000), part = rows_create(10);
    data_read(data, order, 5, 0, 600, 0, &all);
    int full = 0, empty = 0;
    for (int b = 0; b < 600; b++) {
        data_read(data, order, 5, b, 1, b * 10, &part);
        Rows there = rows_slice(&all, b * 10, 10);
        assert_memory_equal(part.token, there.token, 10 * sizeof(int));
        assert_memory_equal(part.label, there.label, 10 * sizeof(int));
        assert_memory_equal(part.id, there.id, 10 * sizeof(int));
        full += rows_counted(&part) == 10;
        empty += rows_counted(&part) <= 2;
    }
    double kept = (double)rows_counted(&all) / 6000;
    assert_true(fabs(kept - 0.6) < 0.05 && full > 10 && empty > 10);
    int first = all.token[0], same = 0;
    for (int s = 0; s < 20; s++) {
        data_read(data, order, s, 0, 1, 0, &part);
        same += part.token[0] == first;
    }
    assert_true(same < 10); /* other steps read other places */
    rows_free(&all), rows_free(&part);
    data_close(data);
}

/* Every window that fits is drawn, the last one included; and the fingerprint sees every token of a small file. */
static void data_windows_and_fingerprint(void **state)
{
    (void)state;
    const char *path = "/tmp/tiny-unit-windows.txt";
    Data *data;
    write_file(path, "abcdefghijkl", 12);
    assert_null(data_open(&data, path, 256, 10, 0, 1));
    Rows rows = rows_create(10);
    bool first = false, last = false;
    for (int s = 0; s < 60; s++) {
        data_read(data, (DataOrder){.seed = 1, .batch = 1, .seq = 10}, s, 0, 1, 0, &rows);
        first = first || rows.token[0] == 'a';
        last = last || rows.label[9] == 'l';
    }
    assert_true(first && last);
    uint64_t before = data_fingerprint(data);
    data_close(data);
    for (int i = 0; i < 12; i++) {
        char text[] = "abcdefghijkl";
        text[i] = 'z';
        write_file(path, text, 12);
        assert_null(data_open(&data, path, 256, 10, 0, 1));
        assert_true(data_fingerprint(data) != before);
        data_close(data);
    }
    rows_free(&rows);
    unlink(path);
}

static void draws_below(void **state)
{
    (void)state;
    Philox p = philox(9, 3, 4); /* all 64 bits count: n bits / 2^64 */
    uint64_t bits = (uint64_t)p.word[1] << 32 | p.word[0];
    assert_true(rng_below(9, 4, 3, 1ull << 63) == bits / 2);
    assert_true(rng_below(9, 4, 3, 1) == 0);
}

static void no_label_no_scale(void **state)
{
    (void)state;
    Batch batch = {.counted = 0};
    assert_true(batch_scale(&batch) == 0);
    batch.counted = 4;
    assert_true(batch_scale(&batch) == 0.25);
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

/* --- optimizer --- */

static void learning_rate(void **state)
{
    (void)state;
    OptimizerConfig c = {.lr = 1, .warmup = 4, .steps = 104};
    assert_true(optimizer_lr(&c, 0) == 0.25 && optimizer_lr(&c, 3) == 1 && optimizer_lr(&c, 4) == 1);
    assert_true(fabs(optimizer_lr(&c, 54) - 0.55) < 1e-12); /* half-way down to a tenth */
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
    Params p = params_create(&c, (Holding){.cut = CUT_NOTHING}, &kernels);
    for (size_t i = 0; i < p.count; i++) p.weights[i] = 1;
    for (size_t i = 0; i < p.count; i++) p.grads[i] = 0;
    return p;
}

/* No gradient: norms stay, matrices shrink by 1 - lr wd. */
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

/* Clipping is by the norm of everything, and off at 0; SGD's step is lr times the clipped gradient. */
static void clipping(void **state)
{
    (void)state;
    Kernels kernels = kernels_cpu();
    Params p = params_of_ones();
    for (size_t i = 0; i < p.count; i++) p.grads[i] = 2;
    double norm = 2 * sqrt((double)p.count);
    const double clips[] = {0, 1, 1e9, 1e-6};
    const double want[] = {2, 2 / norm, 2, 2 * 1e-6 / (norm + 1e-6)}; /* the gradient that is applied */
    for (int k = 0; k < 4; k++) {
        p.weights[0] = 1;
        OptimizerConfig c = {.kind = OPTIMIZER_SGD, .lr = 0.1, .steps = 1, .clip = clips[k]};
        Optimizer o = optimizer_create(c, &p, &kernels);
        optimizer_measure(&o, &p, 0);
        assert_true(fabs(optimizer_read_norm(&o) - norm) < 1e-9 * norm);
        optimizer_step(&o, &p);
        assert_true(fabs((double)p.weights[0] - (1 - 0.1 * want[k])) < 1e-6);
        if (k == 3 && sizeof(acc) == 8) { /* the epsilon, where it matters */
            for (size_t i = 0; i < p.count; i++) p.grads[i] = 0;
            p.grads[0] = 1e-6;
            p.weights[0] = 0;
            optimizer_measure(&o, &p, 0);
            optimizer_step(&o, &p);
            assert_true(fabs((double)p.weights[0] + 0.1 * 0.5e-6) < 1e-12); /* clip / (norm + 1e-6) is a half */
        }
        optimizer_free(&o);
    }
    params_free(&p);
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
    cmocka_unit_test(text_and_folders),
    cmocka_unit_test(token_files),
    cmocka_unit_test(data_order),
    cmocka_unit_test(learning_rate),
    cmocka_unit_test(decay_goes_by_shape),
    cmocka_unit_test(clipping),
    cmocka_unit_test(flags),
    cmocka_unit_test(draws_below),
    cmocka_unit_test(data_windows_and_fingerprint),
    cmocka_unit_test(no_label_no_scale),
    cmocka_unit_test(metric),
    cmocka_unit_test(constants_of_the_optimizer),
};
TESTING_MAIN(tests)
