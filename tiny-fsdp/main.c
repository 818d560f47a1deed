/* tiny-fsdp: data-parallel training that shards what tiny-ddp replicates. Read tiny-ddp/main.c first, then
 * diff -u tiny-ddp/main.c tiny-fsdp/main.c. */
#include "comm/agree.h"
#include "observe/show.h"
#include "sharding.h"
#include "train/run.h"
#include "train/trainer.h"

int main(int argc, char **argv)
{
    Trainer t;
    ShardingOptions options = {0};
    OptionTable flags[] = {sharding_options(&options)};
    trainer_start(&t, argc, argv, "tiny-fsdp/tiny-fsdp", flags, 1);

    /* The grid of ranks: the ranks along fsdp share one copy of the model; the copies are along dp. */
    int ranks = trainer_ranks(&t);
    agree(sharding_check(&options, ranks));
    Shape shape = sharding_shape(&options, ranks);
    trainer_check(&t, shape);
    const Config *config = &t.config;
    ModelPart part = {.placement = strategy_find(options.strategy)->placement}; /* what a rank holds of the model */

    /* For --show and --ledger: what this run will send and hold, by formula. */
    Expected expected = trainer_expect(&t, part);
    Params table = params_table(&config->architecture);
    sharding_expect(&expected, &table, &options, sharding_layout(shape, part.placement.by), (int)config->accumulate,
                    config->steps);
    params_free(&table);
    if (*config->show) {
        if (comm_world_rank() == 0 && !show(config, shape, part, &expected))
            sharding_show_plan(&config->architecture, &options, shape, (int)config->accumulate);
        return run_finish(0);
    }

    trainer_open(&t, part, &expected); /* data, this rank's shards of the model, optimizer */
    Model *model = t.model;
    Params *params = &model->params;

    /* The scheme: the groups to gather and reduce on, and hooks around each unit. */
    Sharding sharding = sharding_create(params, &model->micro_step, &model->kernels,
                                        sharding_groups(&t.mesh, part.placement.by), options, t.batch.accumulate);
    model->seams.parameters = sharding_seam(&sharding);
    Replicas replicas = {0};
    sharding_replicas(&sharding, &replicas);
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
        sharding_finish(&sharding);
        optimizer_measure(&t.optimizer, params, step);
        observe_gradients(&t, step);
        optimizer_step(&t.optimizer, params);
        sharding_publish(&sharding);
        observe_step(&t, step);
    }

    int status = trainer_finish(&t, &expected);
    sharding_free(&sharding);
    return status;
}
