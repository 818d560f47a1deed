/* tiny-fsdp: data-parallel training that shards what tiny-ddp copies. Read tiny-ddp/main.c first, and then
 * diff -u tiny-ddp/main.c tiny-fsdp/main.c. */
#include "base/error.h"
#include "comm/agree.h"
#include "train/run.h"
#include "sharding.h"
#include "observe/show.h"
#include "comm/trace.h"
#include "train/trainer.h"

int main(int argc, char **argv)
{
    Trainer t;
    ShardingOptions options = {0};
    trainer_start(&t, argc, argv, "tiny-fsdp/tiny-fsdp", sharding_options(&options));

    /* The grid of ranks: N along fsdp share one copy of the model; along dp are the copies. */
    int ranks = trainer_ranks(&t);
    agree(sharding_check(&options, ranks));
    Shape shape = sharding_shape(&options, ranks);
    trainer_check(&t, shape);
    const Config *config = &t.config;
    Holding holding = strategy_find(options.strategy)->holding; /* what a rank holds of the model */

    /* What this run will send and hold, by formula: for --show and --ledger. */
    Expected expected = trainer_expect(&t, shape, 1);
    sharding_expect(&expected, &config->architecture, &options, shape, (int)config->accumulate, config->steps);
    if (*config->show) {
        if (comm_world_rank() == 0 && !show(config, shape, holding, &expected))
            sharding_show_plan(&config->architecture, &options, shape, (int)config->accumulate);
        return run_finish(0);
    }

    trainer_open(&t, shape, holding, 1, &expected); /* data, this rank's part of the model, optimizer */
    Model *model = t.model;
    Params *params = &model->params;

    /* The scheme: the groups, and hooks around each unit. */
    Sharding sharding = sharding_create(params, &model->kernels, sharding_groups(&t.mesh), options, t.batch.accumulate);
    model->seams.parameters = sharding_seam(&sharding);
    t.optimizer.shards = sharding_norm_group(&sharding);
    Replicas replicas = sharding_replicas(&sharding);
    agree(params_check_start(params, &model->kernels, replicas));
    trainer_begin(&t, replicas);

    for (long step = 0; step < config->steps; step++) {
        trace_begin("step %ld", step + 1);
        batch_read(&t.batch, step);
        model_zero_grads(model);
        for (int m = 0; m < t.batch.accumulate; m++) {
            Rows rows = batch_micro_step(&t.batch, m);
            sharding_begin(&sharding, m);
            model_forward(model, &rows);
            model_loss(model, &rows, batch_scale(&t.batch));
            if (config->step) run_pause("forward %d done; my share of the loss: %.5f", m + 1, model_read_loss(model));
            model_backward(model, &rows);
            run_pause("backward %d done", m + 1);
        }
        sharding_finish(&sharding);
        optimizer_measure(&t.optimizer, params, step);
        if (config->step) run_pause("reduced; norm of the gradients: %.5f", optimizer_read_norm(&t.optimizer));

        if (step == 0) dump_gradients(&t.dump, params);
        verify_gradients(t.verify, model, step);
        trace_begin("optimizer");
        optimizer_step(&t.optimizer, params);
        trace_end();
        sharding_publish(&sharding);
        verify_weights(t.verify, model, step);

        double loss = model_read_loss(model), norm = optimizer_read_norm(&t.optimizer);
        comm_all_reduce(t.mesh.data_group, &loss, 1, COMM_DOUBLE, COMM_SUM);
        trace_end();
        verify_loss(t.verify, step, loss);
        metrics_step(&t.metrics, step, loss, norm, optimizer_lr(&t.optimizer.config, step));
    }

    int status = trainer_finish(&t, &expected);
    sharding_free(&sharding);
    return status;
}
