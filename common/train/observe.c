/* What a step prints, compares and saves. The training loop in main.c calls these functions between its phases. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/trace.h"
#include "train/run.h"
#include "train/trainer.h"

void observe_forward(Trainer *t, int m)
{
    if (t->config.step) run_pause("forward %d done; my share of the loss: %.5f", m + 1, model_read_loss(t->model));
}

void observe_backward(Trainer *t, int m)
{
    (void)t;
    run_pause("backward %d done", m + 1);
}

void observe_gradients(Trainer *t, long step)
{
    if (t->config.step) run_pause("reduced; norm of the gradients: %.5f", optimizer_read_norm(&t->optimizer));
    if (step == 0) dump_gradients(&t->dump, &t->model->params);
    verify_gradients(t->verify, t->model, step);
}

/* [all ranks] All ranks have the same loss and norm, so all ranks stop together. */
static void stop_if_not_finite(Trainer *t, long step, double loss, double norm)
{
    if (isfinite(loss) && isfinite(norm)) return;
    const char *what = isfinite(loss) ? "the norm of the gradients" : "the loss";
    const char *kept = isfinite(norm) ? "" : "the weights stay as they were, and ";
    if (comm_world_rank() == 0)
        fprintf(stderr, "step %ld: %s is %f; %sall ranks stop\n", step + 1, what, isfinite(loss) ? norm : loss, kept);
    verify_report(t->verify);
    metrics_close(&t->metrics);
    exit(run_finish(1));
}

void observe_step(Trainer *t, long step)
{
    double loss = model_read_loss(t->model);
    double norm = optimizer_read_norm(&t->optimizer);
    double aux = model_read_aux(t->model);
    comm_all_reduce(t->mesh.rows_group, &loss, 1, COMM_DOUBLE, COMM_SUM);
    verify_weights(t->verify, t->model, step);
    verify_numbers(t->verify, step, loss, aux, norm);
    trace_end(); /* the step */
    metrics_step(&t->metrics, step, loss, aux, norm, optimizer_lr(&t->optimizer.config, step), t->batch.area);
    stop_if_not_finite(t, step, loss + aux, norm);
    if (step + 1 < t->config.steps) trace_begin("step %ld", step + 2);
}
