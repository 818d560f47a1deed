/* tiny-ddp: data-parallel training. On one rank it is the single-device program: step that one first. */
#include "ddp.h"
#include "base/error.h"
#include "comm/agree.h"
#include "train/run.h"
#include "observe/show.h"
#include "comm/trace.h"
#include "train/trainer.h"

int main(int argc, char **argv)
{
    Trainer t;
    DdpOptions options = {0};
    trainer_start(&t, argc, argv, "tiny-ddp/tiny-ddp", ddp_options(&options));

    /* The grid of ranks: here just a line of them, along dp. What is wrong with the flags ends the run in trainer_check. */
    int ranks = options.dp ? (int)options.dp : trainer_ranks(&t);
    Shape shape = {{[AXIS_TP] = 1, [AXIS_CP] = 1, [AXIS_FSDP] = 1, [AXIS_DP] = ranks}};
    trainer_check(&t, shape);
    const Config *config = &t.config;

    Holding holding = {.cut = CUT_NOTHING}; /* every rank holds everything */

    /* What this run will send and hold, by formula: for --show and --ledger. */
    Expected expected = trainer_expect(&t, shape, 1);
    ddp_expect(&expected, &config->architecture, options, ranks, config->steps);
    if (*config->show) {
        if (comm_world_rank() == 0 && !show(config, shape, holding, &expected))
            ddp_show_plan(&config->architecture, options, config->accumulate);
        return run_finish(0);
    }

    trainer_open(&t, shape, holding, 1, &expected); /* data, model, optimizer: as on a single device */
    Model *model = t.model;
    Params *params = &model->params;

    /* The scheme: the ranks along dp, and a hook where a unit's gradients are complete. */
    Ddp ddp = ddp_create(params, mesh_group(&t.mesh, 1u << AXIS_DP, "dp"), options);
    model->seams.parameters = ddp_seam(&ddp);
    Replicas replicas = {.pieces = ddp.group};
    agree(params_check_start(params, &model->kernels, replicas));
    trainer_begin(&t, replicas);

    for (long step = 0; step < config->steps; step++) {
        trace_begin("step %ld", step + 1);
        batch_read(&t.batch, step);
        model_zero_grads(model);
        for (int m = 0; m < t.batch.accumulate; m++) {
            Rows rows = batch_micro_step(&t.batch, m);
            ddp_begin(&ddp, m == t.batch.accumulate - 1);
            model_forward(model, &rows);
            model_loss(model, &rows, batch_scale(&t.batch));
            if (config->step) run_pause("forward %d done; my share of the loss: %.5f", m + 1, model_read_loss(model));
            model_backward(model, &rows);
            run_pause("backward %d done", m + 1);
        }
        ddp_finish(&ddp);
        optimizer_measure(&t.optimizer, params, step);
        if (config->step) run_pause("reduced; norm of the gradients: %.5f", optimizer_read_norm(&t.optimizer));

        if (step == 0) dump_gradients(&t.dump, params);
        verify_gradients(t.verify, model, step);
        trace_begin("optimizer");
        optimizer_step(&t.optimizer, params);
        trace_end();
        verify_weights(t.verify, model, step);

        double loss = model_read_loss(model), norm = optimizer_read_norm(&t.optimizer);
        comm_all_reduce(t.mesh.data_group, &loss, 1, COMM_DOUBLE, COMM_SUM);
        trace_end();
        verify_loss(t.verify, step, loss);
        metrics_step(&t.metrics, step, loss, norm, optimizer_lr(&t.optimizer.config, step));
    }

    int status = trainer_finish(&t, &expected);
    ddp_free(&ddp);
    return status;
}
