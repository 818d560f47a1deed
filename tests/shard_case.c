#include "shard_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/batch.h"
#include "ddp_case.h"
#include "base/error.h"
#include "base/hash.h"
#include "kernels/memory.h"
#include "model/model.h"
#include "observe/verify.h"

/* --- the case --- */

ShardCase random_shard_case(Random *r, int index)
{
    static const char *const strategies[] = {"zero1", "zero2", "zero3", "fsdp", "hsdp", "fsdp", "ddp"};
    const int ranks[] = {1, 2, 3, 4, 8};
    ShardCase c = {
        .ranks = ranks[index % 5],
        .t = random_training(r),
        .options = {.strategy = strategies[index / 5 % 7],
                    .prefetch = random_int(r, 0, 1),
                    .reshard = random_int(r, 0, 2) > 0,
                    .accumulate_sharded = random_int(r, 0, 2) > 0,
                    .reduce = "acc"},
        .recompute = random_int(r, 0, 1),
        .slow_rank = -1,
    };
    if (strcmp(c.options.strategy, "hsdp") == 0) {
        const int divisors[] = {1, 2, c.ranks / 2, c.ranks};
        c.options.shard_size = divisors[random_int(r, 0, 3)];
        if (c.options.shard_size == 0 || c.ranks % c.options.shard_size) c.options.shard_size = c.ranks;
    }
    return c;
}

const char *describe_shard_case(const ShardCase *c)
{
    static char text[500], training[300];
    snprintf(text, sizeof text, "%s shard %ld ranks %d prefetch %ld reshard %ld accumulate_sharded %ld recompute %d %s",
             c->options.strategy, c->options.shard_size, c->ranks, c->options.prefetch, c->options.reshard,
             c->options.accumulate_sharded, c->recompute, describe_training(&c->t, training, sizeof training));
    return text;
}

const Mesh *shard_case_mesh(const ShardCase *c, ShardGroups *groups)
{
    enum { SHAPES = 32 };
    static struct {
        int ranks, shard;
        Mesh mesh;
        ShardGroups groups;
    } made[SHAPES];
    static int count;
    Shape shape = sharding_shape(&c->options, c->ranks);
    Group *world = first_ranks(c->ranks);
    int i = 0;
    while (i < count && !(made[i].ranks == c->ranks && made[i].shard == shape.size[AXIS_FSDP])) i++;
    if (i == count) {
        CHECK(count < SHAPES);
        made[count].ranks = c->ranks;
        made[count].shard = shape.size[AXIS_FSDP];
        if (world) {
            made[count].mesh = mesh_create(world, shape);
            made[count].groups = sharding_groups(&made[count].mesh);
        }
        count++;
    }
    *groups = made[i].groups;
    return world ? &made[i].mesh : NULL;
}

/* --- hooks that look on --- */

typedef struct {
    ParameterSeam inner;
    const Params *params;
    Group *gather;
    long gathers; /* when the forward pass began */
    int most_layers, ahead;
    bool slow;
} Watch;

static void look(Watch *w)
{
    int layers = 0;
    for (int u = 1; u < w->params->units; u++) layers += w->params->unit[u].weights != NULL;
    if (layers > w->most_layers) w->most_layers = layers;
    if (w->slow) usleep(3000);
}

static void call(void (*hook)(void *, int), Watch *w, int unit)
{
    if (hook) hook(w->inner.self, unit);
    look(w);
}

static void before_forward(void *self, int unit)
{
    Watch *w = self;
    if (unit == 0) w->gathers = group_count(w->gather, COMM_ALL_GATHER).calls;
    call(w->inner.before_forward, w, unit);
    int ahead = (int)(group_count(w->gather, COMM_ALL_GATHER).calls - w->gathers) - (unit + 1);
    if (unit > 0 && ahead > w->ahead) w->ahead = ahead;
}

static void after_forward(void *self, int unit)
{
    call(((Watch *)self)->inner.after_forward, self, unit);
}

static void before_backward(void *self, int unit)
{
    call(((Watch *)self)->inner.before_backward, self, unit);
}

