/* tiny-megatron: layers split over ranks, times data parallelism. Read tiny-ddp/main.c first, and then
 * diff -u tiny-ddp/main.c tiny-megatron/main.c. */
#include "ddp.h"
#include "base/error.h"
#include "comm/agree.h"
#include "train/run.h"
#include "observe/show.h"
#include "tensor_parallel.h"
#include "comm/trace.h"
#include "train/trainer.h"

int main(int argc, char **argv)
{
    Trainer t;
    TensorOptions options = {0};
    trainer_start(&t, argc, argv, "tiny-megatron/tiny-megatron", tensor_options(&options));

    /* The grid of ranks: tp neighbours share each layer, the rest are replicas along dp. */
    int ranks = trainer_ranks(&t);
    agree(tensor_check(&options, ranks));
    Shape shape = tensor_shape(&options, ranks);
    trainer_check(&t, shape);
    const Config *config = &t.config;
    int micro_rows = (int)(config->batch * config->seq / config->accumulate) / shape.size[AXIS_DP];
    agree(tensor_check_model(&options, &config->architecture, config->batch, config->seq, micro_rows));
    Holding holding = {.cut = CUT_NOTHING, .tp = (int)options.tp}; /* everything of its slice of the model */
    int stream_parts = options.sp ? (int)options.tp : 1;

    /* What this run will send and hold, by formula: for --show and --ledger. */
    Expected expected = trainer_expect(&t, shape, stream_parts);
    tensor_expect(&expected, &config->architecture, &options, shape, micro_rows, config->recompute,
                  (int)config->accumulate, config->steps);
    if (*config->show) {
        if (comm_world_rank() == 0 && !show(config, shape, holding, &expected))
            tensor_show_plan(&config->architecture, &options, shape);
        return run_finish(0);
    }

    t.chunks = options.sp ? (int)options.overlap_chunks : 1;
    trainer_open(&t, shape, holding, stream_parts, &expected); /* data, this rank's slice of the model, optimizer */
    Model *model = t.model;
    Params *params = &model->params;

    /* The schemes: tiny-ddp's along dp; and along tp, around the split matrices. */
    DdpOptions ddp_flags = {.overlap = options.overlap, .bucket_mb = options.bucket_mb};
    Ddp ddp = ddp_create(params, mesh_group(&t.mesh, 1u << AXIS_DP, "dp"), ddp_flags);
    Group *tp = mesh_group(&t.mesh, 1u << AXIS_TP, "tp"), *kv = tensor_kv_group(tp, &config->architecture);
    TensorParallel tensor = tensor_create(model, tp, kv, options, micro_rows);
    model->seams.parameters = tensor_parameter_seam(&tensor, ddp_seam(&ddp));
    if (options.tp > 1) model->seams.features = tensor_seam(&tensor);
    t.optimizer.shards = options.tp > 1 ? tp : NULL;
    Replicas replicas = {.pieces = ddp.group, .tp = tp, .kv = kv};
    agree(params_check_start(params, &model->kernels, replicas));
    trainer_begin(&t, replicas);

    for (long step = 0; step < config->steps; step++) {
        trace_begin("step %ld", step + 1);
        batch_read(&t.batch, step);
        model_zero_grads(model);
        for (int m = 0; m < t.batch.accumulate; m++) {
            Rows rows = batch_micro_step(&t.batch, m);
            ddp_begin(&ddp, m == t.batch.accumulate - 1);
            tensor_begin(&tensor, m == t.batch.accumulate - 1);
            model_forward(model, &rows);
            model_loss(model, &rows, batch_scale(&t.batch));
            if (config->step)
                run_pause("forward %d done; my replica's share of the loss: %.5f", m + 1, model_read_loss(model));
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
    tensor_free(&tensor);
    ddp_free(&ddp);
    return status;
}
