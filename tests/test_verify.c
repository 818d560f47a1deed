/* ranks: 4  builds: fp64 fp32
 *
 * Who verifies the verifier: a run that equals the twin to the bit, but for one planted error, under every placement. --verify
 * must fail, name the parameter, and name nothing else. An error below the bound must pass. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "case.h"
#include "data/batch.h"
#include "model/model.h"
#include "observe/verify.h"

enum { STEPS = 2, REPORT = 2000 };

#if defined(PRECISION_FP64)
static const double FIRST = 1e-12, LATER = 1e-9;
static const bool JUDGES_LATER = true;
#else
static const double FIRST = 1e-5, LATER = 1e-5;
static const bool JUDGES_LATER = false;
#endif

/* --- placements --- */

static const struct {
    const char *name, *strategy;
    int tp, fsdp, dp, sp, kv_heads;
} placements[] = {
    {"tiny-ddp", NULL, 1, 1, 4, 0, 2},
    {"zero1", "zero1", 1, 4, 1, 0, 2},
    {"zero2", "zero2", 1, 4, 1, 0, 1},
    {"zero3", "zero3", 1, 4, 1, 0, 2},
    {"fsdp", "fsdp", 1, 4, 1, 0, 2},
    {"hsdp", "hsdp", 1, 2, 2, 0, 2},
    {"tp without SP, shared kv heads", NULL, 4, 1, 1, 0, 2},
    {"tp with SP, times dp", NULL, 2, 1, 2, 1, 2},
    {"tp with SP, times fsdp, shared kv heads", "fsdp", 2, 2, 1, 1, 1},
};
enum { PLACEMENTS = sizeof placements / sizeof placements[0] };

/* What the twin computes, whole, of one training; and a model under one placement, which is given the same. */
typedef struct {
    const char *name;
    Model *twin, *model;
    Kernels kernels;
    Data *data;
    Batch batch;
    OptimizerConfig recipe;
    Replicas replicas;
    acc *weights[STEPS + 1], *grads[STEPS]; /* [whole model]  weights[0]: before step 1 */
    double loss[STEPS], norm[STEPS];
} Subject;

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
    Case c = {.tp = placements[index].tp, .fsdp = placements[index].fsdp, .dp = placements[index].dp};
    c.t.model = tiny_model(placements[index].kv_heads);
    const CaseGroups *g = case_groups(&c);
    s.recipe = (OptimizerConfig){.lr = 1e-2, .steps = STEPS, .clip = 1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    CHECK(data_open(&s.data, training_tokens(), 31, 4, 0, 1) == NULL);
    s.batch = batch_create(s.data, (DataOrder){.seed = 3, .batch = 2, .seq = 4}, 1, (BatchShare){0}, &s.kernels);
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
    replicas_add(&s.replicas, g->shard.replicate, EQUAL_SHARDS);
    if (part.placement.whole_weights) replicas_add(&s.replicas, g->shard.gather, EQUAL_WHOLE_WEIGHTS);
    replicas_add(&s.replicas, g->tp, EQUAL_NORMS);
    replicas_add(&s.replicas, g->kv, EQUAL_KV_HEADS);
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

typedef enum { NOTHING, LOSS, NORM, GRADIENT, WEIGHT, WEIGHT_BIT, WHOLE_WEIGHT_BIT } Kind;
enum { EVERYWHERE = -1 };

/* An error of `size`, in verify's metric, on this rank if `here`. */
typedef struct {
    Kind kind;
    int step, view; /* view EVERYWHERE: all elements of all views */
    double size;
    bool here;
} Fault;

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

/* What an error of 1 is in this view. */
static double scale_of(const Subject *s, int view, const acc *theirs)
{
    const Params *p = &s->twin->params;
    double largest, of_all, unused;
    verify_compare(theirs, theirs, p->count, &unused, &of_all);
    verify_compare(theirs + p->view[view].offset, theirs + p->view[view].offset, p->view[view].size, &unused, &largest);
    return 1 / verify_error(1, largest, of_all);
}

/* Does this rank own elements of the view? */
static bool owns(const Subject *s, int view)
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

/* verify_report, with what it prints in text[REPORT]. */
static int capture_report(Verify *v, char *text)
{
    FILE *file = tmpfile();
    CHECK(file);
    fflush(stdout);
    int terminal = dup(STDOUT_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    int status = verify_report(v);
    fflush(stdout);
    dup2(terminal, STDOUT_FILENO);
    close(terminal);
    rewind(file);
    text[fread(text, 1, REPORT - 1, file)] = '\0';
    fclose(file);
    return status;
}

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
        verify_numbers(v, step, numbers[0], numbers[1]);
    }
    return capture_report(v, report);
}

