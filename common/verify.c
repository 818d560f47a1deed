#include "verify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "memory.h"
#include "recorder.h"

#if defined(PRECISION_FP64)
static const double BOUND_FIRST = 1e-12, BOUND_LATER = 1e-9, FLOOR = 1e-3;
static const bool JUDGE_LATER = true;
#else
static const double BOUND_FIRST = 1e-5, BOUND_LATER = 1e-5, FLOOR = 5e-2;
static const bool JUDGE_LATER = false; /* printed as drift */
#endif

/* The largest error of a kind, where it was, and whether it is within bounds. */
typedef struct {
    double error;
    bool failed;
    char where[96];
} Finding;

struct Verify {
    long steps, done;
    OptimizerConfig config;
    Group *replicas;
    Batch whole;         /* on rank 0: the batch of all ranks */
    Model *twin;         /* on rank 0 */
    Optimizer optimizer; /* on rank 0 */
    acc *tensor;         /* the tensor being compared, from rank 0 */
    Finding loss, gradient, weight;
    Finding gradient_drift, weight_drift; /* not judged */
    char unequal[96];                     /* a parameter whose replicas differ */
};

static bool have_twin(void)
{
    return group_rank(comm_control()) == 0;
}

Verify *verify_create(long steps, const Model *model, const Batch *batch, OptimizerConfig optimizer, Group *replicas)
{
    if (steps == 0) return NULL;
    Verify *v = calloc(1, sizeof *v);
    if (!v) fatal("out of memory");
    v->steps = steps < optimizer.steps ? steps : optimizer.steps;
    v->config = optimizer;
    v->replicas = replicas;
    size_t largest = 0;
    for (int n = 0; n < model->params.views; n++)
        if (model->params.view[n].size > largest) largest = model->params.view[n].size;

    memory_charge_twin(1);
    v->tensor = memory_alloc(largest * sizeof *v->tensor, MEMORY_TWIN);
    if (have_twin()) {
        v->whole = batch_create(batch->data, batch->order, batch->accumulate, NULL);
        v->twin = model_create(&model->config, &model->kernels, v->whole.sequences * v->whole.order.seq);
        v->optimizer = optimizer_create(optimizer, &v->twin->params);
        memcpy(v->twin->params.weights, model->params.weights, model->params.count * sizeof(real));
    }
    memory_charge_twin(0);
    return v;
}

static void end_twin(Verify *v)
{
    memory_free(v->tensor);
    v->tensor = NULL;
    if (!have_twin()) return;
    optimizer_free(&v->optimizer);
    model_free(v->twin);
    batch_free(&v->whole);
    v->twin = NULL;
}

/* --- the metric --- */

void verify_compare(const acc *a, const acc *b, size_t n, double *difference, double *largest)
{
    double d = 0, l = 0;
    for (size_t i = 0; i < n; i++) {
        double x = fabs((double)a[i] - (double)b[i]), y = fabs((double)b[i]);
        if (!(x <= d)) d = isnan(x) ? INFINITY : x;
        if (y > l) l = y;
    }
    *difference = d;
    *largest = l;
}

double verify_error(double difference, double largest, double largest_of_all)
{
    double scale = fmax(largest, FLOOR * largest_of_all);
    return scale > 0 ? difference / scale : difference > 0 ? INFINITY : 0;
}

static void note(Finding *f, double error, double bound, const char *what, long step)
{
    if (!(error <= bound)) f->failed = true;
    if (error <= f->error) return;
    f->error = error;
    snprintf(f->where, sizeof f->where, "%s at step %ld", what, step + 1);
}

/* [all ranks] Compares every tensor with the twin's, which lies in `theirs` on rank 0, and notes the worst. */
static void compare_all(Verify *v, const Params *params, const acc *ours, const acc *theirs, Finding *finding,
                        double bound, long step)
{
    Group *control = comm_control();
    double largest_of_all = 0;
    if (theirs)
        for (size_t i = 0; i < params->count; i++) largest_of_all = fmax(largest_of_all, fabs((double)theirs[i]));
    comm_broadcast(control, &largest_of_all, 1, COMM_DOUBLE, 0);
    for (int n = 0; n < params->views; n++) {
        const View *view = &params->view[n];
        if (theirs) memcpy(v->tensor, theirs + view->offset, view->size * sizeof *v->tensor);
        comm_broadcast(control, v->tensor, view->size, COMM_ACC, 0);
        double difference, largest;
        verify_compare(ours + view->offset, v->tensor, view->size, &difference, &largest);
        double error = verify_error(difference, largest, largest_of_all);
        comm_all_reduce(control, &error, 1, COMM_DOUBLE, COMM_MAX);
        note(finding, error, bound, view->name, step);
    }
}

