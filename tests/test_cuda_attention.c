/* ranks: 1  builds: fp64 fp32 bf16
 *
 * Every variant of attention on the GPU against the CPU's attention in fp64: random masks, packed documents, windows,
 * queries that see no key, grouped heads, keys in one block or folded in several. Without a GPU the tests are skipped
 * and say so. QUICK=1 runs few rounds, for compute-sanitizer. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "both.h"
#include "base/error.h"

static Kernels cpu; /* in fp64 */
static bool there_is_a_gpu;
static bool flash; /* is flash attention under test? */

static void use(const char *variant)
{
    if (!there_is_a_gpu) skip();
    flash = strcmp(variant, "attention=flash") == 0;
    bool have = false;
    for (int v = 0; v < gpu.variant_count; v++) have = have || strcmp(gpu.variants[v].name, variant) == 0;
    if (!have) skip();
    assert_null(kernels_choose(&gpu, variant));
}

/* A head size that the variant under test has a kernel for. */
static int random_head_dim(Random *r)
{
    return flash ? 16 << random_int(r, 0, 3) : 2 * random_int(r, 1, 70);
}

/* One random case: the inputs, the outputs and the gradients of attention. */
typedef struct {
    Rows rows;
    int H, K, D;
    AttentionShape host, device; /* all keys in one call */
    Both *q, *k, *v, *dout, *out, *lse, *dot, *dq, *dk, *dv;
} Case;

static Case random_case(Random *r, int round, int longest)
{
    Case c = {.rows = random_rows(r, random_int(r, 1, 3), random_int(r, 1, longest), 10, (unsigned)round % 4)};
    int n = c.rows.count;
    c.K = random_int(r, 1, 2), c.H = c.K * random_int(r, 1, 3), c.D = random_head_dim(r);
    if (round % 6 == 5) /* some queries see no key */
        for (int i = 0; i < n; i += random_int(r, 1, 40)) c.rows.lo[i] = c.rows.hi[i];
    size_t ints = (size_t)n * sizeof(int);
    Both *lo = both_bytes(c.rows.lo, ints), *hi = both_bytes(c.rows.hi, ints), *id = both_bytes(c.rows.id, ints);
    size_t nq = (size_t)n * c.H * c.D, nkv = (size_t)n * c.K * c.D;
    c.q = both_random(r, nq, IN_REAL), c.k = both_random(r, nkv, IN_REAL), c.v = both_random(r, nkv, IN_REAL);
    c.dout = both_random(r, nq, IN_REAL), c.out = both_output(nq, IN_REAL);
    c.lse = both_output((size_t)n * c.H, IN_ACC), c.dot = both_output((size_t)n * c.H, IN_ACC);
    c.dq = both_output(nq, IN_REAL), c.dk = both_output(nkv, IN_REAL), c.dv = both_output(nkv, IN_REAL);
    c.host = (AttentionShape){.heads = c.H,
                              .kv_heads = c.K,
                              .head_dim = c.D,
                              .queries = n,
                              .keys = n,
                              .lo = HOST(lo),
                              .hi = HOST(hi),
                              .key_id = HOST(id),
                              .q_stride = (size_t)c.H * c.D,
                              .kv_stride = (size_t)c.K * c.D,
                              .flags = ATTENTION_FIRST | ATTENTION_LAST};
    c.device = c.host;
    c.device.lo = DEVICE(lo), c.device.hi = DEVICE(hi), c.device.key_id = DEVICE(id);
    cpu.attention_forward(HOST(c.out), NULL, HOST(c.lse), HOST(c.q), HOST(c.k), HOST(c.v), c.host);
    cpu.attention_backward(HOST(c.dq), NULL, HOST(c.dk), HOST(c.dv), NULL, NULL, HOST(c.dot), HOST(c.dout), HOST(c.out),
                           HOST(c.lse), HOST(c.q), HOST(c.k), HOST(c.v), c.host);
    return c;
}

static void end_case(Case *c)
{
    rows_free_host(&c->rows);
    both_forget();
}

/* A gradient of attention is a difference of large terms. So its error is measured against the largest entry of all
 * three gradients. */
static double scale_of(const Case *c)
{
    return fmax(both_largest(c->dq), fmax(both_largest(c->dk), both_largest(c->dv)));
}

