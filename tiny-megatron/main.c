/* tiny-megatron: tensor parallelism along tp, data parallelism along dp. Read tiny-ddp/main.c first, then
 * diff -u tiny-ddp/main.c tiny-megatron/main.c. */
#include "comm/agree.h"
#include "ddp.h"
#include "observe/show.h"
#include "tensor_parallel.h"
#include "train/run.h"
#include "train/trainer.h"

int main(int argc, char **argv)
{
    Trainer t;
    TensorOptions options = {0};
    DdpOptions ddp_flags = {0};
    OptionTable flags[] = {tensor_options(&options), ddp_options(&ddp_flags)};
    trainer_start(&t, argc, argv, "tiny-megatron/tiny-megatron", flags, 2);

    /* The grid of ranks: tp neighbouring ranks share each layer; the replicas are along dp. */
    int ranks = trainer_ranks(&t);
    agree(tensor_check(&options, ranks));
    int tp = (int)options.tp, dp = ddp_flags.dp ? (int)ddp_flags.dp : ranks / tp;
    Shape shape = {{[AXIS_TP] = tp, [AXIS_CP] = 1, [AXIS_FSDP] = 1, [AXIS_DP] = dp}};
    trainer_check(&t, shape);
    const Config *config = &t.config;
    int micro_rows = (int)(config->batch * config->seq / config->accumulate) / dp;
    agree(tensor_check_model(&options, &config->architecture, config->batch, config->seq, micro_rows));
    ModelPart part = {.placement = {.by = SHARD_NOTHING}, /* a rank holds its whole slice of the model */
                      .stream_parts = options.sp ? tp : 1,
                      .row_chunks = options.sp ? (int)options.overlap_chunks : 1};

    /* For --show and --ledger: what this run will send and hold, by formula. */
    Expected expected = trainer_expect(&t, part);
    Params table = params_table_split(&config->architecture, tp, 0);
    ddp_expect(&expected, "dp", &table, ddp_flags, dp, config->steps);
    params_free(&table);
    tensor_expect(&expected, &config->architecture, &options, micro_rows, config->recompute, (int)config->accumulate, 1,
                  config->steps);
    if (*config->show) {
        if (comm_world_rank() == 0 && !show(config, shape, part, &expected))
            tensor_show_plan(&config->architecture, &options, shape);
        return run_finish(0);
    }

    trainer_open(&t, part, &expected); /* data, this rank's slice of the model, optimizer */
    Model *model = t.model;
    Params *params = &model->params;

    /* Two schemes: tensor parallelism along tp is the inner seam, tiny-ddp's along dp the outer one. */
    Group *along_tp = mesh_group(&t.mesh, ALONG_TP, "tp"), *kv = tensor_kv_group(along_tp, &config->architecture);
    TensorParallel tensor = tensor_create(model, along_tp, kv, options, micro_rows);
    Ddp ddp = ddp_create(params, &model->micro_step, mesh_group(&t.mesh, ALONG_DP, "dp"), ddp_flags);
    SeamChain chain;
    model->seams.parameters = seam_chain(&chain, tensor_parameter_seam(&tensor), ddp_seam(&ddp));
    if (tp > 1) model->seams.features = tensor_seam(&tensor);
    Replicas replicas = {0};
    ddp_replicas(&ddp, &replicas);
    tensor_replicas(&tensor, &replicas);
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
    tensor_free(&tensor);
    ddp_free(&ddp);
    return status;
}