static void after_backward(void *self, int unit)
{
    call(((Watch *)self)->inner.after_backward, self, unit);
}

/* --- training --- */

/* The training step of main.c, with the scheme or without (NULL); the batch is read. Returns the loss of these rows. */
static double accumulate_gradients(Model *model, const Batch *batch, Sharding *sharding)
{
    model_zero_grads(model);
    for (int m = 0; m < batch->accumulate; m++) {
        Rows rows = batch_micro_step(batch, m);
        if (sharding) sharding_begin(sharding, m);
        model_forward(model, &rows);
        model_loss(model, &rows, batch_scale(batch));
        model_backward(model, &rows);
    }
    if (sharding) sharding_finish(sharding);
    return model_read_loss(model);
}

/* The worst error over all tensors, of what this rank holds. `theirs`: the twin's, whole. */
static double worst(const Params *p, bool grads, const acc *theirs)
{
    double largest_of_all = 0, worst_error = 0;
    for (size_t i = 0; i < p->count; i++) largest_of_all = fmax(largest_of_all, fabs((double)theirs[i]));
    for (int n = 0; n < p->views; n++) {
        const View *v = &p->view[n];
        double largest, unused, difference;
        verify_compare(theirs + v->offset, theirs + v->offset, v->size, &unused, &largest);
        for (int i = 0; i < p->pieces; i++) {
            const Piece *piece = &p->piece[i];
            Overlap o = params_overlap(v, piece);
            if (o.count == 0) continue;
            verify_compare((grads ? piece->grads : piece->master) + o.in_piece, theirs + v->offset + o.in_view, o.count,
                           &difference, &unused);
            worst_error = fmax(worst_error, verify_error(difference, largest, largest_of_all));
        }
    }
    return worst_error;
}

static double worst_whole(const Params *p, const acc *theirs)
{
    double worst_error = 0;
    for (int u = 0; u < p->units && p->holding.whole_weights; u++) {
        double difference, largest;
        verify_compare(p->unit[u].weights, theirs + p->unit[u].offset, p->unit[u].count, &difference, &largest);
        worst_error = fmax(worst_error, verify_error(difference, largest, largest));
    }
    return worst_error;
}

static uint64_t bits_of(const Params *p)
{
    uint64_t hash = HASH_START;
    for (int i = 0; i < p->pieces; i++) {
        hash = hash_bytes(hash, p->piece[i].master, p->piece[i].count * sizeof(acc));
    }
    return hash;
}

