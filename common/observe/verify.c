#include "observe/verify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "kernels/memory.h"
#include "observe/findings.h"
#include "observe/twin_routes.h"

struct Verify {
    long steps, done;
    OptimizerConfig config;
    Replicas replicas;
    Batch whole;         /* on rank 0: the batch of all ranks */
    Model *twin;         /* on rank 0 */
    Optimizer optimizer; /* on rank 0 */
    Kernels kernels;
    double twin_numbers[3]; /* loss, norm and auxiliary loss of this step, on all ranks */
    acc *mine;              /* on the host: what this rank holds of the parameter under comparison */
    acc *theirs;            /* the twin's whole parameter */
    acc *block;             /* this rank's block of theirs */
    TwinRoutes *routes;     /* with experts, until the last verified step; else NULL */
    Findings findings;
};

static bool have_twin(void)
{
    return group_rank(comm_control()) == 0;
}

/* [all ranks] The twin, on rank 0, starts from the run's own weights, which may have been loaded from a file. */
static void copy_weights(Verify *v, const Params *from)
{
    Params *to = have_twin() ? &v->twin->params : NULL;
    for (; from; from = from->next, to = to ? to->next : NULL)
        for (int n = 0; n < from->views; n++) {
            params_collect(from, &v->kernels, &from->view[n], false, v->mine);
            if (to) params_upload(to, &v->kernels, &to->view[n], v->mine);
        }
}

/* [all ranks] Rank 0 sends the twin's loss and norm, and so the others wait until the twin has computed. */
static void wait_for_the_twin(Verify *v)
{
    comm_broadcast(comm_control(), v->twin_numbers, 3, COMM_DOUBLE, 0);
}

Verify *verify_create(long steps, Model *model, const Batch *batch, OptimizerConfig optimizer, Replicas replicas)
{
    if (steps == 0) return NULL;
    Verify *v = calloc(1, sizeof *v);
    if (!v) fatal("out of memory");
    v->steps = steps < optimizer.steps ? steps : optimizer.steps;
    v->config = optimizer;
    v->replicas = replicas;
    v->kernels = model->kernels;
    double rows = (double)batch->order.batch * batch->order.seq;
    v->findings = findings_create(rows, batch->accumulate);
    size_t largest = (size_t)(model->config.layers * model->config.moe.experts); /* the router's bias */
    for (const Params *p = &model->params; p; p = p->next)
        for (int n = 0; n < p->views; n++) {
            size_t whole = params_whole_size(&p->view[n]), block = p->view[n].size; /* larger if it is padded */
            if (whole > largest) largest = whole;
            if (block > largest) largest = block;
        }
    v->block = malloc(largest * sizeof *v->block);
    v->mine = malloc(largest * sizeof *v->mine);
    v->theirs = malloc(largest * sizeof *v->theirs);
    if (!v->mine || !v->theirs || !v->block) fatal("out of memory for --verify");
    if (have_twin()) {
        memory_charge_twin(1);
        v->whole = batch_create(batch->data, batch->order, batch->accumulate, (BatchShare){0}, &model->kernels);
        v->twin = model_create(&model->whole, &model->kernels, v->whole.sequences * v->whole.order.seq);
        router_share(v->twin, NULL, v->whole.sequences, v->whole.order.seq);
        v->optimizer = optimizer_create(optimizer, &v->twin->params, &model->kernels);
        memory_charge_twin(0);
    }
    v->routes = twin_routes_create(model, batch);
    copy_weights(v, &model->params);
    wait_for_the_twin(v);
    return v;
}

static void end_twin(Verify *v)
{
    twin_routes_free(v->routes);
    v->routes = NULL;
    if (!v->twin) return;
    optimizer_free(&v->optimizer);
    model_free(v->twin);
    batch_free(&v->whole);
    v->twin = NULL;
}

/* --- comparing --- */

/* The values of the twin's parameters that are compared: gradients, or master weights. */
static const acc *values_of(const Params *p, Kind kind)
{
    return kind == GRADIENT ? p->grads : p->shard[0].master;
}

