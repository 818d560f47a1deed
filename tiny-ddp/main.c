/* tiny-ddp: data-parallel training. On one rank it is the single-device program; step through that in gdb first. */
#include "comm/agree.h"
#include "ddp.h"
#include "observe/show.h"
#include "train/run.h"
#include "train/trainer.h"

int main(int argc, char **argv)
{
    Trainer t;
    DdpOptions options = {0};
    OptionTable flags[] = {ddp_options(&options)};
    trainer_start(&t, argc, argv, "tiny-ddp/tiny-ddp", flags, 1);

    /* The grid of ranks: all of them are along dp. trainer_check ends the run if a flag is wrong. */
    int ranks = options.dp ? (int)options.dp : trainer_ranks(&t);
    Shape shape = {{[AXIS_TP] = 1, [AXIS_CP] = 1, [AXIS_FSDP] = 1, [AXIS_DP] = ranks}};
    trainer_check(&t, shape);
    const Config *config = &t.config;
    ModelPart part = {.placement = {.by = SHARD_NOTHING}}; /* every rank holds everything */

    /* For --show and --ledger: what this run will send and hold, by formula. */
    Expected expected = trainer_expect(&t, part);
    Params table = params_table(&config->architecture);
    ddp_expect(&expected, "dp", &table, options, ranks, config->steps);
    params_free(&table);
    if (*config->show) {
        if (comm_world_rank() == 0 && !show(config, shape, part, &expected))
            ddp_show_plan(&config->architecture, options, config->accumulate);
        return run_finish(0);
    }

    trainer_open(&t, part, &expected); /* data, model, optimizer: as on a single device */
    Model *model = t.model;
    Params *params = &model->params;

    /* The scheme: the group of ranks along dp, and a hook that runs when a unit's gradients are complete. */
    Ddp ddp = ddp_create(params, &model->micro_step, mesh_group(&t.mesh, ALONG_DP, "dp"), options);
    model->seams.parameters = ddp_seam(&ddp);
    Replicas replicas = {0};
    ddp_replicas(&ddp, &replicas);
    trainer_begin(&t, replicas);

    for (long step = 0; step < config->steps; step++) {
        batch_read(&t.batch, step);
        model_zero_grads(model);
        for (int m = 0; m < t.batch.accumulate; m++) {
            Rows rows = batch_micro_step(&t.batch, m);
            model_begin(model, m, t.batch.accumulate);
            model_forward(model, model->activations, &rows);
            model_loss(model, model->activations, batch_scale(&t.batch));
            observe_forward(&t, m);
            model_backward(model, model->activations);
            observe_backward(&t, m);
        }
        ddp_finish(&ddp);
        optimizer_measure(&t.optimizer, params, step);
        observe_gradients(&t, step);
        optimizer_step(&t.optimizer, params);
        observe_step(&t, step);
    }

    int status = trainer_finish(&t, &expected);
    ddp_free(&ddp);
    return status;
}