/* [all ranks] Replicas must agree to the bit. */
static void compare_replicas(Verify *v, const Params *params)
{
    for (int n = 0; n < params->views; n++) {
        const View *view = &params->view[n];
        int64_t differ = !comm_same_bits(v->replicas, params->weights + view->offset, view->size * sizeof(real));
        comm_all_reduce(comm_control(), &differ, 1, COMM_INT64, COMM_MAX);
        if (differ && !v->unequal[0]) snprintf(v->unequal, sizeof v->unequal, "%s", view->name);
    }
}

/* --- the twin's steps --- */

static double twin_step(Verify *v, long step)
{
    Model *twin = v->twin;
    double loss = 0;
    batch_read(&v->whole, step);
    model_zero_grads(twin);
    for (int m = 0; m < v->whole.accumulate; m++) {
        Rows rows = batch_micro_step(&v->whole, m);
        model_forward(twin, &rows);
        loss += model_loss(twin, &rows, batch_scale(&v->whole));
        model_backward(twin, &rows);
    }
    return loss;
}

void verify_gradients(Verify *v, const Model *model, long step, double loss)
{
    if (!v || step >= v->steps) return;
    watchdog_pause();
    double error = 0;
    if (have_twin()) {
        double twin_loss = twin_step(v, step);
        error = fabs(loss - twin_loss) / fmax(fabs(twin_loss), 1e-3);
        if (isnan(error)) error = INFINITY;
    }
    comm_broadcast(comm_control(), &error, 1, COMM_DOUBLE, 0);
    double bound = step == 0 ? BOUND_FIRST : BOUND_LATER;
    note(&v->loss, error, bound, "the loss", step);

    bool judged = step == 0 || JUDGE_LATER;
    const acc *theirs = have_twin() ? v->twin->params.grads : NULL;
    compare_all(v, &model->params, model->params.grads, theirs, judged ? &v->gradient : &v->gradient_drift,
                judged ? bound : INFINITY, step);
    watchdog_resume();
}

void verify_weights(Verify *v, const Model *model, long step)
{
    if (!v || step >= v->steps) return;
    watchdog_pause();
    if (have_twin()) {
        Params *p = &v->twin->params;
        optimizer_step(&v->optimizer, p, &v->twin->kernels, step, optimizer_grad_norm(p, &v->twin->kernels));
    }
    const acc *theirs = have_twin() ? v->twin->params.weights : NULL;
    compare_all(v, &model->params, model->params.weights, theirs, JUDGE_LATER ? &v->weight : &v->weight_drift,
                JUDGE_LATER ? BOUND_LATER : INFINITY, step);
    compare_replicas(v, &model->params);
    v->done = step + 1;
    if (v->done == v->steps) end_twin(v);
    watchdog_resume();
}

int verify_report(Verify *v)
{
    if (!v) return 0;
    const Finding *judged[] = {&v->loss, &v->gradient, &v->weight};
    bool failed = v->unequal[0] != '\0' || v->done < v->steps;
    for (int f = 0; f < 3; f++) failed = failed || judged[f]->failed;

    if (have_twin()) {
        if (v->unequal[0]) printf("verify: replicas of %s differ\n", v->unequal);
        for (int f = 0; f < 3; f++)
            if (judged[f]->failed) printf("verify: %s is off by %.1e\n", judged[f]->where, judged[f]->error);
        if (!JUDGE_LATER)
            printf("verify: drift after %ld steps, not judged: grad %.1e  weights %.1e\n", v->done,
                   v->gradient_drift.error, v->weight_drift.error);
        printf("verify: %s  loss %.1e  grad %.1e", failed ? "FAIL" : "PASS", v->loss.error, v->gradient.error);
        if (JUDGE_LATER)
            printf("  weights %.1e  (bounds %.0e, %.0e)\n", v->weight.error, BOUND_FIRST, BOUND_LATER);
        else
            printf("  weights equal on all ranks  (bound %.0e)\n", BOUND_FIRST);
    }
    if (v->tensor) end_twin(v);
    free(v);
    return failed;
}