/* [all ranks] The largest of all the twin's gradients or weights. Rank 0 has them. */
static double largest_entry(Verify *v, Kind kind)
{
    double largest = 0;
    for (const Params *p = have_twin() ? &v->twin->params : NULL; p; p = p->next)
        for (int n = 0; n < p->views; n++) {
            const View *view = &p->view[n];
            v->kernels.download(v->theirs, values_of(p, kind) + view->offset, view->size * sizeof *v->theirs);
            for (size_t i = 0; i < view->size; i++) largest = fmax(largest, fabs((double)v->theirs[i]));
        }
    comm_broadcast(comm_control(), &largest, 1, COMM_DOUBLE, 0);
    return largest;
}

/* [all ranks] Compares one parameter with the twin's, which rank 0 has in `twin`, and notes the error. Each rank
 * compares its own shards. */
static void compare_view(Verify *v, const Params *params, int n, const Params *twin, Kind kind, double largest_of_all,
                         long step)
{
    Group *control = comm_control();
    const View *view = &params->view[n];
    size_t whole = params_whole_size(view);
    if (twin) v->kernels.download(v->theirs, values_of(twin, kind) + twin->view[n].offset, whole * sizeof(acc));
    comm_broadcast(control, v->theirs, whole, COMM_ACC, 0);
    params_take_block(view, v->theirs, v->block);
    double worst = 0, difference, largest;
    verify_compare(v->theirs, v->theirs, whole, &difference, &largest);
    for (int i = 0; i < params->shards; i++) {
        const Shard *shard = &params->shard[i];
        Overlap o = params_overlap(view, shard);
        const acc *ours = (kind == GRADIENT ? shard->grads : shard->master) + o.in_shard;
        double unused;
        v->kernels.download(v->mine, ours, o.count * sizeof *v->mine);
        verify_compare(v->mine, v->block + o.in_view, o.count, &difference, &unused);
        worst = fmax(worst, difference);
    }
    double error = verify_error(worst, largest, largest_of_all);
    comm_all_reduce(control, &error, 1, COMM_DOUBLE, COMM_MAX);
    findings_note(&v->findings, kind, error, view->name, step);
}

/* [all ranks] Compares every parameter of the model with the twin's: gradients or weights. */
static void compare_all(Verify *v, const Params *params, Kind kind, long step)
{
    double largest_of_all = largest_entry(v, kind);
    const Params *twin = have_twin() ? &v->twin->params : NULL;
    for (; params; params = params->next, twin = twin ? twin->next : NULL)
        for (int n = 0; n < params->views; n++) compare_view(v, params, n, twin, kind, largest_of_all, step);
}

/* [all ranks] The bias of experts follows from counts of rows: each rank has the twin's. */
static void compare_bias(Verify *v, const Model *model, long step)
{
    size_t count = (size_t)(model->config.layers * model->config.moe.experts);
    double difference, largest;
    if (!model->router.bias) return;
    if (have_twin()) v->kernels.download(v->theirs, v->twin->router.bias, count * sizeof *v->theirs);
    comm_broadcast(comm_control(), v->theirs, count, COMM_ACC, 0);
    v->kernels.download(v->mine, model->router.bias, count * sizeof *v->mine);
    verify_compare(v->mine, v->theirs, count, &difference, &largest);
    double error = verify_error(difference, largest, 0);
    comm_all_reduce(comm_control(), &error, 1, COMM_DOUBLE, COMM_MAX);
    findings_note(&v->findings, WEIGHT, error, "the router's bias", step);
}

/* [all ranks] The twin's rows go to the same experts, so its counts of choices are the run's. Also notes how many choices
 * the twin would have made differently. */
static void compare_choices(Verify *v, const Model *model)
{
    size_t size = model->config.moe.experts ? router_table_size(model) : 0, E = (size_t)model->config.moe.experts;
    if (size == 0) return;
    int64_t *ours = malloc(size * sizeof *ours), *theirs = malloc(size * sizeof *theirs), differ = 0, all = 0;
    if (!ours || !theirs) fatal("out of memory for --verify");
    v->kernels.download(ours, model->router.total, size * sizeof *ours);
    if (have_twin()) v->kernels.download(theirs, v->twin->router.total, size * sizeof *theirs);
    comm_broadcast(comm_control(), theirs, size, COMM_INT64, 0);
    for (size_t i = 0; i < size; i++) {
        if (i % (E + 1) == E) continue; /* dropped choices */
        differ += ours[i] > theirs[i] ? ours[i] - theirs[i] : 0;
        all += theirs[i];
    }
    int64_t counts[] = {differ, twin_routes_end_step(v->routes)};
    comm_all_reduce(comm_control(), counts, 2, COMM_INT64, COMM_MAX); /* so all ranks judge alike */
    findings_note_choices(&v->findings, counts[0], counts[1], all);
    free(ours);
    free(theirs);
}

