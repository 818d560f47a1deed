/* tiny-moe: experts dealt over ranks, data parallelism for the rest. Read tiny-ddp/main.c first, then
 * diff -u tiny-ddp/main.c tiny-moe/main.c. */
#include <string.h>

#include "base/bug.h"
#include "base/error.h"
#include "comm/agree.h"
#include "ddp.h"
#include "expert_parallel.h"
#include "observe/show.h"
#include "train/run.h"
#include "train/trainer.h"

int main(int argc, char **argv)
{
    Trainer t;
    ExpertOptions options = {0};
    DdpOptions ddp_flags = {0};
    OptionTable flags[] = {experts_options(&options), ddp_options(&ddp_flags)};
    trainer_start(&t, argc, argv, "tiny-moe/tiny-moe", flags, 2);

    /* The grid of ranks: all are along dp. Each ep neighbours hold all experts together. */
    int ranks = ddp_flags.dp ? (int)ddp_flags.dp : trainer_ranks(&t);
    Shape shape = {{[AXIS_TP] = 1, [AXIS_CP] = 1, [AXIS_FSDP] = 1, [AXIS_DP] = ranks}};
    t.takes_experts = true;
    trainer_check(&t, shape);
    const Config *config = &t.config;
    ModelConfig *architecture = &t.config.architecture;
    agree(experts_apply(&options, architecture, config_folder(config)));
    agree(experts_check(&options, architecture, ranks));
    bool drops = options.capacity > 0, on_gpu = strcmp(config->kernels.backend, "cpu") != 0;
    if (config->verify && drops)
        agree(complain("--verify: not with --capacity, whose choice of rows depends on the ranks"));
    int ep = (int)options.ep, rows = (int)(config->batch * config->seq / config->accumulate) / ranks;
    ModelPart part = {.placement = {.by = SHARD_NOTHING}, .recompute = config->recompute};
    agree(experts_place(&options, architecture, on_gpu, rows, &part));

    /* For --show and --ledger: what this run will send and hold, by formula. */
    Expected expected = trainer_expect(&t, part);
    Params dense = params_table(architecture), experts = experts_table(architecture, ep, 0);
    ddp_expect(&expected, "dp", &dense, ddp_flags, ranks, config->steps);
    ddp_expect(&expected, "edp", &experts, ddp_flags, ranks / ep, config->steps);
    experts_expect(&expected, architecture, &part, rows, (int)config->accumulate, config->steps);
    params_free(&dense);
    params_free(&experts);
    if (*config->show) {
        if (comm_world_rank() == 0 && !show(config, shape, part, &expected))
            experts_show_plan(
                architecture, &options,
                "dense gradients all-reduced on dp, those of experts on edp, among ranks with the same experts");
        return run_finish(0);
    }

    trainer_open(&t, part, &expected); /* data, model, optimizer */
    Model *model = t.model;
    Params *params = &model->params; /* params->next are the experts: the optimizer updates both */

    /* Three schemes: rows go to their experts along ep. tiny-ddp sums dense gradients over all ranks, and gradients of
     * experts over the ranks that hold the same experts. */
    ExpertParallel parallel = experts_parallel(model, mesh_neighbours(&t.mesh, ep, "ep"), t.batch.step_rows);
    model->seams.experts = experts_seam(&parallel);
    Group *all = mesh_group(&t.mesh, ALONG_DP, "dp"), *same_experts = mesh_expert_replicas(&t.mesh, ep, "edp");
    Ddp ddp = ddp_create(params, &model->micro_step, all, ddp_flags);
    Ddp expert_ddp =
        ddp_create(&model->experts, &model->micro_step, BUG(expert_sum_over_all) ? all : same_experts, ddp_flags);
    SeamChain chain;
    model->seams.parameters = seam_chain(&chain, ddp_seam(&expert_ddp), ddp_seam(&ddp));
    Replicas replicas = {0};
    ddp_replicas(&ddp, &replicas);
    replicas_add(&replicas, &model->experts, same_experts, EQUAL_SHARDS);
    trainer_begin(&t, replicas);

    for (long step = 0; step < config->steps; step++) {
        batch_read(&t.batch, step);
        model_zero_grads(model);
        for (int m = 0; m < t.batch.accumulate; m++) {
            Rows micro_step = batch_micro_step(&t.batch, m);
            model_begin(model, m, t.batch.accumulate);
            model_forward(model, model->activations, &micro_step);
            model_loss(model, model->activations, batch_scale(&t.batch));
            observe_forward(&t, m);
            model_backward(model, model->activations);
            observe_backward(&t, m);
        }
        ddp_finish(&expert_ddp);
        ddp_finish(&ddp);
        optimizer_measure(&t.optimizer, params, step);
        observe_gradients(&t, step);
        optimizer_step(&t.optimizer, params);
        router_end_step(model); /* the bias that balances the experts */
        observe_step(&t, step);
    }

    if (config->ledger && comm_world_rank() == 0) experts_print_load(model);
    int status = trainer_finish(&t, &expected);
    experts_free(&parallel);
    ddp_free(&ddp);
    ddp_free(&expert_ddp);
    return status;
}