/* [all ranks] The run fails, and its only complaint begins with `line`; or, if that is NULL, it passes. */
static void expect_report(const Subject *s, const Fault *fault, int faults, bool replicas, int steps, const char *line)
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
    bool good = comm_world_rank() != 0 || (last && complaints == (line != NULL) && named == (line != NULL));
    assert_together(good && status == (line != NULL), "%s: status %d, instead of %s:\n%s", s->name, status,
                    line ? line : "PASS", kept);
}

static const char *off_line(const Subject *s, const Fault *f)
{
    static char line[120];
    const char *what = f->kind == LOSS   ? "the loss"
                       : f->kind == NORM ? "the norm of the gradients"
                                         : s->model->params.view[f->view].name;
    snprintf(line, sizeof line, "verify: %s at step %d is off by ", what, f->step + 1);
    return line;
}

static bool is_judged(Kind kind, int step)
{
    return JUDGES_LATER || (step == 0 && kind != WEIGHT);
}

static double bound_of(Kind kind, int step)
{
    return step == 0 && kind != WEIGHT ? FIRST : LATER;
}

/* [all ranks] Calls for every fault of one tensor on one rank: each kind, step, view and owner. */
static void for_each_tensor_fault(const Subject *s, void (*check)(const Subject *, Fault))
{
    for (int kind = GRADIENT; kind <= WEIGHT; kind++)
        for (int step = 0; step < STEPS; step++)
            for (int n = 0; n < s->model->params.views; n++)
                for (int rank = 0; rank < group_size(comm_world()); rank++) {
                    bool here = rank == comm_world_rank() && owns(s, n);
                    int64_t planted = here;
                    comm_all_reduce(comm_control(), &planted, 1, COMM_INT64, COMM_MAX);
                    if (planted) check(s, (Fault){(Kind)kind, step, n, 0, here});
                }
}

static void check_finite(const Subject *s, Fault f)
{
    if (!is_judged(f.kind, f.step)) return;
    f.size = 10 * bound_of(f.kind, f.step);
    expect_report(s, &f, 1, false, STEPS, off_line(s, &f));
}

/* One rank per view is enough. */
static void check_not_finite(const Subject *s, Fault f)
{
    static int turn;
    if (turn++ % 4) return;
    f.size = turn % 8 == 1 ? (double)NAN : INFINITY;
    expect_report(s, &f, 1, false, STEPS, off_line(s, &f));
}

static void for_each_subject(void (*check)(const Subject *))
{
    for (int i = 0; i < PLACEMENTS; i++) {
        Subject s = create_subject(i);
        check(&s);
        free_subject(&s);
    }
}

/* --- tests --- */

static void passes_below_the_bounds(const Subject *s)
{
    expect_report(s, NULL, 0, true, STEPS, NULL);
    for (int kind = LOSS; kind <= WEIGHT; kind++)
        for (int step = 0; step < STEPS; step++) {
            double size = is_judged((Kind)kind, step) ? bound_of((Kind)kind, step) / 10 : 1;
            Fault f = {(Kind)kind, step, EVERYWHERE, size, true};
            expect_report(s, &f, 1, false, STEPS, NULL);
        }
}

static void fails_above_the_bounds(const Subject *s)
{
    for_each_tensor_fault(s, check_finite);
}

static void fails_without_end(const Subject *s)
{
    for_each_tensor_fault(s, check_not_finite);
}