/* --- the twin's steps --- */

static void twin_step(Verify *v, long step)
{
    Model *twin = v->twin;
    batch_read(&v->whole, step);
    model_zero_grads(twin);
    for (int m = 0; m < v->whole.accumulate; m++) {
        Rows rows = batch_micro_step(&v->whole, m);
        model_begin(twin, m, v->whole.accumulate);
        model_forward(twin, twin->activations, &rows);
        model_loss(twin, twin->activations, batch_scale(&v->whole));
        model_backward(twin, twin->activations);
    }
    optimizer_measure(&v->optimizer, &twin->params, step);
    v->twin_numbers[0] = model_read_loss(twin);
    v->twin_numbers[1] = optimizer_read_norm(&v->optimizer);
    v->twin_numbers[2] = model_read_aux(twin);
}

void verify_gradients(Verify *v, const Model *model, long step)
{
    if (!v || step >= v->steps) return;
    twin_routes_share(v->routes, v->twin);
    if (have_twin()) twin_step(v, step);
    wait_for_the_twin(v);
    compare_choices(v, model);
    compare_all(v, &model->params, GRADIENT, step);
}

/* The error of a number, relative to the twin's. */
static double relative(double ours, double theirs)
{
    double error = fabs(ours - theirs) / fmax(fabs(theirs), 1e-3);
    return isnan(error) ? INFINITY : error;
}

void verify_numbers(Verify *v, long step, double loss, double aux, double norm)
{
    if (!v || step >= v->steps) return;
    double errors[3] = {relative(loss, v->twin_numbers[0]), relative(norm, v->twin_numbers[1]),
                        relative(aux, v->twin_numbers[2])};
    comm_all_reduce(comm_control(), errors, 3, COMM_DOUBLE, COMM_MAX);
    findings_note(&v->findings, LOSS, errors[2], "the auxiliary loss", step);
    findings_note(&v->findings, LOSS, errors[0], "the loss", step);
    findings_note(&v->findings, NORM, errors[1], "the norm of the gradients", step);
}

/* [all ranks] Only the ranks of one group may see that their replicas differ: all ranks agree on the first
 * parameter. */
static void compare_replicas(Verify *v, const Params *params)
{
    const char *name = params_unequal(params, &v->kernels, &v->replicas), *found = "";
    int64_t all = 0, first = INT64_MAX; /* numbers of views, through all parameters of the model */
    for (const Params *p = params; p; all += p->views, p = p->next)
        for (int n = 0; n < p->views; n++)
            if (name && p->view[n].name == name) first = all + n;
    comm_all_reduce(comm_control(), &first, 1, COMM_INT64, COMM_MIN);
    if (first == INT64_MAX || v->findings.unequal[0]) return;
    for (const Params *p = params; p; first -= p->views, p = p->next)
        if (first >= 0 && first < p->views) found = p->view[first].name;
    snprintf(v->findings.unequal, sizeof v->findings.unequal, "%s", found);
}

void verify_weights(Verify *v, const Model *model, long step)
{
    if (!v || step >= v->steps) return;
    if (have_twin()) {
        optimizer_step(&v->optimizer, &v->twin->params);
        router_end_step(v->twin);
    }
    wait_for_the_twin(v);
    compare_all(v, &model->params, WEIGHT, step);
    compare_bias(v, model, step);

    compare_replicas(v, &model->params);
    v->done = step + 1;
    if (v->done == v->steps) end_twin(v);
}

int verify_report(Verify *v)
{
    if (!v) return 0;
    bool failed = findings_print(&v->findings, v->done, v->steps, have_twin());
    end_twin(v);
    free(v->mine);
    free(v->theirs);
    free(v->block);
    free(v);
    return failed;
}
