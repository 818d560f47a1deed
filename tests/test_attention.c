/* ranks: 1  builds: fp64 fp32 fp32-noblas fp64-debug fp32-san
 *
 * Attention: gradients against finite differences, variants against each other, folds over blocks of keys, queries that
 * see no key, and scores whose exponentials overflow. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "gradient.h"
#include "testing.h"
#include "observe/verify.h"

static Kernels kernels;

typedef struct {
    AttentionShape shape;
    Rows rows;
    size_t nq, nkv; /* elements of q and of k */
    real *q, *k, *v, *out, *dout;
    acc *lse, *dot;
} Attention;

static Attention attention_new(Random *r, unsigned flags)
{
    int sequences = random_int(r, 1, 3), seq = random_int(r, 1, 90 / sequences);
    Attention p = {.rows = random_rows(r, sequences, seq, 10, flags)};
    int K = random_int(r, 1, 3), H = K * random_int(r, 1, 3), D = 2 * random_int(r, 1, 20), n = p.rows.count;
    p.shape = (AttentionShape){
        H, K, D, n, n, p.rows.lo, p.rows.hi, p.rows.id, (size_t)H * D, (size_t)K * D, ATTENTION_FIRST | ATTENTION_LAST};
    p.nq = (size_t)n * H * D, p.nkv = (size_t)n * K * D;
    p.q = random_array(r, p.nq), p.k = random_array(r, p.nkv), p.v = random_array(r, p.nkv);
    p.out = random_array(r, p.nq), p.dout = random_array(r, p.nq);
    p.lse = zeros((size_t)n * H), p.dot = zeros((size_t)n * H);
    return p;
}

static void attention_free(Attention *p)
{
    rows_free_host(&p->rows);
    free(p->q), free(p->k), free(p->v), free(p->out), free(p->dout), free(p->lse), free(p->dot);
}

static double attention_scalar(void *problem)
{
    Attention *p = problem;
    kernels.attention_forward(p->out, NULL, p->lse, p->q, p->k, p->v, p->shape);
    return weighted(p->out, p->dout, p->nq);
}

static void attention_gradients(void **state)
{
    (void)state;
    Random r = {.seed = 5};
    for (int round = 0; round < 12; round++) {
        Attention p = attention_new(&r, (unsigned)round % 4);
        real *dq = random_array(&r, p.nq), *dk = random_array(&r, p.nkv), *dv = random_array(&r, p.nkv);
        attention_scalar(&p);
        kernels.attention_backward(dq, NULL, dk, dv, NULL, NULL, p.dot, p.dout, p.out, p.lse, p.q, p.k, p.v, p.shape);
        check_gradient("dq", attention_scalar, &p, p.q, dq, (int)p.nq);
        check_gradient("dk", attention_scalar, &p, p.k, dk, (int)p.nkv);
        check_gradient("dv", attention_scalar, &p, p.v, dv, (int)p.nkv);
        free(dq), free(dk), free(dv);
        attention_free(&p);
    }
}

static double largest_of(const real *x, size_t n)
{
    double largest = 0;
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)x[i]));
    return largest;
}

/* The gradients of two variants agree. Errors are measured against the largest entry of all three gradients, because
 * one of them can be zero in theory: dq is, for a query that sees one key. */
static void check_same_gradients(real *const a[3], real *const b[3], const size_t n[3])
{
    double largest = 0;
    for (int i = 0; i < 3; i++) largest = fmax(largest, largest_of(b[i], n[i]));
    for (int i = 0; i < 3; i++) {
        double difference, unused;
        verify_compare(a[i], b[i], n[i], &difference, &unused);
        assert_true(difference <= ROUNDING * largest);
    }
}

