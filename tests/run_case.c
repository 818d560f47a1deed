/* Trains one case beside a single device. The training step is that of the main.c files, with the schemes of the
 * case. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bug.h"
#include "base/error.h"
#include "case.h"
#include "compare.h"
#include "data/batch.h"
#include "kernels/memory.h"
#include "model/model.h"
#include "train/place.h"

/* --- hooks that observe the schemes' hooks --- */

typedef struct {
    const Params *params;
    Group *gather;
    long gathers; /* all-gathers that were started before the forward pass */
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

static long gathers_so_far(const Watch *w)
{
    return group_count(w->gather, COMM_ALL_GATHER).calls;
}

static void begins_forward(void *self, int unit)
{
    Watch *w = self;
    if (unit == 0) w->gathers = gathers_so_far(w);
}

static void watch_before_forward(void *self, int unit)
{
    Watch *w = self;
    look(w);
    int ahead = (int)(gathers_so_far(w) - w->gathers) - (unit + 1);
    if (unit > 0 && ahead > w->ahead) w->ahead = ahead;
}

static void watch(void *self, int unit)
{
    (void)unit;
    look(self);
}

/* --- the step --- */

typedef struct {
    Model *model;
    Batch batch;
    Optimizer optimizer;
    bool sharded;        /* tiny-hybrid's composition; else the same schemes with tiny-ddp */
    Hybrid hybrid;       /* with tiny-ddp: tensor, context and experts of it */
    Ddp ddp, expert_ddp; /* with tiny-ddp */
    SeamChain chain[2];
} Run;

/* The training step of main.c, from the batch that is read to the reduced gradients. `alone`: no scheme, for the
 * twin. Returns the loss of this rank's rows. */
static double accumulate_gradients(Run *run, bool alone)
{
    Model *model = run->model;
    model_zero_grads(model);
    for (int m = 0; m < run->batch.accumulate; m++) {
        Rows rows = batch_micro_step(&run->batch, m);
        model_begin(model, m, run->batch.accumulate);
        model_forward(model, model->activations, &rows);
        model_loss(model, model->activations, batch_scale(&run->batch));
        model_backward(model, model->activations);
    }
    if (!alone && run->sharded) hybrid_finish(&run->hybrid);
    if (!alone && !run->sharded) ddp_finish(&run->ddp);
    if (!alone && !run->sharded && model->experts.count) ddp_finish(&run->expert_ddp);
    return model_read_loss(model);
}

/* Fills the gradients' padding with large values: the norm must not count them. */
static void spoil_padding(Params *p)
{
    for (int i = 0; i < p->shards; i++)
        for (size_t e = p->shard[i].count; e < p->shard[i].padded; e++) p->shard[i].grads[e] = 1000;
}

/* --- two training steps --- */

static void prepare_router(Model *model, const Case *c, Group *group)
{
    router_share(model, group, c->fsdp * c->dp * c->t.sequences, c->t.seq);
    for (int l = 0; c->one_expert && l < model->config.layers; l++)
        model->router.bias[l * model->config.moe.experts] = 100;
}

static Run create_twin(const Case *c, const Data *data, const Kernels *kernels)
{
    Run twin = {0};
    memory_charge_twin(1);
    DataOrder order = training_order(&c->t, c->fsdp * c->dp);
    twin.batch = batch_create(data, order, c->t.accumulate, (BatchShare){0}, kernels);
    twin.model = model_create(&c->t.model, kernels, twin.batch.sequences * c->t.seq);
    params_init(&twin.model->params, kernels, (uint64_t)c->t.seed);
    prepare_router(twin.model, c, NULL);
    twin.optimizer = optimizer_create(training_recipe(&c->t), &twin.model->params, kernels);
    memory_charge_twin(0);
    return twin;
}

/* As in the main.c of tiny-megatron, tiny-cp and tiny-moe. */
static void plug_ddp(Run *run, const Case *c, const CaseGroups *g, int rows)
{
    Model *model = run->model;
    Hybrid *h = &run->hybrid;
    h->tensor = tensor_create(model, g->of.tp, g->of.kv, c->tensor, rows);
    h->context = context_create(model, g->of.context, &c->context, run->batch.order, rows);
    if (c->tp > 1) model->seams.features = tensor_seam(&h->tensor);
    if (c->cp > 1) model->seams.sequence = context_seam(&h->context);
    run->ddp = ddp_create(&model->params, &model->micro_step, g->of.dense.replicate, c->ddp);
    model->seams.parameters = seam_chain(&run->chain[0], tensor_parameter_seam(&h->tensor), ddp_seam(&run->ddp));
    if (!model->experts.count) return;
    Group *sum = BUG(expert_sum_over_all) ? g->of.dense.replicate : g->of.same_experts.replicate;
    h->experts = experts_parallel(model, g->of.ep, rows / model->stream_parts);
    model->seams.experts = experts_seam(&h->experts);
    run->expert_ddp = ddp_create(&model->experts, &model->micro_step, sum, c->ddp);
    model->seams.parameters = seam_chain(&run->chain[1], ddp_seam(&run->expert_ddp), model->seams.parameters);
}

static void free_ddp(Run *run)
{
    tensor_free(&run->hybrid.tensor);
    context_free(&run->hybrid.context);
    experts_free(&run->hybrid.experts);
    ddp_free(&run->ddp);
    ddp_free(&run->expert_ddp);
}

/* Creates all but the batch: the caller made it before it noted the bytes held, so the formulas leave it out. */
static void create(Run *run, const Case *c, const CaseGroups *g, const Kernels *kernels)
{
    int rows = run->batch.step_rows;
    HybridOptions options = case_options(c);
    run->sharded = c->sharding.strategy != NULL;
    run->model = model_create_part(&c->t.model, kernels, rows, place_rank(&g->mesh, case_part(c), g->model));
    Params *params = &run->model->params;
    params_init(params, kernels, (uint64_t)c->t.seed);
    if (c->t.model.moe.experts) prepare_router(run->model, c, g->stream);
    if (run->sharded)
        hybrid_plug(&run->hybrid, run->model, g->of, &options, run->batch.order, rows, c->t.accumulate);
    else
        plug_ddp(run, c, g, rows);
    run->optimizer = optimizer_create(training_recipe(&c->t), params, kernels);
}

static void case_replicas(const Run *run, const CaseGroups *g, Replicas *replicas)
{
    if (run->sharded) {
        hybrid_replicas(&run->hybrid, replicas);
        return;
    }
    ddp_replicas(&run->ddp, replicas);
    tensor_replicas(&run->hybrid.tensor, replicas);
    if (run->model->experts.count)
        replicas_add(replicas, &run->model->experts, g->of.same_experts.replicate, EQUAL_SHARDS);
}

static void destroy(Run *run)
{
    optimizer_free(&run->optimizer);
    model_free(run->model);
    batch_free(&run->batch);
}

/* Changes the values of a parameter that this rank has: in its shards, and in the whole weights if it keeps them. */
static void tamper(const Params *p, const char *name)
{
    const View *v = params_find(p, name);
    CHECK(v);
    while (v < p->view || v >= p->view + p->views) p = p->next; /* those that have the view */
    for (int i = 0; i < p->shards; i++) {
        Overlap o = params_overlap(v, &p->shard[i]);
        for (size_t e = 0; e < o.count; e++) p->shard[i].master[o.in_shard + e] += 1;
    }
    const Unit *unit = &p->unit[v->unit];
    for (size_t e = 0; e < v->size && p->placement.whole_weights; e++)
        unit->weights[v->offset - unit->offset + e] = (real)1e6;
}

/* Do both models have the same counts of rows for each expert, and the same bias? */
static bool same_router(const Model *a, const Model *b)
{
    size_t layers = (size_t)a->config.layers, E = (size_t)a->config.moe.experts;
    if (E == 0) return true;
    return memcmp(a->router.load, b->router.load, layers * (E + 1) * sizeof *a->router.load) == 0 &&
           (!a->router.bias || memcmp(a->router.bias, b->router.bias, layers * E * sizeof *a->router.bias) == 0);
}

static void step_and_compare(Run *run, Run *twin, const CaseGroups *g, long step, Outcome *out)
{
    Params *ours = &run->model->params, *theirs = &twin->model->params;
    batch_read(&run->batch, step);
    batch_read(&twin->batch, step);
    double loss = accumulate_gradients(run, false), want = accumulate_gradients(twin, true);
    double aux = model_read_aux(run->model), aux_want = model_read_aux(twin->model);
    out->same_numbers = comm_same_bits(g->of.tp, &loss, sizeof loss) && out->same_numbers;
    comm_uncounted(1);
    comm_all_reduce(g->mesh.rows_group, &loss, 1, COMM_DOUBLE, COMM_SUM);
    comm_uncounted(0);
    spoil_padding(ours);
    optimizer_measure(&run->optimizer, ours, step);
    optimizer_measure(&twin->optimizer, theirs, step);
    double error = worst_error(ours, GRADS, theirs, out);
    double norm = optimizer_read_norm(&run->optimizer), norm_want = optimizer_read_norm(&twin->optimizer);
    out->same_numbers = comm_same_bits(g->of.tp, &norm, sizeof norm) && out->same_numbers;
    if (step == 0) {
        out->loss = fmax(fabs(loss - want) / fmax(fabs(want), 1e-3), fabs(aux - aux_want) / fmax(aux_want, 1e-3));
        out->gradient = error;
        out->norm = fabs(norm - norm_want) / fmax(norm_want, 1e-3);
    } else {
        out->later_gradient = fmax(out->later_gradient, error);
    }
    optimizer_step(&run->optimizer, ours);
    optimizer_step(&twin->optimizer, theirs);
    router_end_step(run->model);
    router_end_step(twin->model);
    out->same_counts = same_router(run->model, twin->model) && out->same_counts;
    if (run->sharded) hybrid_publish(&run->hybrid);
}

static Outcome train(const Case *c, const CaseGroups *g, const Data *data)
{
    Outcome out = {.same_numbers = true, .same_counts = true};
    Kernels kernels = kernels_cpu();
    Run twin = create_twin(c, data, &kernels);
    Run run = {.batch = batch_create(data, training_order(&c->t, c->fsdp * c->dp), c->t.accumulate,
                                     batch_share(&g->mesh, context_cut(&c->context)), &kernels)};
    size_t held[MEMORY_CATEGORIES];
    for (int m = 0; m < MEMORY_CATEGORIES; m++) held[m] = memory_held((MemoryCategory)m);
    create(&run, c, g, &kernels);
    Params *ours = &run.model->params, *theirs = &twin.model->params;

    Watch w = {.params = ours, .gather = g->of.dense.gather, .slow = group_rank(g->mesh.world) == c->slow_rank};
    ParameterSeam inner = {&w, watch_before_forward, watch, watch, NULL};
    ParameterSeam outer = {&w, begins_forward, NULL, NULL, watch};
    SeamChain chain[2];
    ParameterSeam *seam = &run.model->seams.parameters;
    *seam = seam_chain(&chain[0], inner, *seam);
    *seam = seam_chain(&chain[1], *seam, outer);
    Replicas replicas = {0};
    case_replicas(&run, g, &replicas);
    out.replicas_equal = params_unequal(ours, &kernels, &replicas) == NULL;

    Expected expected = case_expected(c);
    const HybridGroups *of = &g->of;
    Group *counted[] = {of->dense.gather,
                        of->dense.reduce,
                        of->dense.replicate,
                        of->tp,
                        of->kv,
                        g->model,
                        g->stream,
                        of->context.team,
                        of->context.teams,
                        of->ep,
                        of->same_experts.gather,
                        of->same_experts.reduce,
                        of->same_experts.replicate};
    for (long step = 0; step < c->steps; step++) {
        Counters before = training_counters(counted, 13);
        step_and_compare(&run, &twin, g, step, &out);
        if (!*out.ledger) training_ledger(out.ledger, sizeof out.ledger, &expected, &before, held);
    }
    out.weight = worst_error(ours, MASTERS, theirs, &out);
    if (ours->placement.whole_weights || ours->placement.by == SHARD_NOTHING)
        out.whole = worst_error(ours, WHOLE_WEIGHTS, theirs, &out);
    if (c->tampered && group_rank(g->mesh.world) == case_ranks(c) - 1) tamper(ours, c->tampered);
    const char *unequal = params_unequal(ours, &kernels, &replicas);
    snprintf(out.unequal, sizeof out.unequal, "%s", unequal ? unequal : "");
    out.replicas_equal = !unequal && out.replicas_equal;
    out.padding_is_zero = padding_is_zero(ours);
    out.most_layers = w.most_layers;
    out.ahead = w.ahead;
    out.bits = bits_of(ours);

    destroy(&run);
    run.sharded ? hybrid_free(&run.hybrid) : free_ddp(&run);
    destroy(&twin);
    return out;
}

Outcome run_case(const Case *c, const char *path)
{
    Outcome out = {.replicas_equal = true, .same_numbers = true, .same_counts = true, .padding_is_zero = true};
    const CaseGroups *groups = case_groups(c);
    if (groups) {
        Data *data;
        CHECK(data_open(&data, path, c->t.model.vocab, c->t.seq, 0, 1) == NULL);
        out = train(c, groups, data);
        data_close(data);
    }
    /* all ranks get the worst value of all ranks */
    double *errors[] = {&out.loss, &out.gradient, &out.norm, &out.later_gradient, &out.weight, &out.whole};
    for (int e = 0; e < 6; e++) comm_all_reduce(comm_control(), errors[e], 1, COMM_DOUBLE, COMM_MAX);
    int64_t counts[] = {!out.replicas_equal, !out.same_numbers, !out.padding_is_zero,
                        out.most_layers,     out.ahead,         !out.same_counts};
    comm_all_reduce(comm_control(), counts, 6, COMM_INT64, COMM_MAX);
    comm_broadcast(comm_control(), out.unequal, sizeof out.unequal, COMM_BYTE, case_ranks(c) - 1);
    out.replicas_equal = !counts[0];
    out.same_numbers = !counts[1];
    out.padding_is_zero = !counts[2];
    out.most_layers = (int)counts[3];
    out.ahead = (int)counts[4];
    out.same_counts = !counts[5];
    return out;
}
