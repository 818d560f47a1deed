/* tiny-hybrid: all schemes at once, on a mesh dp x fsdp x cp x tp, with experts dealt over ep. Read tiny-fsdp/main.c
 * first, then diff -u tiny-fsdp/main.c tiny-hybrid/main.c. */
#include <string.h>

#include "base/error.h"
#include "comm/agree.h"
#include "hybrid.h"
#include "observe/show.h"
#include "train/run.h"
#include "train/trainer.h"

int main(int argc, char **argv)
{
    Trainer t;
    HybridOptions options = {0};
    OptionTable flags[HYBRID_TABLES];
    hybrid_options(&options, flags);
    trainer_start(&t, argc, argv, "tiny-hybrid/tiny-hybrid", flags, HYBRID_TABLES);

    /* The grid of ranks: tp, cp, fsdp, dp, the first fastest. */
    agree(hybrid_check(&options, trainer_ranks(&t)));
    Shape shape = hybrid_shape(&options);
    t.takes_experts = true;
    trainer_check(&t, shape);
    const Config *config = &t.config;
    ModelConfig *architecture = &t.config.architecture;
    DataOrder order = config_data_order(config);
    int accumulate = (int)config->accumulate;
    int micro_rows = (int)(config->batch * config->seq / accumulate) / shape_size(shape, ALONG_ROWS);
    agree(hybrid_check_model(&options, architecture, config_folder(config), config->batch, config->seq, micro_rows));
    if (config->verify && options.experts.capacity > 0)
        agree(complain("--verify: not with --capacity, whose choice of rows depends on the ranks"));
    ModelPart part = {.recompute = config->recompute};
    bool on_gpu = strcmp(config->kernels.backend, "cpu") != 0;
    agree(hybrid_part(&options, architecture, on_gpu, micro_rows, &part));
    t.cut = context_cut(&options.context);

    /* For --show and --ledger: what this run will send and hold, by formula. */
    Expected expected = trainer_expect(&t, part);
    hybrid_expect(&expected, architecture, &options, &part, order, micro_rows, accumulate, config->steps);
    if (*config->show) {
        if (comm_world_rank() != 0) return run_finish(0);
        if (strcmp(config->show, "mesh") == 0)
            hybrid_show_mesh(architecture, &options);
        else if (!show(config, shape, part, &expected))
            hybrid_show_plan(architecture, &options, order, accumulate);
        return run_finish(0);
    }

    trainer_open(&t, part, &expected); /* data, this rank's part of the model, optimizer */
    Model *model = t.model;
    Params *params = &model->params;

    /* All schemes: four seams, filled by the modules of the other folders. */
    Hybrid hybrid;
    hybrid_plug(&hybrid, model, hybrid_groups(&t.mesh, &options, architecture), &options, order, micro_rows,
                accumulate);
    Replicas replicas = {0};
    hybrid_replicas(&hybrid, &replicas);
    trainer_begin(&t, replicas);
    if (comm_world_rank() == 0) hybrid_show_mesh(architecture, &options);

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
        hybrid_finish(&hybrid);
        optimizer_measure(&t.optimizer, params, step);
        observe_gradients(&t, step);
        optimizer_step(&t.optimizer, params);
        hybrid_publish(&hybrid);
        router_end_step(model); /* with experts: the bias that balances them */
        observe_step(&t, step);
    }

    if (config->ledger && options.context.cp > 1) context_print_work(t.batch.pairs);
    if (config->ledger && hybrid.has_experts && comm_world_rank() == 0) experts_print_load(model);
    if (config->ledger && shape_ranks(shape) > 1) hybrid_print_schemes(&expected, comm_world_rank() == 0);
    int status = trainer_finish(&t, &expected);
    hybrid_free(&hybrid);
    return status;
}
