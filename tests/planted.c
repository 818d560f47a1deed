#include "planted.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "capture.h"
#include "case.h"
#include "train/place.h"

static const double FLOOR = sizeof(acc) == 8 ? 1e-3 : 5e-2;

/* --- placements --- */

static const struct {
    const char *name, *strategy;
    int tp, fsdp, dp, sp, kv_heads, seq; /* seq 1: a query sees one key, and the gradients of Q and K are rounding */
    int ep;                              /* 0: no experts */
} placements[] = {
    {"tiny-ddp", NULL, 1, 1, 4, 0, 2, 4, 0},
    {"zero1", "zero1", 1, 4, 1, 0, 2, 4, 0},
    {"zero2", "zero2", 1, 4, 1, 0, 1, 4, 0},
    {"zero3", "zero3", 1, 4, 1, 0, 2, 4, 0},
    {"fsdp", "fsdp", 1, 4, 1, 0, 2, 4, 0},
    {"hsdp", "hsdp", 1, 2, 2, 0, 2, 1, 0},
    {"tp without SP, shared kv heads", NULL, 4, 1, 1, 0, 2, 4, 0},
    {"tp with SP, times dp", NULL, 2, 1, 2, 1, 2, 1, 0},
    {"tp with SP, times fsdp, shared kv heads", "fsdp", 2, 2, 1, 1, 1, 4, 0},
    {"tiny-moe", NULL, 1, 1, 4, 0, 2, 4, 2},
    {"experts, sharded", "fsdp", 1, 4, 1, 0, 2, 4, 2},
};
enum { REPORT = 2000, ROWS = 8, PLACEMENTS = sizeof placements / sizeof placements[0] };

/* Its experts have both a bias and an auxiliary loss. */
static ModelConfig tiny_model(int kv_heads, bool experts)
{
    MoeConfig moe = {.experts = 4, .top_k = 2, .ff = 3, .balance = BALANCE_BIAS, .bias_rate = 0.02, .z_coef = 0.01};
    return (ModelConfig){.name = "tiny",
                         .layers = 1,
                         .width = 8,
                         .heads = 4,
                         .kv_heads = kv_heads,
                         .head_dim = 2,
                         .ff = 4,
                         .vocab = 31,
                         .max_seq = 4,
                         .tied = kv_heads == 1,
                         .qk_norm = kv_heads == 2,
                         .theta = 1e4,
                         .eps = 1e-5,
                         .init_std = 0.3,
                         .moe = experts ? moe : (MoeConfig){0}};
}

bool planted_has_experts(const Subject *s)
{
    return s->twin->config.moe.experts > 0;
}

static size_t bias_bytes(const Subject *s)
{
    return (size_t)(s->twin->config.layers * s->twin->config.moe.experts) * sizeof(acc);
}

static size_t total_bytes(const Subject *s)
{
    return router_table_size(s->twin) * sizeof(int64_t);
}

static void *copy(const void *from, size_t bytes)
{
    void *to = malloc(bytes);
    CHECK(to);
    return memcpy(to, from, bytes);
}

/* All gradients or weights of the twin. */
static acc *copy_values(const Model *twin, bool grads)
{
    size_t count = twin->params.count + twin->experts.count;
    acc *all = malloc(count * sizeof *all), *to = all;
    CHECK(all);
    for (const Params *p = &twin->params; p; to += p->count, p = p->next)
        memcpy(to, grads ? p->grads : p->shard[0].master, p->count * sizeof *to);
    return all;
}

static void train_twin(Subject *s)
{
    Params *p = &s->twin->params;
    Optimizer optimizer = optimizer_create(s->recipe, p, &s->kernels);
    params_init(p, &s->kernels, 8);
    s->weights[0] = copy_values(s->twin, false);
    for (int step = 0; step < STEPS; step++) {
        batch_read(&s->batch, step);
        model_zero_grads(s->twin);
        Rows rows = batch_micro_step(&s->batch, 0);
        model_begin(s->twin, 0, 1);
        model_forward(s->twin, s->twin->activations, &rows);
        model_loss(s->twin, s->twin->activations, batch_scale(&s->batch));
        model_backward(s->twin, s->twin->activations);
        optimizer_measure(&optimizer, p, step);
        s->grads[step] = copy_values(s->twin, true);
        s->loss[step] = model_read_loss(s->twin);
        s->aux[step] = model_read_aux(s->twin);
        s->norm[step] = optimizer_read_norm(&optimizer);
        optimizer_step(&optimizer, p);
        router_end_step(s->twin);
        s->weights[step + 1] = copy_values(s->twin, false);
        if (!planted_has_experts(s)) continue;
        s->bias[step] = copy(s->twin->router.bias, bias_bytes(s));
        s->total[step] = copy(s->twin->router.total, total_bytes(s));
    }
    optimizer_free(&optimizer);
}