static void in_one_call(const char *variant)
{
    use(variant);
    Random r = {.seed = 65};
    int rounds = getenv("QUICK") ? 6 : 60 * testing_grid();
    for (int round = 0; round < rounds; round++) {
        Case c = random_case(&r, round, round % 10 == 9 && !getenv("QUICK") ? 700 : 90);
        size_t bytes = c.out->count * sizeof(real);
        void *once = malloc(bytes), *twice = malloc(bytes);
        for (int time = 0; time < 2; time++) {
            gpu.attention_forward(DEVICE(c.out), NULL, DEVICE(c.lse), DEVICE(c.q), DEVICE(c.k), DEVICE(c.v), c.device);
            gpu.attention_backward(DEVICE(c.dq), NULL, DEVICE(c.dk), DEVICE(c.dv), NULL, NULL, DEVICE(c.dot),
                                   DEVICE(c.dout), DEVICE(c.out), DEVICE(c.lse), DEVICE(c.q), DEVICE(c.k), DEVICE(c.v),
                                   c.device);
            gpu.download(time ? twice : once, DEVICE(c.dq), bytes);
        }
        assert_memory_equal(once, twice, bytes);
        double among = scale_of(&c);
        both_check("out", c.out, 0), both_check("lse", c.lse, 1);
        both_check("dq", c.dq, among), both_check("dk", c.dk, among), both_check("dv", c.dv, among);
        free(once), free(twice);
        end_case(&c);
    }
}

/* Keys in up to four blocks. In some blocks no query sees a key. dk and dv add to the numbers that they hold before. */
static void folded(const char *variant)
{
    use(variant);
    Random r = {.seed = 66};
    int rounds = getenv("QUICK") ? 4 : 30 * testing_grid();
    for (int round = 0; round < rounds; round++) {
        Case c = random_case(&r, round, 120);
        int n = c.rows.count, parts = random_int(&r, 2, 4);
        size_t width = (size_t)c.K * c.D;
        Both *fold = both_output(c.q->count, IN_ACC), *dq_fold = both_output(c.q->count, IN_ACC);
        Both *dk = both_random(&r, c.k->count, IN_ACC), *dv = both_random(&r, c.v->count, IN_ACC);
        for (size_t i = 0; i < c.k->count; i++) {
            ((double *)HOST(dk))[i] += ((double *)HOST(c.dk))[i];
            ((double *)HOST(dv))[i] += ((double *)HOST(c.dv))[i];
        }
        for (int pass = 0; pass < 2; pass++)
            for (int part = 0; part < parts; part++) {
                int first = n * part / parts, keys = n * (part + 1) / parts - first;
                AttentionShape s = c.device;
                s.key_id += first, s.keys = keys;
                s.flags = (part == 0 ? ATTENTION_FIRST : 0) | (part == parts - 1 ? ATTENTION_LAST : 0);
                real *k = (real *)DEVICE(c.k) + first * width, *v = (real *)DEVICE(c.v) + first * width;
                acc *dk_part = (acc *)DEVICE(dk) + first * width, *dv_part = (acc *)DEVICE(dv) + first * width;
                if (pass == 0)
                    gpu.attention_forward(DEVICE(c.out), DEVICE(fold), DEVICE(c.lse), DEVICE(c.q), k, v, s);
                else
                    gpu.attention_backward(DEVICE(c.dq), DEVICE(dq_fold), NULL, NULL, dk_part, dv_part, DEVICE(c.dot),
                                           DEVICE(c.dout), DEVICE(c.out), DEVICE(c.lse), DEVICE(c.q), k, v, s);
            }
        double among = scale_of(&c);
        both_check("out folded", c.out, 0), both_check("lse folded", c.lse, 1);
        both_check("dq folded", c.dq, among);
        both_check_as(IN_REAL, "dk folded", dk, among), both_check_as(IN_REAL, "dv folded", dv, among);
        end_case(&c);
    }
}

static void naive(void **state)
{
    (void)state;
    in_one_call("attention=naive");
}

static void naive_folded(void **state)
{
    (void)state;
    folded("attention=naive");
}

static void flash_one(void **state)
{
    (void)state;
    in_one_call("attention=flash");
}

static void flash_folded(void **state)
{
    (void)state;
    folded("attention=flash");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(naive),
    cmocka_unit_test(naive_folded),
    cmocka_unit_test(flash_one),
    cmocka_unit_test(flash_folded),
};

int main(int argc, char **argv)
{
    cpu = reference_kernels();
    there_is_a_gpu = both_open();
    int failed = testing_run("test_cuda_attention", tests, sizeof tests / sizeof tests[0], argc, argv);
    if (there_is_a_gpu) both_report();
    return failed;
}
