/* ranks: 1  builds: fp64 fp32 bf16
 *
 * The CUDA kernels of experts against the CPU's in fp64: router, slots, grouped products; odd sizes, experts without
 * rows, all rows with one expert, dropped choices. Without a GPU the tests are skipped and say so. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "both.h"

static Kernels cpu; /* in fp64 */
static bool there_is_a_gpu;

static int rounds(int usual)
{
    if (!there_is_a_gpu) skip();
    return getenv("QUICK") ? (usual + 5) / 6 : usual * testing_grid();
}

/* Whole numbers: the GPU's must be the host's. */
static void check_bytes(const char *what, const Both *b, int round)
{
    char *got = malloc(b->count + 1);
    gpu.download(got, b->device, b->count);
    if (memcmp(got, b->host, b->count) != 0) fail_msg("round %d: other %s on the GPU", round, what);
    free(got);
}

static Both *zero_bytes(size_t bytes)
{
    char *zeros = calloc(bytes + 1, 1);
    Both *b = both_bytes(zeros, bytes);
    free(zeros);
    return b;
}

static RouterShape random_shape(Random *r)
{
    RouterShape s = {.rows = random_int(r, 1, 700), .sigmoid = random_int(r, 0, 1), .renormalize = random_int(r, 0, 1)};
    s.experts = random_int(r, 0, 3) ? random_int(r, 1, 70) : random_int(r, 71, EXPERTS_MAX);
    int k = random_int(r, 1, 9);
    s.top_k = k < s.experts ? k : s.experts;
    return s;
}

/* Row i goes to k neighbouring experts, from a random one on. */
static Both *forced_choices(Random *r, RouterShape s)
{
    int choices = s.rows * s.top_k, *to = malloc((size_t)(choices + 1) * sizeof *to), from = 0;
    for (int c = 0; c < choices; c++) {
        if (c % s.top_k == 0) from = random_int(r, 0, s.experts - 1);
        to[c] = (from + c % s.top_k) % s.experts;
    }
    Both *both = both_bytes(to, (size_t)choices * sizeof *to);
    free(to);
    return both;
}

static void router(void **state)
{
    (void)state;
    int count = rounds(24);
    Random r = {.seed = 101};
    for (int round = 0; round < count; round++) {
        RouterShape s = random_shape(&r);
        size_t choices = (size_t)s.rows * (size_t)s.top_k, scores = (size_t)s.rows * (size_t)s.experts;
        int group_rows = round % 3 ? s.rows : random_int(&r, 1, s.rows);
        size_t groups = (size_t)((s.rows + group_rows - 1) / group_rows);
        double z = round % 2 ? 0.01 : 0;
        Both *logits = both_random(&r, scores, IN_REAL), *bias = both_random(&r, (size_t)s.experts, IN_ACC);
        Both *choice = zero_bytes(choices * sizeof(int)), *weight = both_output(choices, IN_ACC);
        Both *slope = both_random(&r, groups * (size_t)s.experts, IN_ACC), *dweight = both_random(&r, choices, IN_ACC);
        Both *dlogits = both_output(scores, IN_REAL), *aux = both_output((size_t)s.rows, IN_ACC);
        bool biased = round % 3 == 1, sloped = round % 4 != 0, forced = round % 5 == 4;
        Both *to = forced_choices(&r, s);
        cpu.router_forward(HOST(choice), HOST(weight), HOST(logits), biased ? HOST(bias) : NULL,
                           forced ? HOST(to) : NULL, s);
        gpu.router_forward(DEVICE(choice), DEVICE(weight), DEVICE(logits), biased ? DEVICE(bias) : NULL,
                           forced ? DEVICE(to) : NULL, s);
        check_bytes("choices", choice, round);
        both_check("router weight", weight, 0);
        both_to_host(weight);
        cpu.router_backward(HOST(dlogits), HOST(aux), HOST(dweight), HOST(logits), HOST(choice), HOST(weight),
                            sloped ? HOST(slope) : NULL, group_rows, z, s);
        gpu.router_backward(DEVICE(dlogits), DEVICE(aux), DEVICE(dweight), DEVICE(logits), DEVICE(choice),
                            DEVICE(weight), sloped ? DEVICE(slope) : NULL, group_rows, z, s);
        both_check("router dlogits", dlogits, 0), both_check("router aux", aux, 1e-3);
        both_forget();
    }
}