static void attention_variants(void **state)
{
    (void)state;
    Random r = {.seed = 6};
    for (int round = 0; round < 30; round++) {
        Attention p = attention_new(&r, (unsigned)round % 4);
        real *out = random_array(&r, p.nq), *dq1 = random_array(&r, p.nq), *dq2 = random_array(&r, p.nq);
        real *dk1 = random_array(&r, p.nkv), *dk2 = random_array(&r, p.nkv), *dv1 = random_array(&r, p.nkv);
        real *dv2 = random_array(&r, p.nkv);
        acc *lse = zeros((size_t)p.shape.queries * p.shape.heads);
        attention_scalar(&p);
        attention_forward_naive(out, NULL, lse, p.q, p.k, p.v, p.shape);
        assert_true(error_of(p.out, out, p.nq) <= ROUNDING);
        assert_true(error_of(p.lse, lse, (size_t)p.shape.queries * p.shape.heads) <= ROUNDING);
        kernels.attention_backward(dq1, NULL, dk1, dv1, NULL, NULL, p.dot, p.dout, out, lse, p.q, p.k, p.v, p.shape);
        attention_backward_naive(dq2, NULL, dk2, dv2, NULL, NULL, p.dot, p.dout, out, lse, p.q, p.k, p.v, p.shape);
        check_same_gradients((real *[]){dq1, dk1, dv1}, (real *[]){dq2, dk2, dv2}, (size_t[]){p.nq, p.nkv, p.nkv});
        free(out), free(lse), free(dq1), free(dq2), free(dk1), free(dk2), free(dv1), free(dv2);
        attention_free(&p);
    }
}

/* One call for all keys gives the same result as one call per block of keys, the last block first. */
static void attention_folds(void **state)
{
    (void)state;
    Random r = {.seed = 7};
    for (int round = 0; round < 20; round++) {
        Attention p = attention_new(&r, (unsigned)round % 4);
        int n = p.shape.keys, H = p.shape.heads, blocks = n < 3 ? n : random_int(&r, 1, 3);
        size_t stats = (size_t)n * H;
        acc *fold = zeros(p.nq), *lse = zeros(stats), *dq_fold = zeros(p.nq), *dk_fold = zeros(p.nkv);
        acc *dv_fold = zeros(p.nkv);
        real *out = random_array(&r, p.nq), *dq = random_array(&r, p.nq), *dk = random_array(&r, p.nkv);
        real *dv = random_array(&r, p.nkv), *dq1 = random_array(&r, p.nq);
        attention_scalar(&p);
        kernels.attention_backward(dq1, NULL, dk, dv, NULL, NULL, p.dot, p.dout, p.out, p.lse, p.q, p.k, p.v, p.shape);

        for (int pass = 0; pass < 2; pass++)
            for (int b = blocks - 1; b >= 0; b--) { /* the last block comes first */
                int j0 = n * b / blocks, j1 = n * (b + 1) / blocks;
                AttentionShape s = p.shape;
                s.keys = j1 - j0;
                s.key_id = p.rows.id + j0;
                s.flags = (b == blocks - 1 ? ATTENTION_FIRST : 0) | (b == 0 ? ATTENTION_LAST : 0);
                const real *k = p.k + j0 * s.kv_stride, *v = p.v + j0 * s.kv_stride;
                acc *dkb = dk_fold + j0 * s.kv_stride, *dvb = dv_fold + j0 * s.kv_stride;
                if (pass == 0)
                    kernels.attention_forward(out, fold, lse, p.q, k, v, s);
                else
                    kernels.attention_backward(dq, dq_fold, NULL, NULL, dkb, dvb, p.dot, p.dout, out, lse, p.q, k, v,
                                               s);
            }
        assert_true(error_of(out, p.out, p.nq) <= ROUNDING);
        assert_true(error_of(lse, p.lse, stats) <= ROUNDING);
        check_same_gradients((real *[]){dq, dk_fold, dv_fold}, (real *[]){dq1, dk, dv}, (size_t[]){p.nq, p.nkv, p.nkv});
        free(fold), free(lse), free(dq_fold), free(dk_fold), free(dv_fold), free(out), free(dq), free(dk), free(dv);
        free(dq1);
        attention_free(&p);
    }
}

