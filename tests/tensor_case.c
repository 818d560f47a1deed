#include "tensor_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/batch.h"
#include "ddp_case.h"
#include "base/error.h"
#include "kernels/memory.h"
#include "observe/verify.h"

/* --- the case --- */

TensorCase random_tensor_case(Random *r, int index)
{
    const int tps[] = {1, 2, 4, 8, 2, 4, 2};
    int tp = tps[index % 7], heads = tp * random_int(r, 1, 3), kv_heads = 0;
    while (!kv_heads) { /* below, equal to and above tp */
        int k = random_int(r, 1, heads);
        if (heads % k == 0 && (k % tp == 0 || tp % k == 0)) kv_heads = k;
    }
    TensorCase c = {
        .tp = tp,
        .dp = random_int(r, 1, 2),
        .t = random_training(r),
        .window = random_int(r, 0, 1) ? random_int(r, 1, 9) : 0,
        .options = {.tp = tp,
                    .sp = tp > 1 && random_int(r, 0, 2) > 0,
                    .overlap = random_int(r, 0, 1),
                    .bucket_mb = 0.004},
        .recompute = random_int(r, 0, 3) == 0,
    };
    c.t.model.heads = heads;
    c.t.model.kv_heads = kv_heads;
    c.t.model.ff = tp * random_int(r, 1, 8);
    c.options.overlap_chunks = c.options.sp ? random_int(r, 1, 3) : 1;
    c.t.seq = c.options.sp ? tp * (int)c.options.overlap_chunks * random_int(r, 1, 3) : random_int(r, 1, 17);
    c.t.model.max_seq = c.t.seq;
    return c;
}

const char *describe_tensor_case(const TensorCase *c)
{
    static char text[500], training[300];
    snprintf(text, sizeof text, "tp %d dp %d sp %ld chunks %ld window %d recompute %d %s", c->tp, c->dp, c->options.sp,
             c->options.overlap_chunks, c->window, c->recompute, describe_training(&c->t, training, sizeof training));
    return text;
}

const Mesh *tensor_case_mesh(const TensorCase *c, Group **tp, Group **kv, Group **dp)
{
    enum { SHAPES = 48 };
    static struct {
        int tp, dp, kv_heads; /* kv heads: only if they are fewer than tp */
        Mesh mesh;
        Group *along_tp, *kv, *along_dp;
    } made[SHAPES];
    static int count;
    Group *world = first_ranks(c->tp * c->dp);
    int i = 0, kv_heads = c->t.model.kv_heads < c->tp ? c->t.model.kv_heads : c->tp;
    while (i < count && !(made[i].tp == c->tp && made[i].dp == c->dp && made[i].kv_heads == kv_heads)) i++;
    if (i == count) {
        CHECK(count < SHAPES);
        made[count].tp = c->tp;
        made[count].dp = c->dp;
        made[count].kv_heads = kv_heads;
        if (world) {
            made[count].mesh = mesh_create(world, tensor_shape(&c->options, c->tp * c->dp));
            made[count].along_tp = mesh_group(&made[count].mesh, 1u << AXIS_TP, "tp");
            made[count].kv = tensor_kv_group(made[count].along_tp, &c->t.model);
            made[count].along_dp = mesh_group(&made[count].mesh, 1u << AXIS_DP, "dp");
        }
        count++;
    }
    *tp = made[i].along_tp;
    *kv = made[i].kv;
    *dp = made[i].along_dp;
    return world ? &made[i].mesh : NULL;
}

/* --- training --- */

static double accumulate_gradients(Model *model, const Batch *batch, TensorParallel *tensor, Ddp *ddp)
{
    model_zero_grads(model);
    for (int m = 0; m < batch->accumulate; m++) {
        Rows rows = batch_micro_step(batch, m);
        if (tensor) tensor_begin(tensor, m == batch->accumulate - 1);
        if (ddp) ddp_begin(ddp, m == batch->accumulate - 1);
        model_forward(model, &rows);
        model_loss(model, &rows, batch_scale(batch));
        model_backward(model, &rows);
    }
    if (ddp) ddp_finish(ddp);
    return model_read_loss(model);
}

