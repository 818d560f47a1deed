#include "ddp_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/batch.h"
#include "base/error.h"
#include "observe/ledger.h"
#include "comm/mesh.h"
#include "model/model.h"
#include "observe/verify.h"

DdpCase random_ddp_case(Random *r, int index)
{
    const int ranks[] = {1, 2, 3, 4, 6, 8};
    const double buckets[] = {0, 0.0001, 0.004, 1};
    return (DdpCase){
        .ranks = ranks[index % 6],
        .t = random_training(r),
        .options = {.overlap = random_int(r, 0, 1), .bucket_mb = buckets[random_int(r, 0, 3)]},
    };
}

const char *describe_ddp_case(const DdpCase *c)
{
    static char text[400], training[300];
    snprintf(text, sizeof text, "ranks %d overlap %ld bucket %g %s", c->ranks, c->options.overlap, c->options.bucket_mb,
             describe_training(&c->t, training, sizeof training));
    return text;
}

Group *first_ranks(int ranks)
{
    static Group *made[64];
    static bool known[64];
    if (!known[ranks]) made[ranks] = group_split(comm_world(), comm_world_rank() < ranks ? 0 : -1, "dp");
    known[ranks] = true;
    return made[ranks];
}

/* The training step of main.c, with the scheme or without (NULL); the batch is read. Returns the loss of these rows. */
static double accumulate_gradients(Model *model, const Batch *batch, Ddp *ddp)
{
    model_zero_grads(model);
    for (int m = 0; m < batch->accumulate; m++) {
        Rows rows = batch_micro_step(batch, m);
        if (ddp) ddp_begin(ddp, m == batch->accumulate - 1);
        model_forward(model, &rows);
        model_loss(model, &rows, batch_scale(batch));
        model_backward(model, &rows);
    }
    if (ddp) ddp_finish(ddp);
    return model_read_loss(model);
}

/* The worst error over all tensors. */
static double worst(const Params *p, const acc *ours, const acc *theirs)
{
    double largest_of_all = 0, worst_error = 0;
    for (size_t i = 0; i < p->count; i++) largest_of_all = fmax(largest_of_all, fabs((double)theirs[i]));
    for (int n = 0; n < p->views; n++) {
        const View *v = &p->view[n];
        double difference, largest;
        verify_compare(ours + v->offset, theirs + v->offset, v->size, &difference, &largest);
        worst_error = fmax(worst_error, verify_error(difference, largest, largest_of_all));
    }
    return worst_error;
}

/* Of one step, whose counters stood at `before` when it began. */
static void compare_counts(DdpOutcome *out, const DdpCase *c, Group *group, CommCount before)
{
    Expected e = {0};
    ddp_expect(&e, &c->t.model, c->options, c->ranks, 1);
    CommCount now = group_count(group, COMM_ALL_REDUCE);
    out->calls = now.calls - before.calls;
    out->calls_expected = (long)e.comm[0].calls;
    if (out->calls != out->calls_expected) out->counts_equal = false;
    if (!(fabs(now.payload - before.payload - e.comm[0].payload) <= 1e-9 * e.comm[0].payload))
        out->counts_equal = false;
}

static DdpOutcome train(const DdpCase *c, Group *group, const Data *data)
{
    DdpOutcome out = {.counts_equal = true};
    DataOrder order = training_order(&c->t, c->ranks);
    OptimizerConfig config = training_recipe(&c->t);
    Kernels kernels = kernels_cpu();

    Batch mine = batch_create(data, order, c->t.accumulate, group, &kernels),
          whole = batch_create(data, order, c->t.accumulate, NULL, &kernels);
    Model *model = model_create(&c->t.model, &kernels, mine.sequences * c->t.seq);
    Model *twin = model_create(&c->t.model, &kernels, whole.sequences * c->t.seq);
    params_init(&model->params, &kernels, (uint64_t)c->t.seed);
    params_init(&twin->params, &kernels, (uint64_t)c->t.seed);
    Ddp ddp = ddp_create(&model->params, group, c->options);
    model->seams.parameters = ddp_seam(&ddp);
    Optimizer ours = optimizer_create(config, &model->params, &kernels),
              theirs = optimizer_create(config, &twin->params, &kernels);

    out.replicas_equal = params_unequal(&model->params, &kernels, (Replicas){.pieces = ddp.group}) == NULL;
    for (long step = 0; step < 2; step++) {
        comm_uncounted(1); /* the count of labels shares this group here; in the trainer it has its own */
        batch_read(&mine, step);
        comm_uncounted(0);
        batch_read(&whole, step);
        CommCount before = group_count(group, COMM_ALL_REDUCE);
        double loss = accumulate_gradients(model, &mine, &ddp), want = accumulate_gradients(twin, &whole, NULL);
        compare_counts(&out, c, group, before);
        comm_uncounted(1);
        comm_all_reduce(group, &loss, 1, COMM_DOUBLE, COMM_SUM);
        comm_uncounted(0);

        optimizer_measure(&ours, &model->params, step);
        optimizer_measure(&theirs, &twin->params, step);
        double error = worst(&model->params, model->params.grads, twin->params.grads);
        if (step == 0) {
            out.loss = fabs(loss - want) / fmax(fabs(want), 1e-3);
            out.gradient = error;
            out.norm = optimizer_read_norm(&ours);
        } else {
            out.later_gradient = error;
        }
        optimizer_step(&ours, &model->params);
        optimizer_step(&theirs, &twin->params);
    }
    out.weight = worst(&model->params, model->params.weights, twin->params.weights);
    out.replicas_equal =
        out.replicas_equal && comm_same_bits(group, model->params.weights, model->params.count * sizeof(real));

    ddp_free(&ddp);
    optimizer_free(&ours), optimizer_free(&theirs);
    model_free(model), model_free(twin);
    batch_free(&mine), batch_free(&whole);
    return out;
}

DdpOutcome run_ddp_case(const DdpCase *c, const char *path)
{
    DdpOutcome out = {.replicas_equal = true, .counts_equal = true};
    Group *group = first_ranks(c->ranks);
    if (group) {
        Data *data;
        CHECK(data_open(&data, path, c->t.model.vocab, c->t.seq, 0, 1) == NULL);
        out = train(c, group, data);
        data_close(data);
    }
    /* the worst of all ranks, on all ranks */
    double *errors[] = {&out.loss, &out.gradient, &out.later_gradient, &out.weight, &out.norm};
    for (int e = 0; e < 5; e++) comm_all_reduce(comm_control(), errors[e], 1, COMM_DOUBLE, COMM_MAX);
    int64_t wrong[] = {!out.replicas_equal, !out.counts_equal};
    comm_all_reduce(comm_control(), wrong, 2, COMM_INT64, COMM_MAX);
    out.replicas_equal = !wrong[0];
    out.counts_equal = !wrong[1];
    return out;
}
