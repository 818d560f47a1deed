#include "train/trainer.h"

#include <string.h>

#include "tune/autotune.h"
#include "base/bug.h"
#include "base/error.h"
#include "comm/agree.h"
#include "settings/outputs.h"
#include "train/run.h"
#include "observe/sample.h"

static bool first_rank(void)
{
    return comm_world_rank() == 0;
}

void trainer_start(Trainer *t, int argc, char **argv, const char *program, OptionTable scheme)
{
    *t = (Trainer){.scheme = scheme};
    run_start(argc, argv, program, scheme, &t->config);
    if (t->config.world && !*t->config.show) agree(complain("--world %ld: goes with --show", t->config.world));
}

int trainer_ranks(const Trainer *t)
{
    return *t->config.show && t->config.world ? (int)t->config.world : group_size(comm_world());
}

void trainer_check(Trainer *t, Shape shape)
{
    agree(shape_check(shape, trainer_ranks(t)));
    agree(config_finish(&t->config, shape.size[AXIS_FSDP] * shape.size[AXIS_DP], comm_local_rank()));
}

Expected trainer_expect(const Trainer *t, Shape shape, int stream_parts)
{
    const Config *c = &t->config;
    int data_ranks = shape.size[AXIS_FSDP] * shape.size[AXIS_DP];
    size_t step_rows = (size_t)(c->batch * c->seq) / (size_t)data_ranks;
    ModelConfig slice = model_config_slice(&c->architecture, shape.size[AXIS_TP]);
    Expected e = {0};
    e.memory[MEMORY_ACTIVATIONS] =
        model_activation_bytes(&slice, step_rows / (size_t)c->accumulate, c->recompute, (size_t)stream_parts) +
        6 * sizeof(int) * step_rows;
    e.memory[MEMORY_OPTIMIZER] = sizeof(StepScalars);
    if (c->kernels.workspace_bytes)
        e.memory[MEMORY_BUFFERS] +=
            c->kernels.workspace_bytes(slice.width, slice.head_dim, (int)(step_rows / (size_t)c->accumulate));
    e.optimizer_bytes = config_optimizer(c).kind == OPTIMIZER_ADAMW ? 2 * sizeof(acc) : 0;
    expect(&e, "data", COMM_ALL_REDUCE, 2 * (double)c->steps, 16 * (double)c->steps, data_ranks);
    return e;
}

/* Before anything is allocated, by the formulas. */
static const char *check_cap(const Config *c, const Expected *expected)
{
    const double gib = 1073741824;
    double total = (double)expected_total(expected);
    if (c->memory_cap == 0 || total <= c->memory_cap * gib) return NULL;
    return complain("--memory-cap %g: a rank of this run holds %.3f GiB; --show memory lists them", c->memory_cap,
                    total / gib);
}

void trainer_open(Trainer *t, Shape shape, Holding holding, int stream_parts, const Expected *expected)
{
    Config *c = &t->config;
    agree(check_cap(c, expected));
    memory_cap(c->memory_cap * 1073741824);
    t->mesh = mesh_create(comm_world(), shape);
    memory_use(&c->kernels);
    int rank = group_rank(t->mesh.world), ranks = group_size(t->mesh.world);
    agree(data_open(&t->data, c->data, c->architecture.vocab, (int)c->seq, rank, ranks));
    uint64_t fingerprint = data_fingerprint(t->data);
    bool same = comm_same_bits(t->mesh.world, &fingerprint, sizeof fingerprint);
    agree(same ? NULL : complain("--data %s: the ranks do not read the same tokens", c->data));
    t->batch = batch_create(t->data, config_data_order(c), (int)c->accumulate, t->mesh.data_group, &c->kernels);
    if (holding.cut != CUT_NOTHING) {
        holding.ranks = shape.size[AXIS_FSDP];
        holding.rank = t->mesh.coordinate[AXIS_FSDP];
    }
    holding.tp = shape.size[AXIS_TP];
    holding.tp_rank = t->mesh.coordinate[AXIS_TP];
    holding.copy = t->mesh.coordinate[AXIS_DP] > 0;
    agree(first_rank() ? outputs_check(c) : NULL);
    ModelConfig slice = model_config_slice(&c->architecture, holding.tp);
    run_use_threads();
    agree(c->pretrained ? safetensors_check_weights(&c->architecture, c->model) : NULL);
    if (*c->autotune)
        agree(autotune(&c->kernels, &slice, t->batch.sequences * (int)c->seq, (int)c->seq, t->chunks ? t->chunks : 1,
                       c->kernel, c->autotune));
    ModelPart part = {.holding = holding, .recompute = c->recompute, .stream_parts = stream_parts};
    t->model = model_create_part(&c->architecture, &c->kernels, t->batch.sequences * (int)c->seq, part);
    if (c->pretrained)
        agree(safetensors_load_weights(&t->model->params, &c->kernels, c->model));
    else
        params_init(&t->model->params, &c->kernels, (uint64_t)c->seed);
    t->optimizer = optimizer_create(config_optimizer(c), &t->model->params, &c->kernels);
}

void trainer_begin(Trainer *t, Replicas replicas)
{
    Config *c = &t->config;
    int64_t area = (int64_t)c->batch * c->seq * (c->seq + 1) / 2; /* causal, whole sequences */
    agree(first_rank() ? outputs_create(c) : NULL);
    agree(metrics_open(&t->metrics, c, t->scheme, &t->mesh, area));
    agree(*c->dump ? dump_open(&t->dump, c->dump, &t->model->params, &c->kernels, first_rank()) : NULL);
    Params whole = params_table(&c->architecture);
    run_begin(c, &t->mesh, whole.count, data_tokens(t->data));
    params_free(&whole);
    t->verify = verify_create(t->config.verify, t->model, &t->batch, t->optimizer.config, replicas);
    metrics_start(&t->metrics);
}

int trainer_finish(Trainer *t, const Expected *expected)
{
    const Config *c = &t->config;
    int status = 0;
    int64_t acted = bug_acted();
    if (*c->bug) comm_all_reduce(comm_control(), &acted, 1, COMM_INT64, COMM_MAX);
    if (*c->bug && !acted && first_rank()) printf("note: --bug %s: this run never came to its place\n", c->bug);
    dump_weights(&t->dump, &t->model->params);
    if (c->ledger) {
        int64_t differs = !ledger_print(expected, first_rank());
        comm_all_reduce(comm_control(), &differs, 1, COMM_INT64, COMM_MAX);
        if (differs) status = 1;
    }
    if (verify_report(t->verify) != 0) status = 1;
    memory_cap(0); /* it was about training */
    if (c->sample) sample_print(t->model, c->prompt, c->sample, (int)c->seq, (uint64_t)c->seed, first_rank());
    metrics_close(&t->metrics);
    optimizer_free(&t->optimizer);
    model_free(t->model);
    batch_free(&t->batch);
    data_close(t->data);
    return run_finish(status);
}
