/* tiny-cp: context parallelism along cp, data parallelism along dp. Read tiny-ddp/main.c first, then
 * diff -u tiny-ddp/main.c tiny-cp/main.c. */
#include "comm/agree.h"
#include "context_parallel.h"
#include "ddp.h"
#include "observe/show.h"
#include "train/run.h"
#include "train/trainer.h"

int main(int argc, char **argv)
{
    Trainer t;
    ContextOptions options = {0};
    DdpOptions ddp_flags = {0};
    OptionTable flags[] = {context_options(&options), ddp_options(&ddp_flags)};
    trainer_start(&t, argc, argv, "tiny-cp/tiny-cp", flags, 2);

    /* The grid of ranks: cp neighbouring ranks share each sequence; the replicas are along dp. */
    int ranks = trainer_ranks(&t);
    agree(context_check(&options, ranks));
    int cp = (int)options.cp, dp = ddp_flags.dp ? (int)ddp_flags.dp : ranks / cp;
    Shape shape = {{[AXIS_TP] = 1, [AXIS_CP] = cp, [AXIS_FSDP] = 1, [AXIS_DP] = dp}};
    trainer_check(&t, shape);
    const Config *config = &t.config;
    const ModelConfig *architecture = &config->architecture;
    DataOrder order = config_data_order(config);
    int micro_rows = (int)(config->batch * config->seq / config->accumulate) / dp / cp;
    agree(context_check_model(&options, architecture, config->seq, micro_rows));
    ModelPart part = {.placement = {.by = SHARD_NOTHING}}; /* every rank holds the whole model */
    t.cut = context_cut(&options);                         /* and some rows of each sequence */

    /* For --show and --ledger: what this run will send and hold, by formula. */
    Expected expected = trainer_expect(&t, part);
    Params table = params_table(architecture);
    ddp_expect(&expected, "dp", &table, ddp_flags, cp * dp, config->steps);
    params_free(&table);
    context_expect(&expected, architecture, &options, order, micro_rows, config->recompute, (int)config->accumulate,
                   config->steps);
    if (*config->show) {
        if (comm_world_rank() == 0 && !show(config, shape, part, &expected))
            context_show_plan(architecture, &options, order);
        return run_finish(0);
    }

    trainer_open(&t, part, &expected); /* data, model, optimizer */
    Model *model = t.model;
    Params *params = &model->params;

    /* Two schemes: attention brings keys to queries along cp; tiny-ddp sums gradients over all ranks, because ranks
     * along cp have different rows, like ranks along dp. */
    ContextParallel context = context_create(model, context_groups(&t.mesh, &options), &options, order, micro_rows);
    if (cp > 1) model->seams.sequence = context_seam(&context);
    Ddp ddp = ddp_create(params, &model->micro_step, mesh_group(&t.mesh, ALONG_CP | ALONG_DP, "dp"), ddp_flags);
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

    if (config->ledger) context_print_work(t.batch.pairs);
    int status = trainer_finish(&t, &expected);
    context_free(&context);
    ddp_free(&ddp);
    return status;
}
