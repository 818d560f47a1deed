/* ranks: 8  builds: fp64 fp32 fp64-debug
 *
 * tiny-ddp against a single device, on random configurations of the first 1 to 8 ranks. Bytes sent and held equal the
 * formulas. The bits are the same if only the time of waiting changes. The loss curve is the same on any number of
 * ranks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/batch.h"
#include "base/error.h"
#include "case.h"
#include "comm/mesh.h"
#include "model/model.h"

#if !defined(PRECISION_FP64) || defined(DEBUG)
enum { CASES = 18 }; /* fewer: debug builds are slow, and the proof is that of fp64 */
#else
enum { CASES = 120 };
#endif

static void equals_single_device(void **state)
{
    (void)state;
    Random r = {.seed = 31};
    double gradient = 0, weight = 0;
    for (int i = 0; i < CASES * testing_grid(); i++) {
        Case c = random_ddp_case(&r, i);
        Outcome out = check_case(&c, i, ROUNDING);
        gradient = fmax(gradient, out.gradient);
        weight = fmax(weight, out.weight);
    }
    printf("%d configurations: gradients off by at most %.1e, weights after two steps by %.1e\n",
           CASES * testing_grid(), gradient, weight);
}

/* Splits the batch over the ranks of the group. */
static BatchShare group_share(Group *group)
{
    return (BatchShare){.reader = group_rank(group), .readers = group_size(group), .rows_group = group};
}

/* Under every mesh micro-step m is sequences [m B/A, (m+1) B/A), and rank r reads the r-th part of them. */
static void batch_is_cut_by_micro_step(void **state)
{
    (void)state;
    enum { SEQ = 5, ACCUMULATE = 3 };
    Group *world = comm_world();
    int n = group_size(world), me = group_rank(world), B = 2 * n * ACCUMULATE;
    Kernels kernels = kernels_cpu();
    Data *data;
    CHECK(data_open(&data, training_tokens(), 31, SEQ, 0, 1) == NULL);
    DataOrder order = {.seed = 2, .batch = B, .seq = SEQ};
    Batch batch = batch_create(data, order, ACCUMULATE, group_share(world), &kernels);
    batch_read(&batch, 4);
    Rows want = rows_create_host(2 * SEQ);
    bool good = batch.counted == B * SEQ;
    for (int m = 0; m < ACCUMULATE; m++) {
        Rows rows = batch_micro_step(&batch, m);
        data_read(data, order, 4, m * (B / ACCUMULATE) + 2 * me, 2, &want);
        good = good && memcmp(rows.token, want.token, 2 * SEQ * sizeof(int)) == 0 &&
               memcmp(rows.id, want.id, 2 * SEQ * sizeof(int)) == 0;
    }
    assert_together(good, "these are not this rank's rows");
    rows_free_host(&want);
    batch_free(&batch);
    data_close(data);
}

/* --- whole runs: a fixed model, several steps, and a rank that may be slow --- */

typedef struct {
    Ddp *ddp;
    ParameterSeam inner;
    int slow_rank; /* this rank sleeps before ddp's hook; -1: no rank does */
} Delay;

static void delayed_after_backward(void *self, int unit)
{
    Delay *d = self;
    if (group_rank(d->ddp->group) == d->slow_rank) usleep(20000);
    if (d->inner.after_backward) d->inner.after_backward(d->inner.self, unit);
    for (int b = 0; b < d->ddp->buckets && !d->ddp->options.overlap; b++) CHECK(!d->ddp->bucket[b].work);
}

/* Trains a small model on the first `ranks` ranks. Returns its weights, which the caller frees, and fills
 * losses[steps]. */