/* A query that sees no key has lse = -inf, out = 0 and a gradient of exactly 0. It adds nothing to dk and dv. */
static void attention_blind_row(void **state)
{
    (void)state;
    Random r = {.seed = 8};
    Attention p = attention_new(&r, 0);
    int n = p.shape.queries, H = p.shape.heads, D = p.shape.head_dim;
    for (int i = 0; i < n; i++) p.rows.lo[i] = p.rows.hi[i] = i; /* no query sees a key */
    real *dq = random_array(&r, p.nq), *dk = random_array(&r, p.nkv), *dv = random_array(&r, p.nkv);
    kernels.attention_forward(p.out, NULL, p.lse, p.q, p.k, p.v, p.shape);
    kernels.attention_backward(dq, NULL, dk, dv, NULL, NULL, p.dot, p.dout, p.out, p.lse, p.q, p.k, p.v, p.shape);
    for (int i = 0; i < n * H; i++) assert_true(isinf(p.lse[i]) && p.lse[i] < 0);
    for (int i = 0; i < n * H * D; i++) assert_true(p.out[i] == 0 && dq[i] == 0);
    for (size_t i = 0; i < p.nkv; i++) assert_true(dk[i] == 0 && dv[i] == 0);
    free(dq), free(dk), free(dv);
    attention_free(&p);
}

/* Several tiles of keys. The scores grow from tile to tile, so the kernel must rescale its running result. */
static void attention_many_tiles(void **state)
{
    (void)state;
    Random r = {.seed = 14};
    for (int round = 0; round < 3; round++) {
        Rows rows = random_rows(&r, 1, 450, 10, round ? ROWS_WINDOW : 0);
        int n = rows.count, D = 8;
        size_t count = (size_t)n * D;
        real *q = random_array(&r, count), *k = random_array(&r, count), *v = random_array(&r, count);
        real *out1 = random_array(&r, count), *out2 = random_array(&r, count);
        acc *lse1 = zeros(n), *lse2 = zeros(n);
        for (size_t i = 0; i < count; i++) k[i] *= (real)(1 + 5 * (double)i / (double)count);
        AttentionShape s = {1, 1, D, n, n, rows.lo, rows.hi, rows.id, D, D, ATTENTION_FIRST | ATTENTION_LAST};
        kernels.attention_forward(out1, NULL, lse1, q, k, v, s);
        attention_forward_naive(out2, NULL, lse2, q, k, v, s);
        assert_true(error_of(out1, out2, count) <= ROUNDING);
        assert_true(error_of(lse1, lse2, (size_t)n) <= ROUNDING);
        free(q), free(k), free(v), free(out1), free(out2), free(lse1), free(lse2);
        rows_free_host(&rows);
    }
}

/* Scores near 1000 and -1000: their exponentials are outside the range of a double, but the merged result is finite. */
static void attention_large_scores(void **state)
{
    (void)state;
    real q[2] = {100, 0}, k[4] = {15, 0, -15, 0}, v[4] = {1, 2, 3, 4}, out[2];
    acc fold[2], lse[1];
    int lo = 0, hi = 2, id[2] = {0, 1};
    AttentionShape s = {1, 1, 2, 1, 1, &lo, &hi, id, 2, 2, ATTENTION_FIRST};
    for (int first = 0; first < 2; first++) { /* each of the two keys comes first once */
        s.key_id = id + first;
        s.flags = ATTENTION_FIRST;
        kernels.attention_forward(out, fold, lse, q, k + 2 * first, v + 2 * first, s);
        s.key_id = id + !first;
        s.flags = ATTENTION_LAST;
        kernels.attention_forward(out, fold, lse, q, k + 2 * !first, v + 2 * !first, s);
        assert_true(fabs((double)lse[0] - 1500 / sqrt(2)) < 1e-3);
        assert_true(fabs((double)out[0] - 1) < 1e-6 && fabs((double)out[1] - 2) < 1e-6);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(attention_gradients),  cmocka_unit_test(attention_variants),
    cmocka_unit_test(attention_folds),      cmocka_unit_test(attention_blind_row),
    cmocka_unit_test(attention_many_tiles), cmocka_unit_test(attention_large_scores),
};

int main(int argc, char **argv)
{
    kernels = kernels_cpu();
    return testing_run("test_attention", tests, sizeof tests / sizeof tests[0], argc, argv);
}