/* Rows see `window` keys at most. */
static void narrow(Batch *b, int window)
{
    for (int i = 0; i < b->rows.count && window; i++)
        if (b->rows.id[i] + 1 - window > b->rows.lo[i]) b->rows.lo[i] = b->rows.id[i] + 1 - window;
}

/* The worst error over all tensors, of this rank's blocks. `theirs`: the twin's, whole, of the table `whole`. */
static double worst(const Params *p, bool grads, const Params *whole, const acc *theirs)
{
    double largest_of_all = 0, worst_error = 0;
    for (size_t i = 0; i < whole->count; i++) largest_of_all = fmax(largest_of_all, fabs((double)theirs[i]));
    for (int n = 0; n < p->views; n++) {
        const View *v = &p->view[n], *w = &whole->view[n];
        double largest, unused, difference;
        verify_compare(theirs + w->offset, theirs + w->offset, w->size, &unused, &largest);
        acc *block = malloc(v->size * sizeof *block);
        params_take_block(v, theirs + w->offset, block);
        verify_compare((grads ? p->grads : p->piece[0].master) + v->offset, block, v->size, &difference, &unused);
        worst_error = fmax(worst_error, verify_error(difference, largest, largest_of_all));
        free(block);
    }
    return worst_error;
}

static bool padding_is_zero(const Params *p)
{
    for (int n = 0; n < p->views; n++) {
        const View *v = &p->view[n];
        for (size_t i = (size_t)v->valid_rows * (size_t)v->cols; i < v->size; i++)
            if (p->weights[v->offset + i] != 0 || p->grads[v->offset + i] != 0) return false;
    }
    return true;
}