static real *train_run(int ranks, DdpOptions options, int accumulate, int slow_rank, int steps, double *losses,
                       size_t *count)
{
    Group *group = first_ranks(ranks);
    const char *path = training_tokens();
    *count = 0;
    if (!group) return NULL;
    ModelConfig config = {.layers = 3,
                          .width = 12,
                          .heads = 2,
                          .kv_heads = 1,
                          .head_dim = 6,
                          .ff = 20,
                          .vocab = 31,
                          .max_seq = 9,
                          .tied = true,
                          .theta = 1e4,
                          .eps = 1e-5,
                          .init_std = 0.2};
    Kernels kernels = kernels_cpu();
    Data *data;
    CHECK(data_open(&data, path, 31, 9, 0, 1) == NULL);
    Batch batch = batch_create(data, (DataOrder){.seed = 9, .batch = 144, .seq = 9, .ignore = 0.4}, accumulate,
                               group_share(group), &kernels);
    Model *model = model_create(&config, &kernels, batch.sequences * 9);
    params_init(&model->params, &kernels, 4);
    Ddp ddp = ddp_create(&model->params, &model->micro_step, group, options);
    Delay delay = {&ddp, ddp_seam(&ddp), slow_rank};
    model->seams.parameters = (ParameterSeam){.self = &delay, .after_backward = delayed_after_backward};
    Optimizer o = optimizer_create(
        (OptimizerConfig){
            .lr = 1e-2, .steps = steps, .weight_decay = 0.1, .clip = 0.5, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8},
        &model->params, &kernels);
    for (long step = 0; step < steps; step++) {
        batch_read(&batch, step);
        model_zero_grads(model);
        for (int m = 0; m < accumulate; m++) {
            Rows rows = batch_micro_step(&batch, m);
            model_begin(model, m, accumulate);
            model_forward(model, model->activations, &rows);
            model_loss(model, model->activations, batch_scale(&batch));
            model_backward(model, model->activations);
        }
        ddp_finish(&ddp);
        double loss = model_read_loss(model);
        comm_all_reduce(group, &loss, 1, COMM_DOUBLE, COMM_SUM);
        optimizer_measure(&o, &model->params, step);
        optimizer_step(&o, &model->params);
        losses[step] = loss;
    }
    *count = model->params.count;
    real *weights = malloc(*count * sizeof *weights);
    memcpy(weights, model->params.weights, *count * sizeof *weights);
    ddp_free(&ddp);
    optimizer_free(&o);
    model_free(model);
    batch_free(&batch);
    data_close(data);
    return weights;
}

/* Two runs on the same mesh have the same bits, with overlap and without, and also if one rank is slow. */
static void same_bits(void **state)
{
    (void)state;
    enum { STEPS = 3 };
    const int ranks[] = {1, 3, 8};
    for (int n = 0; n < 3; n++)
        for (int accumulate = 1; accumulate <= 3; accumulate += 2) {
            DdpOptions overlap = {.overlap = 1, .bucket_mb = 0.001}, waits = {.overlap = 0, .bucket_mb = 0.001};
            double losses[4][STEPS] = {{0}};
            size_t count;
            real *w[4] = {
                train_run(ranks[n], overlap, accumulate, -1, STEPS, losses[0], &count),
                train_run(ranks[n], overlap, accumulate, -1, STEPS, losses[1], &count),
                train_run(ranks[n], waits, accumulate, -1, STEPS, losses[2], &count),
                train_run(ranks[n], overlap, accumulate, ranks[n] - 1, STEPS, losses[3], &count),
            };
            for (int k = 1; k < 4; k++)
                assert_together((count == 0 || memcmp(w[0], w[k], count * sizeof(real)) == 0) &&
                                    memcmp(losses[0], losses[k], sizeof losses[0]) == 0,
                                "%d ranks, accumulate %d: run %d has other bits", ranks[n], accumulate, k);
            for (int k = 0; k < 4; k++) free(w[k]);
        }
}

/* The loss curve is the same, to rounding, on 1, 2, 4 and 8 ranks, with 1 to 3 micro-steps and any bucket size. */
static void same_curve(void **state)
{
    (void)state;
    enum { STEPS = 10 };
    const double buckets[] = {0, 0.0001, 0.003, 10};
    double want[STEPS], got[STEPS];
    size_t count;
    free(train_run(1, (DdpOptions){.overlap = 1, .bucket_mb = 1}, 1, -1, STEPS, want, &count));
    comm_broadcast(comm_control(), want, STEPS, COMM_DOUBLE, 0);
    assert_together(want[STEPS - 1] < want[0], "the loss does not fall: %f to %f", want[0], want[STEPS - 1]);
    for (int ranks = 1; ranks <= 8; ranks *= 2)
        for (int b = 0; b < 4; b++) {
            memcpy(got, want, sizeof got);
            DdpOptions options = {.overlap = b % 2, .bucket_mb = buckets[b]};
            free(train_run(ranks, options, 1 + b % 3, -1, STEPS, got, &count));
            for (int s = 0; s < STEPS; s++) {
                double bound = sizeof(real) == 8 ? 1e-9 : 1e-4;
                assert_together(fabs(got[s] - want[s]) <= bound * want[s],
                                "%d ranks, bucket %g, step %d: %.12f not %.12f", ranks, buckets[b], s + 1, got[s],
                                want[s]);
            }
        }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(equals_single_device),
    cmocka_unit_test(batch_is_cut_by_micro_step),
    cmocka_unit_test(same_bits),
    cmocka_unit_test(same_curve),
};

TESTING_MAIN(tests)