static void slopes_and_counts(void **state)
{
    (void)state;
    int count = rounds(12);
    Random r = {.seed = 102};
    for (int round = 0; round < count; round++) {
        int seq = random_int(&r, 1, 90), n = seq * random_int(&r, 1, 6), k = random_int(&r, 1, 4), L = 3;
        int E = random_int(&r, k, 80);
        size_t table = (size_t)(L * (E + 1));
        int *choices = malloc((size_t)(n * k) * sizeof *choices);
        int64_t *counts = malloc(table * sizeof *counts);
        for (int c = 0; c < n * k; c++) choices[c] = random_int(&r, 0, E - 1);
        for (size_t c = 0; c < table; c++) counts[c] = (int64_t)random_int(&r, 0, 1 << 30) * 1000;
        Both *choice = both_bytes(choices, (size_t)(n * k) * sizeof *choices), *some = both_bytes(counts, table * 8);
        Both *sum = both_bytes(counts, table * 8), *slope = both_output((size_t)(n / seq * E), IN_ACC);
        Both *all = both_output((size_t)E, IN_ACC);
        cpu.add_counts(HOST(sum), HOST(some), (int)table), gpu.add_counts(DEVICE(sum), DEVICE(some), (int)table);
        check_bytes("counts", sum, round);
        cpu.count_slope(HOST(all), HOST(some), L, E, 0.3), gpu.count_slope(DEVICE(all), DEVICE(some), L, E, 0.3);
        cpu.sequence_slope(HOST(slope), HOST(choice), n, k, E, seq, 0.3);
        gpu.sequence_slope(DEVICE(slope), DEVICE(choice), n, k, E, seq, 0.3);
        both_check("slope of counts", all, 0), both_check("slope of sequences", slope, 0);
        free(choices), free(counts);
        both_forget();
    }
}

/* k different experts for each of n rows; experts from `used` on get none. */
static int *random_choices(Random *r, int n, int k, int used)
{
    int *choice = malloc(((size_t)n * (size_t)k + 1) * sizeof *choice);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < k; j++) {
            int e = random_int(r, 0, used - 1);
            for (int b = 0; b < j; b++)
                if (choice[i * k + b] == e) e = (e + 1) % used, b = -1;
            choice[i * k + j] = e;
        }
    return choice;
}

static void slots(void **state)
{
    (void)state;
    int count = rounds(24);
    Random r = {.seed = 103};
    for (int round = 0; round < count; round++) {
        int n = random_int(&r, 1, 900), E = random_int(&r, 1, round % 4 ? 40 : EXPERTS_MAX), k = random_int(&r, 1, 4);
        int width = round % 2 ? random_int(&r, 1, 90) : 8 * random_int(&r, 1, 40);
        if (k > E) k = E;
        int used = round % 3 ? E : k; /* all rows with the first experts */
        int capacity = round % 5 == 2 ? random_int(&r, 1, n) : 0;
        int *choices = random_choices(&r, n, k, used);
        size_t total = (size_t)n * (size_t)k, elements = total * (size_t)width, row_elements = (size_t)(n * width);
        Both *choice = both_bytes(choices, total * sizeof *choices), *slot = zero_bytes(total * sizeof(int));
        Both *first = zero_bytes((size_t)(E + 1) * sizeof(int)), *counts = zero_bytes((size_t)(E + 1) * 8);
        for (int twice = 0; twice < 2; twice++) { /* count adds */
            cpu.expert_slots(HOST(slot), HOST(first), HOST(counts), HOST(choice), n, k, E, capacity);
            gpu.expert_slots(DEVICE(slot), DEVICE(first), DEVICE(counts), DEVICE(choice), n, k, E, capacity);
        }
        check_bytes("slots", slot, round), check_bytes("first slots", first, round);
        check_bytes("counts", counts, round);

        Both *x = both_random(&r, row_elements, IN_REAL), *out = both_zero(elements, IN_REAL);
        Both *in = both_random(&r, elements, IN_REAL), *base = both_random(&r, row_elements, IN_REAL);
        Both *y = both_output(row_elements, IN_REAL), *weight = both_random(&r, total, IN_ACC);
        Both *din = both_zero(elements, IN_REAL), *dweight = both_output(total, IN_ACC);
        bool weighted = round % 2, based = round % 3 != 1;
        cpu.rows_to_slots(HOST(out), HOST(x), HOST(slot), n, k, width);
        gpu.rows_to_slots(DEVICE(out), DEVICE(x), DEVICE(slot), n, k, width);
        cpu.rows_from_slots(HOST(y), based ? HOST(base) : NULL, HOST(in), HOST(slot), weighted ? HOST(weight) : NULL, n,
                            k, width);
        gpu.rows_from_slots(DEVICE(y), based ? DEVICE(base) : NULL, DEVICE(in), DEVICE(slot),
                            weighted ? DEVICE(weight) : NULL, n, k, width);
        cpu.rows_from_slots_backward(HOST(din), HOST(dweight), HOST(x), HOST(in), HOST(slot), HOST(weight), n, k,
                                     width);
        gpu.rows_from_slots_backward(DEVICE(din), DEVICE(dweight), DEVICE(x), DEVICE(in), DEVICE(slot), DEVICE(weight),
                                     n, k, width);
        both_check("rows to slots", out, 0), both_check("rows from slots", y, 0);
        both_check("slots din", din, 0), both_check("slots dweight", dweight, 0);
        cpu.add_rows(HOST(base), HOST(x), row_elements), gpu.add_rows(DEVICE(base), DEVICE(x), row_elements);
        both_check("rows added", base, 0);
        free(choices);
        both_forget();
    }
}