static Subject create_subject(int index)
{
    Subject s = {.name = placements[index].name, .kernels = kernels_cpu()};
    const char *strategy = placements[index].strategy;
    int seq = placements[index].seq, ep = placements[index].ep;
    Case c = {.tp = placements[index].tp,
              .cp = 1,
              .fsdp = placements[index].fsdp,
              .dp = placements[index].dp,
              .t = {.model = tiny_model(placements[index].kv_heads, ep), .seq = seq, .sequences = ROWS / seq},
              .tensor = {.sp = placements[index].sp, .overlap_chunks = 1},
              .context = {.ulysses_size = 1},
              .experts = {.ep = ep}};
    if (strategy) c.sharding = sharding_defaults(strategy);
    const CaseGroups *g = case_groups(&c);
    s.recipe = (OptimizerConfig){.lr = 1e-2, .steps = STEPS, .clip = 1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    CHECK(data_open(&s.data, training_tokens(), 31, seq, 0, 1) == NULL);
    DataOrder order = {.seed = 3, .batch = ROWS / seq, .seq = seq};
    s.batch = batch_create(s.data, order, 1, (BatchShare){0}, &s.kernels);
    s.twin = model_create(&c.t.model, &s.kernels, ROWS);
    router_share(s.twin, NULL, ROWS / seq, seq);
    train_twin(&s);

    ModelPart part = place_rank(&g->mesh, case_part(&c), g->model);
    s.model = model_create_part(&c.t.model, &s.kernels, ROWS, part);
    replicas_add(&s.replicas, &s.model->params, g->of.dense.replicate, EQUAL_SHARDS);
    if (part.placement.whole_weights)
        replicas_add(&s.replicas, &s.model->params, g->of.dense.gather, EQUAL_WHOLE_WEIGHTS);
    replicas_add(&s.replicas, &s.model->params, g->of.tp, EQUAL_OVER_TP);
    replicas_add(&s.replicas, &s.model->params, g->of.kv, EQUAL_KV_HEADS);
    replicas_add(&s.replicas, &s.model->experts, g->of.same_experts.replicate, EQUAL_SHARDS);
    return s;
}

static void free_subject(Subject *s)
{
    for (int i = 0; i <= STEPS; i++) free(s->weights[i]);
    for (int i = 0; i < STEPS; i++) free(s->grads[i]), free(s->bias[i]), free(s->total[i]);
    model_free(s->model);
    model_free(s->twin);
    batch_free(&s->batch);
    data_close(s->data);
}

/* --- planting --- */

int planted_views(const Subject *s)
{
    return s->model->params.views + (planted_has_experts(s) ? s->model->experts.views : 0);
}

Parameter planted_view(const Subject *s, int n)
{
    const Params *p = &s->model->params, *twin = &s->twin->params;
    size_t at = 0;
    for (; n >= p->views; p = p->next, twin = twin->next) {
        n -= p->views;
        at += twin->count;
    }
    return (Parameter){p, &p->view[n], &twin->view[n], at + twin->view[n].offset};
}

/* Gives the model the twin's gradients or weights. */
static void set(const Subject *s, bool grads, const acc *theirs)
{
    for (int n = 0; n < planted_views(s); n++) {
        Parameter of = planted_view(s, n);
        const Params *p = of.params;
        const View *v = of.view;
        const Unit *unit = &p->unit[v->unit];
        acc *block = malloc(v->size * sizeof *block);
        CHECK(block);
        params_take_block(v, theirs + of.at, block);
        if (!grads && (p->placement.by == SHARD_NOTHING || p->placement.whole_weights))
            s->kernels.cast(unit->weights + (v->offset - unit->offset), block, v->size);
        for (int i = 0; i < p->shards; i++) {
            Overlap o = params_overlap(v, &p->shard[i]);
            acc *to = (grads ? p->shard[i].grads : p->shard[i].master) + o.in_shard;
            if (o.count > 0) memcpy(to, block + o.in_view, o.count * sizeof *to);
        }
        free(block);
    }
}

/* Gives the model's router what the twin's has after the step. */
static void set_router(const Subject *s, int step)
{
    if (!planted_has_experts(s)) return;
    memcpy(s->model->router.bias, s->bias[step], bias_bytes(s));
    memcpy(s->model->router.total, s->total[step], total_bytes(s));
}

static double largest_of(const acc *values, size_t n)
{
    double largest = 0;
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)values[i]));
    return largest;
}

/* What an error of 1 is in this parameter. Not from verify_error, which is under test. */
static double scale_of(const Subject *s, Parameter of, const acc *theirs)
{
    double of_all = largest_of(theirs, s->twin->params.count + s->twin->experts.count);
    return fmax(largest_of(theirs + of.at, of.twin->size), FLOOR * of_all);
}

bool planted_owns(const Subject *s, int n)
{
    Parameter of = planted_view(s, n);
    for (int i = 0; i < of.params->shards; i++)
        if (params_overlap(of.view, &of.params->shard[i]).count > 0) return true;
    return false;
}

