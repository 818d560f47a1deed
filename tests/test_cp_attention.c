/* ranks: 8  builds: fp64 fp32-san
 *
 * The sequence seam alone: attention of ranks that share sequences, forward and backward, against one kernel call over
 * all rows, on the random configurations of test_cp. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "case.h"
#include "data/batch.h"

enum { CASES = 70 };
static const double BOUND = sizeof(acc) == 8 ? 1e-13 : 1e-4;

/* One call over all rows of the micro-step, the same on every rank. */
typedef struct {
    int n, H, K, D;
    real *qkv, *dqkv, *out, *dout; /* [n, (H + 2K) D] and [n, H D] */
    acc *lse, *dot;                /* [n, H] */
} Attention;

static Attention attention_create(Random *r, int n, const ModelConfig *m)
{
    Attention a = {.n = n, .H = m->heads, .K = m->kv_heads, .D = m->head_dim};
    size_t rows = (size_t)n, all = rows * (size_t)((a.H + 2 * a.K) * a.D), some = rows * (size_t)(a.H * a.D);
    a.qkv = random_array(r, all + 1);
    a.dout = random_array(r, some + 1);
    a.dqkv = calloc(all + 1, sizeof(real));
    a.out = calloc(some + 1, sizeof(real));
    a.lse = calloc(rows * (size_t)a.H + 1, sizeof(acc));
    a.dot = calloc(rows * (size_t)a.H + 1, sizeof(acc));
    return a;
}

static void attention_free(Attention *a)
{
    void *all[] = {a->qkv, a->dqkv, a->out, a->dout, a->lse, a->dot};
    for (int i = 0; i < 6; i++) free(all[i]);
}

static void one_call(Attention *a, const Kernels *kernels, const Rows *rows)
{
    size_t stride = (size_t)((a->H + 2 * a->K) * a->D);
    const real *k = a->qkv + a->H * a->D, *v = k + a->K * a->D;
    AttentionShape shape = {.heads = a->H,
                            .kv_heads = a->K,
                            .head_dim = a->D,
                            .queries = a->n,
                            .keys = a->n,
                            .lo = rows->lo,
                            .hi = rows->hi,
                            .key_id = rows->id,
                            .q_stride = stride,
                            .kv_stride = stride,
                            .flags = ATTENTION_FIRST | ATTENTION_LAST};
    kernels->attention_forward(a->out, NULL, a->lse, a->qkv, k, v, shape);
    kernels->attention_backward(a->dqkv, NULL, a->dqkv + a->H * a->D, a->dqkv + (a->H + a->K) * a->D, NULL, NULL,
                                a->dot, a->dout, a->out, a->lse, a->qkv, k, v, shape);
}

/* Copies the rows that this rank has, by their ids, out of a matrix of all rows. */
static void take_rows(real *mine, const real *all, const Rows *rows, const Rows *whole, size_t width)
{
    for (int i = 0; i < rows->count; i++)
        memcpy(mine + (size_t)i * width, all + (size_t)(rows->id[i] - whole->id[0]) * width, width * sizeof *mine);
}

/* max|mine - all| over this rank's rows, relative to the largest of all. */
static double difference(const real *mine, const real *all, const Rows *rows, const Rows *whole, size_t width)
{
    double worst = 0, largest = 0;
    for (size_t i = 0; i < (size_t)whole->count * width; i++) largest = fmax(largest, fabs((double)all[i]));
    for (int i = 0; i < rows->count; i++)
        for (size_t c = 0; c < width; c++) {
            double x = (double)all[(size_t)(rows->id[i] - whole->id[0]) * width + c];
            worst = fmax(worst, fabs((double)mine[(size_t)i * width + c] - x));
        }
    return largest > 0 ? worst / largest : worst;
}

static double run(const Case *c, const CaseGroups *g, const Data *data, Random *r)
{
    Kernels kernels = kernels_cpu();
    DataOrder order = training_order(&c->t, 1);
    Batch whole = batch_create(data, order, 1, (BatchShare){0}, &kernels);
    Batch batch = batch_create(data, order, 1, batch_share(&g->mesh, context_cut(&c->context)), &kernels);
    batch_read(&whole, 0);
    batch_read(&batch, 0);
    Rows rows = batch_micro_step(&batch, 0), all = batch_micro_step(&whole, 0);
    Attention a = attention_create(r, all.count, &c->t.model), mine = attention_create(r, rows.count, &c->t.model);
    size_t width = (size_t)((a.H + 2 * a.K) * a.D), heads = (size_t)(a.H * a.D);
    take_rows(mine.qkv, a.qkv, &rows, &all, width);
    take_rows(mine.dout, a.dout, &rows, &all, heads);
    one_call(&a, &kernels, &all);

    Model *model = model_create(&c->t.model, &kernels, rows.count);
    ContextParallel context = context_create(model, g->of.context, &c->context, order, rows.count);
    SequenceSeam seam = context_seam(&context);
    seam.forward(seam.self, mine.out, mine.lse, mine.qkv, &rows);
    seam.backward(seam.self, mine.dqkv, mine.dot, mine.dout, mine.out, mine.lse, mine.qkv, &rows);
    double worst = difference(mine.out, a.out, &rows, &all, heads);
    worst = fmax(worst, difference(mine.dqkv, a.dqkv, &rows, &all, width));

    context_free(&context);
    model_free(model);
    attention_free(&a), attention_free(&mine);
    batch_free(&whole), batch_free(&batch);
    return worst;
}

static void equals_one_call(void **state)
{
    (void)state;
    Random r = {.seed = 102};
    const char *tokens = training_tokens();
    double largest = 0;
    for (int i = 0; i < CASES * testing_grid(); i++) {
        Case c = random_context_case(&r, i);
        while (c.cp == 1) c = random_context_case(&r, i + 1);
        c.dp = c.t.accumulate = 1;
        Random same = {.seed = (uint64_t)i}; /* all ranks draw the same matrices */
        const CaseGroups *g = case_groups(&c);
        Data *data = NULL;
        double error = 0;
        if (g) {
            CHECK(data_open(&data, tokens, c.t.model.vocab, c.t.seq, 0, 1) == NULL);
            error = run(&c, g, data, &same);
            data_close(data);
        }
        assert_together(error <= BOUND, "case %d: off by %.1e: %s", i, error, describe_case(&c));
        largest = fmax(largest, error);
    }
    printf("%d configurations: off by at most %.1e on rank 0\n", CASES * testing_grid(), largest);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(equals_one_call)};
TESTING_MAIN(tests)