/* Sizes of groups: random ones, some empty, or all rows in one. */
static int *random_first(Random *r, int groups, int most, int style)
{
    int *first = calloc((size_t)groups + 1, sizeof *first), only = random_int(r, 0, groups - 1);
    for (int g = 0; g < groups; g++) {
        int rows = style == 0 ? random_int(r, 0, most) : style == 1 ? (g == only) * most : random_int(r, 0, 1) * most;
        first[g + 1] = first[g] + rows;
    }
    return first;
}

static void grouped(void **state)
{
    (void)state;
    int count = rounds(36);
    Random r = {.seed = 104};
    for (int round = 0; round < count; round++) {
        bool suits = round % 2 == 0; /* sizes that the tensor cores' kernels take */
        int groups = random_int(&r, 1, 9), in = random_int(&r, 1, 70) * (suits ? 8 : 1);
        int out = random_int(&r, 1, 70) * (suits ? 8 : 1);
        int *offsets = random_first(&r, groups, random_int(&r, 1, 300), round % 3), rows = offsets[groups];
        int room = rows + random_int(&r, 0, 40);
        size_t weights = (size_t)groups * (size_t)out * (size_t)in;
        Both *first = both_bytes(offsets, (size_t)(groups + 1) * sizeof *offsets);
        Both *x = both_random(&r, (size_t)room * (size_t)in, IN_REAL), *w = both_random(&r, weights, IN_REAL);
        Both *dy = both_random(&r, (size_t)room * (size_t)out, IN_REAL), *dw = both_random(&r, weights, IN_ACC);
        Both *y = both_zero((size_t)room * (size_t)out, IN_REAL), *dx = both_zero((size_t)room * (size_t)in, IN_REAL);
        /* what lies past the last row has no meaning, and must not matter */
        size_t past = (size_t)(room - rows);
        gpu.fill((char *)DEVICE(x) + (size_t)rows * (size_t)in * sizeof(real), 0xff, past * (size_t)in * sizeof(real));
        gpu.fill((char *)DEVICE(dy) + (size_t)rows * (size_t)out * sizeof(real), 0xff,
                 past * (size_t)out * sizeof(real));
        cpu.grouped_forward(HOST(y), HOST(x), HOST(w), HOST(first), groups, room, in, out);
        gpu.grouped_forward(DEVICE(y), DEVICE(x), DEVICE(w), DEVICE(first), groups, room, in, out);
        cpu.grouped_backward_input(HOST(dx), HOST(dy), HOST(w), HOST(first), groups, room, in, out);
        gpu.grouped_backward_input(DEVICE(dx), DEVICE(dy), DEVICE(w), DEVICE(first), groups, room, in, out);
        cpu.grouped_backward_weight(HOST(dw), HOST(dy), HOST(x), HOST(first), groups, room, in, out);
        gpu.grouped_backward_weight(DEVICE(dw), DEVICE(dy), DEVICE(x), DEVICE(first), groups, room, in, out);
        both_check("grouped y", y, 0), both_check("grouped dx", dx, 0), both_check("grouped dw", dw, 0);
        free(offsets);
        both_forget();
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(router),
    cmocka_unit_test(slopes_and_counts),
    cmocka_unit_test(slots),
    cmocka_unit_test(grouped),
};

int main(int argc, char **argv)
{
    cpu = reference_kernels();
    there_is_a_gpu = both_open();
    int failed = testing_run("test_cuda_moe", tests, sizeof tests / sizeof tests[0], argc, argv);
    if (there_is_a_gpu) both_report();
    return failed;
}
