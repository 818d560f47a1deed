#include "planted.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "capture.h"
#include "case.h"

static const double FLOOR = sizeof(acc) == 8 ? 1e-3 : 5e-2;

/* --- placements --- */

static const struct {
    const char *name, *strategy;
    int tp, fsdp, dp, sp, kv_heads, seq; /* seq 1: a query sees one key, and the gradients of Q and K are rounding */
} placements[] = {
    {"tiny-ddp", NULL, 1, 1, 4, 0, 2, 4},
    {"zero1", "zero1", 1, 4, 1, 0, 2, 4},
    {"zero2", "zero2", 1, 4, 1, 0, 1, 4},
    {"zero3", "zero3", 1, 4, 1, 0, 2, 4},
    {"fsdp", "fsdp", 1, 4, 1, 0, 2, 4},
    {"hsdp", "hsdp", 1, 2, 2, 0, 2, 1},
    {"tp without SP, shared kv heads", NULL, 4, 1, 1, 0, 2, 4},
    {"tp with SP, times dp", NULL, 2, 1, 2, 1, 2, 1},
    {"tp with SP, times fsdp, shared kv heads", "fsdp", 2, 2, 1, 1, 1, 4},
};
enum { REPORT = 2000, PLACEMENTS = sizeof placements / sizeof placements[0] };

static ModelConfig tiny_model(int kv_heads)
{
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
                         .init_std = 0.3};
}

static acc *copy(const acc *from, size_t n)
{
    acc *to = malloc(n * sizeof *to);
    CHECK(to);
    return memcpy(to, from, n * sizeof *to);
}

static void train_twin(Subject *s)
{
    Params *p = &s->twin->params;
    Optimizer optimizer = optimizer_create(s->recipe, p, &s->kernels);
    params_init(p, &s->kernels, 8);
    s->weights[0] = copy(p->shard[0].master, p->count);
    for (int step = 0; step < STEPS; step++) {
        batch_read(&s->batch, step);
        model_zero_grads(s->twin);
        Rows rows = batch_micro_step(&s->batch, 0);
        model_begin(s->twin, 0, 1);
        model_forward(s->twin, s->twin->activations, &rows);
        model_loss(s->twin, s->twin->activations, batch_scale(&s->batch));
        model_backward(s->twin, s->twin->activations);
        optimizer_measure(&optimizer, p, step);
        s->grads[step] = copy(p->grads, p->count);
        s->loss[step] = model_read_loss(s->twin);
        s->norm[step] = optimizer_read_norm(&optimizer);
        optimizer_step(&optimizer, p);
        s->weights[step + 1] = copy(p->shard[0].master, p->count);
    }
    optimizer_free(&optimizer);
}