static ShardOutcome train(const ShardCase *c, const Mesh *mesh, ShardGroups groups, const Data *data)
{
    ShardOutcome out = {0};
    DataOrder order = training_order(&c->t, c->ranks);
    OptimizerConfig config = training_recipe(&c->t);
    Kernels kernels = kernels_cpu();
    Holding holding = strategy_find(c->options.strategy)->holding;
    if (holding.cut != CUT_NOTHING) {
        holding.ranks = mesh->shape.size[AXIS_FSDP];
        holding.rank = mesh->coordinate[AXIS_FSDP];
    }
    Batch mine = batch_create(data, order, c->t.accumulate, mesh->data_group, &kernels);
    memory_charge_twin(1);
    Batch whole = batch_create(data, order, c->t.accumulate, NULL, &kernels);
    Model *twin = model_create(&c->t.model, &kernels, whole.sequences * c->t.seq);
    params_init(&twin->params, &kernels, (uint64_t)c->t.seed);
    Optimizer theirs = optimizer_create(config, &twin->params, &kernels);
    memory_charge_twin(0);

    size_t held[MEMORY_CATEGORIES];
    for (int m = 0; m < MEMORY_CATEGORIES; m++) held[m] = memory_held((MemoryCategory)m);
    Model *model = model_create_part(&c->t.model, &kernels, mine.sequences * c->t.seq,
                                     (ModelPart){.holding = holding, .recompute = c->recompute});
    params_init(&model->params, &kernels, (uint64_t)c->t.seed);
    Sharding sharding = sharding_create(&model->params, &kernels, groups, c->options, c->t.accumulate);
    Watch watch = {.inner = sharding_seam(&sharding), .params = &model->params, .gather = groups.gather};
    watch.slow = group_rank(mesh->world) == c->slow_rank;
    model->seams.parameters = (ParameterSeam){&watch, before_forward, after_forward, before_backward, after_backward};
    Optimizer ours = optimizer_create(config, &model->params, &kernels);
    ours.shards = sharding_norm_group(&sharding);
    Expected expected = {.optimizer_bytes = c->t.optimizer == OPTIMIZER_ADAMW ? 2 * sizeof(acc) : 0};
    expected.memory[MEMORY_ACTIVATIONS] =
        model_activation_bytes(&c->t.model, (size_t)mine.sequences * (size_t)c->t.seq, c->recompute, 1);
    sharding_expect(&expected, &c->t.model, &c->options, mesh->shape, c->t.accumulate, 1);

    for (long step = 0; step < 2; step++) {
        batch_read(&mine, step);
        batch_read(&whole, step);
        Counters before = training_counters(groups.gather, groups.reduce, groups.replicate);
        double loss = accumulate_gradients(model, &mine, &sharding), want = accumulate_gradients(twin, &whole, NULL);
        comm_all_reduce(mesh->data_group, &loss, 1, COMM_DOUBLE, COMM_SUM);
        for (int i = 0; i < model->params.pieces; i++) { /* must not be counted */
            Piece *piece = &model->params.piece[i];
            for (size_t e = piece->count; e < piece->part; e++) piece->grads[e] = 1000;
        }
        optimizer_measure(&ours, &model->params, step);
        optimizer_measure(&theirs, &twin->params, step);
        double error = worst(&model->params, true, twin->params.grads);
        double norm = optimizer_read_norm(&ours), norm_want = optimizer_read_norm(&theirs);
        if (step == 0) {
            out.loss = fabs(loss - want) / fmax(fabs(want), 1e-3);
            out.gradient = error;
            out.norm = fabs(norm - norm_want) / fmax(norm_want, 1e-3);
        } else {
            out.later_gradient = error;
        }
        optimizer_step(&ours, &model->params);
        optimizer_step(&theirs, &twin->params);
        sharding_publish(&sharding);
        if (!*out.ledger) training_ledger(out.ledger, sizeof out.ledger, &expected, &before, held);
    }
    out.weight = worst(&model->params, false, twin->params.piece[0].master);
    out.whole = worst_whole(&model->params, twin->params.piece[0].master);
    if (c->tampered && group_rank(mesh->world) == c->ranks - 1) model->params.weights[0] += 1;
    out.replicas_equal = params_unequal(&model->params, &kernels, sharding_replicas(&sharding)) == NULL;
    out.most_layers = watch.most_layers;
    out.ahead = watch.ahead;
    out.bits = bits_of(&model->params);

    optimizer_free(&ours), optimizer_free(&theirs);
    model_free(model), model_free(twin);
    sharding_free(&sharding);
    batch_free(&mine), batch_free(&whole);
    return out;
}

ShardOutcome run_shard_case(const ShardCase *c, const char *path)
{
    ShardOutcome out = {.replicas_equal = true};
    ShardGroups groups;
    const Mesh *mesh = shard_case_mesh(c, &groups);
    if (mesh) {
        Data *data;
        CHECK(data_open(&data, path, c->t.model.vocab, c->t.seq, 0, 1) == NULL);
        out = train(c, mesh, groups, data);
        data_close(data);
    }
    /* the worst of all ranks, on all ranks */
    double *errors[] = {&out.loss, &out.gradient, &out.norm, &out.later_gradient, &out.weight, &out.whole};
    for (int e = 0; e < 6; e++) comm_all_reduce(comm_control(), errors[e], 1, COMM_DOUBLE, COMM_MAX);
    int64_t counts[] = {!out.replicas_equal, out.most_layers};
    comm_all_reduce(comm_control(), counts, 2, COMM_INT64, COMM_MAX);
    out.replicas_equal = !counts[0];
    out.most_layers = (int)counts[1];
    return out;
}