static void judges_numbers(const Subject *s)
{
    for (int kind = LOSS; kind <= NORM; kind++)
        for (int step = 0; step < STEPS; step++)
            for (int rank = EVERYWHERE; rank < group_size(comm_world()); rank++)
                for (int size = 0; size < 3; size++) {
                    const double sizes[] = {10 * bound_of((Kind)kind, step), (double)NAN, INFINITY};
                    Fault f = {(Kind)kind, step, 0, sizes[size], rank == EVERYWHERE || rank == comm_world_rank()};
                    bool fails = size > 0 || is_judged((Kind)kind, step);
                    expect_report(s, &f, 1, false, STEPS, fails ? off_line(s, &f) : NULL);
                }
}

static bool concerns(Equality equal, const View *v)
{
    if (equal == EQUAL_NORMS) return v->vector;
    return equal != EQUAL_KV_HEADS || v->partial == PARTIAL_BY_KV_HEADS;
}

/* One bit, in one view, for each row of the table: on the ranks of one place in the row's group, so that no other row can
 * notice, and on one rank alone. */
static void compares_replicas(const Subject *s)
{
    for (int r = 0; r < s->replicas.rows; r++) {
        Group *group = s->replicas.row[r].group;
        Equality equal = s->replicas.row[r].equal;
        Kind kind = equal == EQUAL_WHOLE_WEIGHTS ? WHOLE_WEIGHT_BIT : WEIGHT_BIT;
        for (int n = 0; n < s->model->params.views; n++)
            for (int alone = 0; alone < 2 && concerns(equal, &s->model->params.view[n]); alone++)
                for (int k = 0; k < group_size(alone ? comm_world() : group); k++) {
                    bool here = k == (alone ? comm_world_rank() : group_rank(group));
                    int64_t planted = here && (kind == WHOLE_WEIGHT_BIT || owns(s, n));
                    comm_all_reduce(comm_control(), &planted, 1, COMM_INT64, COMM_MAX);
                    Fault f = {kind, (n + k) % STEPS, n, 0, here};
                    char line[120];
                    snprintf(line, sizeof line, "verify: replicas of %s differ", s->model->params.view[n].name);
                    if (planted) expect_report(s, &f, 1, true, STEPS, line);
                }
    }
}

/* An error beyond the bound of step 1 is named, although a later one, within its wider bound, is larger. */
static void names_what_failed(const Subject *s)
{
    Fault faults[] = {{GRADIENT, 0, 1, 10 * FIRST, true}, {GRADIENT, 1, 0, LATER / 10, true}};
    if (JUDGES_LATER) expect_report(s, faults, 2, false, STEPS, off_line(s, &faults[0]));
    expect_report(s, NULL, 0, true, 1, "verify: 1 of 2 steps were compared");
}

#define TEST(name)                                                                                                     \
    static void name##_test(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        for_each_subject(name);                                                                                        \
    }
TEST(passes_below_the_bounds)
TEST(fails_above_the_bounds)
TEST(fails_without_end)
TEST(judges_numbers)
TEST(compares_replicas)
TEST(names_what_failed)

/* The metric never loses an infinity or a NaN, not even where the twin has one too. */
static void the_metric(void **state)
{
    (void)state;
    const acc odd[] = {(acc)NAN, (acc)INFINITY, (acc)-INFINITY, 1};
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++) {
            double difference, largest;
            verify_compare(&odd[a], &odd[b], 1, &difference, &largest);
            double error = verify_error(difference, largest, largest);
            assert_together(a == 3 && b == 3 ? error == 0 : isinf(error), "%g and %g: %g", (double)odd[a],
                            (double)odd[b], error);
        }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(passes_below_the_bounds_test),
    cmocka_unit_test(fails_above_the_bounds_test),
    cmocka_unit_test(fails_without_end_test),
    cmocka_unit_test(judges_numbers_test),
    cmocka_unit_test(compares_replicas_test),
    cmocka_unit_test(names_what_failed_test),
    cmocka_unit_test(the_metric),
};
TESTING_MAIN(tests)