static Subject create_subject(int index)
{
    Subject s = {.name = placements[index].name, .kernels = kernels_cpu()};
    Case c = {.tp = placements[index].tp,
              .cp = 1,
              .context = {.ulysses_size = 1},
              .fsdp = placements[index].fsdp,
              .dp = placements[index].dp};
    c.t.model = tiny_model(placements[index].kv_heads);
    const CaseGroups *g = case_groups(&c);
    int seq = placements[index].seq;
    s.recipe = (OptimizerConfig){.lr = 1e-2, .steps = STEPS, .clip = 1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    CHECK(data_open(&s.data, training_tokens(), 31, seq, 0, 1) == NULL);
    s.batch =
        batch_create(s.data, (DataOrder){.seed = 3, .batch = 8 / seq, .seq = seq}, 1, (BatchShare){0}, &s.kernels);
    s.twin = model_create(&c.t.model, &s.kernels, 8);
    train_twin(&s);

    ModelPart part = {.stream_parts = placements[index].sp ? c.tp : 1};
    if (placements[index].strategy) part.placement = strategy_find(placements[index].strategy)->placement;
    part.placement.ranks = c.fsdp;
    part.placement.rank = g->mesh.coordinate[AXIS_FSDP];
    part.placement.tp = c.tp;
    part.placement.tp_rank = g->mesh.coordinate[AXIS_TP];
    part.placement.model_group = g->model;
    s.model = model_create_part(&c.t.model, &s.kernels, 8, part);
    replicas_add(&s.replicas, &s.model->params, g->of.dense.replicate, EQUAL_SHARDS);
    if (part.placement.whole_weights)
        replicas_add(&s.replicas, &s.model->params, g->of.dense.gather, EQUAL_WHOLE_WEIGHTS);
    replicas_add(&s.replicas, &s.model->params, g->of.tp, EQUAL_OVER_TP);
    replicas_add(&s.replicas, &s.model->params, g->of.kv, EQUAL_KV_HEADS);
    return s;
}

static void free_subject(Subject *s)
{
    for (int i = 0; i <= STEPS; i++) free(s->weights[i]);
    for (int i = 0; i < STEPS; i++) free(s->grads[i]);
    model_free(s->model);
    model_free(s->twin);
    batch_free(&s->batch);
    data_close(s->data);
}

/* --- planting --- */

/* Gives the model the twin's gradients or weights. */
static void set(const Subject *s, bool grads, const acc *theirs)
{
    Params *p = &s->model->params;
    for (int n = 0; n < p->views; n++) {
        const View *v = &p->view[n];
        const Unit *unit = &p->unit[v->unit];
        acc *block = malloc(v->size * sizeof *block);
        CHECK(block);
        params_take_block(v, theirs + s->twin->params.view[n].offset, block);
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

/* What an error of 1 is in this view. Not from verify_error, which is under test. */
static double scale_of(const Subject *s, int view, const acc *theirs)
{
    const Params *p = &s->twin->params;
    double largest, of_all, unused;
    verify_compare(theirs, theirs, p->count, &unused, &of_all);
    verify_compare(theirs + p->view[view].offset, theirs + p->view[view].offset, p->view[view].size, &unused, &largest);
    return fmax(largest, FLOOR * of_all);
}

bool planted_owns(const Subject *s, int view)
{
    const Params *p = &s->model->params;
    for (int i = 0; i < p->shards; i++)
        if (params_overlap(&p->view[view], &p->shard[i]).count > 0) return true;
    return false;
}

/* In the first element that this rank owns of the view, or the last; or in all. */
static void plant_in_view(const Subject *s, const Fault *f, int view, const acc *theirs)
{
    const Params *p = &s->model->params;
    const View *v = &p->view[view];
    const Unit *unit = &p->unit[v->unit];
    double error = f->size * scale_of(s, view, theirs);
    if (f->kind == WHOLE_WEIGHT_BIT) {
        *(unsigned char *)(unit->weights + (v->offset - unit->offset) + view % v->size) ^= 1;
        return;
    }
    for (int i = 0; i < p->shards; i++) {
        Overlap o = params_overlap(v, &p->shard[i]);
        acc *at = (f->kind == GRADIENT ? p->shard[i].grads : p->shard[i].master) + o.in_shard;
        size_t last = o.count - 1, one = view % 2 ? last : 0;
        if (o.count == 0) continue;
        if (f->kind == WEIGHT_BIT) *(unsigned char *)(at + one) ^= 1;
        for (size_t e = 0; e < o.count && f->kind != WEIGHT_BIT; e++)
            if (f->view == EVERYWHERE || e == one) at[e] += (acc)error;
    }
}

static void plant(const Subject *s, const Fault *f, const acc *theirs)
{
    for (int n = 0; n < s->model->params.views; n++)
        if (f->here && (f->view == EVERYWHERE || f->view == n)) plant_in_view(s, f, n, theirs);
}

/* --- the run and its report --- */

/* [all ranks] `steps` steps that equal the twin's, but for the faults. */
static int run_with(const Subject *s, const Fault *fault, int faults, bool replicas, int steps, char *report)
{
    set(s, false, s->weights[0]);
    Verify *v = verify_create(STEPS, s->model, &s->batch, s->recipe, replicas ? s->replicas : (Replicas){0});
    for (int step = 0; step < steps; step++) {
        double numbers[] = {s->loss[step], s->norm[step]};
        set(s, true, s->grads[step]);
        for (int f = 0; f < faults; f++)
            if (fault[f].kind == GRADIENT && fault[f].step == step) plant(s, &fault[f], s->grads[step]);
        verify_gradients(v, s->model, step);
        set(s, false, s->weights[step + 1]);
        for (int f = 0; f < faults; f++)
            if (fault[f].kind >= WEIGHT && fault[f].step == step) plant(s, &fault[f], s->weights[step + 1]);
        verify_weights(v, s->model, step);
        for (int f = 0; f < faults; f++)
            if ((fault[f].kind == LOSS || fault[f].kind == NORM) && fault[f].step == step && fault[f].here)
                numbers[fault[f].kind == NORM] *= 1 + fault[f].size;
        verify_numbers(v, step, numbers[0], 0, numbers[1]);
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
        bool complains = strstr(l, " is off by ") || strstr(l, "replicas of ") || strstr(l, " were compared");
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