/* In the first element that this rank owns of view n, or the last; or in all. */
static void plant_in_view(const Subject *s, const Fault *f, int n, const acc *theirs)
{
    Parameter of = planted_view(s, n);
    const Params *p = of.params;
    const View *v = of.view;
    const Unit *unit = &p->unit[v->unit];
    double error = f->size * scale_of(s, of, theirs);
    if (f->kind == WHOLE_WEIGHT_BIT) {
        *(unsigned char *)(unit->weights + (v->offset - unit->offset) + n % v->size) ^= 1;
        return;
    }
    for (int i = 0; i < p->shards; i++) {
        Overlap o = params_overlap(v, &p->shard[i]);
        acc *at = (f->kind == GRADIENT ? p->shard[i].grads : p->shard[i].master) + o.in_shard;
        size_t last = o.count - 1, one = n % 2 ? last : 0;
        if (o.count == 0) continue;
        if (f->kind == WEIGHT_BIT) *(unsigned char *)(at + one) ^= 1;
        for (size_t e = 0; e < o.count && f->kind != WEIGHT_BIT; e++)
            if (f->view == EVERYWHERE || e == one) at[e] += (acc)error;
    }
}

/* In the last expert's bias, or in the counts of the first two experts. */
static void plant_in_router(const Subject *s, const Fault *f)
{
    const Router *r = &s->model->router;
    size_t count = bias_bytes(s) / sizeof(acc);
    if (count == 0) return;
    if (f->kind == BIAS) r->bias[count - 1] += (acc)(f->size * largest_of(s->bias[f->step], count));
    if (f->kind == CHOICES) {
        r->total[0] += (int64_t)f->size;
        r->total[1] -= (int64_t)f->size;
    }
}

/* Plants this rank's faults of the step, of the kinds from `first` to `last`. `theirs`: what the twin has of that kind. */
static void plant(const Subject *s, const Fault *fault, int faults, int step, Kind first, Kind last, const acc *theirs)
{
    for (const Fault *f = fault; f < fault + faults; f++) {
        if (!f->here || f->step != step || f->kind < first || f->kind > last) continue;
        if (f->kind == BIAS || f->kind == CHOICES) plant_in_router(s, f);
        for (int n = 0; n < planted_views(s) && theirs; n++)
            if (f->view == EVERYWHERE || f->view == n) plant_in_view(s, f, n, theirs);
    }
}

/* --- the run and its report --- */

/* [all ranks] `steps` steps that equal the twin's, but for the faults. */
static int run_with(const Subject *s, const Fault *fault, int faults, bool replicas, int steps, char *report)
{
    set(s, false, s->weights[0]);
    Verify *v = verify_create(STEPS, s->model, &s->batch, s->recipe, replicas ? s->replicas : (Replicas){0});
    for (int step = 0; step < steps; step++) {
        double numbers[] = {s->loss[step], s->aux[step], s->norm[step]};
        set(s, true, s->grads[step]);
        set_router(s, step);
        plant(s, fault, faults, step, GRADIENT, GRADIENT, s->grads[step]);
        plant(s, fault, faults, step, BIAS, BIAS, NULL);
        plant(s, fault, faults, step, CHOICES, CHOICES, NULL);
        verify_gradients(v, s->model, step);
        set(s, false, s->weights[step + 1]);
        plant(s, fault, faults, step, WEIGHT, WHOLE_WEIGHT_BIT, s->weights[step + 1]);
        verify_weights(v, s->model, step);
        for (int f = 0; f < faults; f++)
            if (fault[f].kind >= LOSS && fault[f].kind <= NORM && fault[f].step == step && fault[f].here)
                numbers[fault[f].kind - LOSS] *= 1 + fault[f].size;
        verify_numbers(v, step, numbers[0], numbers[1], numbers[2]);
    }
    capture_begin();
    int status = verify_report(v);
    capture_end(report, REPORT);
    return status;
}

void planted_expect(const Subject *s, const Fault *fault, int faults, bool replicas, int steps, const char *line)
{
    char report[REPORT], kept[REPORT];
    int status = run_with(s, fault, faults, replicas, steps, report), complaints = 0;
    bool named = false, last = false;
    memcpy(kept, report, sizeof kept);
    for (char *l = strtok(report, "\n"); l; l = strtok(NULL, "\n")) {
        bool complains = strstr(l, " is off by ") || strstr(l, "replicas of ") || strstr(l, " were compared") ||
                         strstr(l, " were counted for others");
        complaints += complains;
        named |= complains && line && strncmp(l, line, strlen(line)) == 0;
        last = strncmp(l, line ? "verify: FAIL  " : "verify: PASS  ", 14) == 0;
    }
    bool zero = strstr(kept, "loss 0.0e+00  norm 0.0e+00  grad 0.0e+00  weights 0.0e+00") != NULL;
    last = last && (line || faults || zero); /* without a fault even a drift is zero */
    bool good = comm_world_rank() != 0 || (last && complaints == (line != NULL) && named == (line != NULL));
    assert_together(good && status == (line != NULL), "%s: status %d, instead of %s:\n%s", s->name, status,
                    line ? line : "PASS", kept);
}

void planted_for_each(void (*check)(const Subject *))
{
    for (int i = 0; i < PLACEMENTS; i++) {
        Subject s = create_subject(i);
        check(&s);
        free_subject(&s);
    }
}