static TensorOutcome train(const TensorCase *c, const Mesh *mesh, Group *tp, Group *kv, Group *dp, const Data *data)
{
    TensorOutcome out = {.same_numbers = true};
    DataOrder order = training_order(&c->t, c->dp);
    OptimizerConfig config = training_recipe(&c->t);
    Kernels kernels = kernels_cpu();
    Batch mine = batch_create(data, order, c->t.accumulate, mesh->data_group, &kernels);
    memory_charge_twin(1);
    Batch whole = batch_create(data, order, c->t.accumulate, NULL, &kernels);
    Model *twin = model_create(&c->t.model, &kernels, whole.sequences * c->t.seq);
    params_init(&twin->params, &kernels, (uint64_t)c->t.seed);
    Optimizer theirs = optimizer_create(config, &twin->params, &kernels);
    memory_charge_twin(0);

    size_t held[MEMORY_CATEGORIES];
    for (int m = 0; m < MEMORY_CATEGORIES; m++) held[m] = memory_held((MemoryCategory)m);
    int rows = mine.sequences * c->t.seq, stream_parts = c->options.sp ? c->tp : 1;
    Holding holding = {.cut = CUT_NOTHING, .tp = c->tp, .tp_rank = mesh->coordinate[AXIS_TP]};
    ModelPart part = {.holding = holding, .recompute = c->recompute, .stream_parts = stream_parts};
    Model *model = model_create_part(&c->t.model, &kernels, rows, part);
    params_init(&model->params, &kernels, (uint64_t)c->t.seed);
    Ddp ddp =
        ddp_create(&model->params, dp, (DdpOptions){.overlap = c->options.overlap, .bucket_mb = c->options.bucket_mb});
    TensorParallel tensor = tensor_create(model, tp, kv, c->options, rows);
    model->seams.parameters = tensor_parameter_seam(&tensor, ddp_seam(&ddp));
    if (c->tp > 1) model->seams.features = tensor_seam(&tensor);
    Optimizer ours = optimizer_create(config, &model->params, &kernels);
    ours.shards = c->tp > 1 ? tp : NULL;

    ModelConfig slice = model_config_slice(&c->t.model, c->tp);
    Expected expected = {.optimizer_bytes = c->t.optimizer == OPTIMIZER_ADAMW ? 2 * sizeof(acc) : 0};
    expected.memory[MEMORY_ACTIVATIONS] =
        model_activation_bytes(&slice, (size_t)rows, c->recompute, (size_t)stream_parts);
    tensor_expect(&expected, &c->t.model, &c->options, mesh->shape, rows, c->recompute, c->t.accumulate, 1);

    for (long step = 0; step < 2; step++) {
        batch_read(&mine, step), narrow(&mine, c->window);
        batch_read(&whole, step), narrow(&whole, c->window);
        Counters before = training_counters(tp, kv, dp);
        double loss = accumulate_gradients(model, &mine, &tensor, &ddp);
        double want = accumulate_gradients(twin, &whole, NULL, NULL);
        out.same_numbers = comm_same_bits(tp, &loss, sizeof loss) && out.same_numbers;
        comm_all_reduce(mesh->data_group, &loss, 1, COMM_DOUBLE, COMM_SUM);
        optimizer_measure(&ours, &model->params, step);
        optimizer_measure(&theirs, &twin->params, step);
        double error = worst(&model->params, true, &twin->params, twin->params.grads);
        double norm = optimizer_read_norm(&ours), norm_want = optimizer_read_norm(&theirs);
        out.same_numbers = comm_same_bits(tp, &norm, sizeof norm) && out.same_numbers;
        if (step == 0) {
            out.loss = fabs(loss - want) / fmax(fabs(want), 1e-3);
            out.gradient = error;
            out.norm = fabs(norm - norm_want) / fmax(norm_want, 1e-3);
        } else {
            out.later_gradient = error;
        }
        optimizer_step(&ours, &model->params);
        optimizer_step(&theirs, &twin->params);
        if (!*out.ledger) training_ledger(out.ledger, sizeof out.ledger, &expected, &before, held);
    }
    out.weight = worst(&model->params, false, &twin->params, twin->params.piece[0].master);
    Replicas replicas = {.pieces = dp, .tp = tp, .kv = tensor.kv};
    out.replicas_equal = params_unequal(&model->params, &kernels, replicas) == NULL;
    out.padding_is_zero = padding_is_zero(&model->params);

    optimizer_free(&ours), optimizer_free(&theirs);
    model_free(model), model_free(twin);
    tensor_free(&tensor);
    ddp_free(&ddp);
    batch_free(&mine), batch_free(&whole);
    return out;
}

TensorOutcome run_tensor_case(const TensorCase *c, const char *path)
{
    TensorOutcome out = {.replicas_equal = true, .same_numbers = true, .padding_is_zero = true};
    Group *tp, *kv, *dp;
    const Mesh *mesh = tensor_case_mesh(c, &tp, &kv, &dp);
    if (mesh) {
        Data *data;
        CHECK(data_open(&data, path, c->t.model.vocab, c->t.seq, 0, 1) == NULL);
        out = train(c, mesh, tp, kv, dp, data);
        data_close(data);
    }
    /* the worst of all ranks, on all ranks */
    double *errors[] = {&out.loss, &out.gradient, &out.norm, &out.later_gradient, &out.weight};
    for (int e = 0; e < 5; e++) comm_all_reduce(comm_control(), errors[e], 1, COMM_DOUBLE, COMM_MAX);
    int64_t wrong[] = {!out.replicas_equal, !out.same_numbers, !out.padding_is_zero};
    comm_all_reduce(comm_control(), wrong, 3, COMM_INT64, COMM_MAX);
    out.replicas_equal = !wrong[0];
    out.same_numbers = !wrong[1];
    out.padding_is_zero = !wrong[2];
    return out;
}
