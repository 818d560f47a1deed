#include "train/trainer.h"

#include <string.h>

#include "base/bug.h"
#include "base/error.h"
#include "comm/agree.h"
#include "comm/trace.h"
#include "model/safetensors.h"
#include "observe/sample.h"
#include "settings/outputs.h"
#include "train/place.h"
#include "train/run.h"
#include "tune/autotune.h"

static bool first_rank(void)
{
    return comm_world_rank() == 0;
}

void trainer_start(Trainer *t, int argc, char **argv, const char *program, const OptionTable *schemes, int count)
{
    *t = (Trainer){0};
    CHECK(count < TABLES_MAX);
    for (int i = 0; i < count; i++) t->table[t->tables++] = schemes[i];
    t->table[t->tables++] = config_options(&t->config);
    run_start(argc, argv, program, t->table, t->tables, &t->config);
    if (t->config.world && !*t->config.show) agree(complain("--world %ld: goes with --show", t->config.world));
}

int trainer_ranks(const Trainer *t)
{
    return *t->config.show && t->config.world ? (int)t->config.world : group_size(comm_world());
}

void trainer_check(Trainer *t, Shape shape)
{
    t->shape = shape;
    agree(shape_check(shape, trainer_ranks(t)));
    agree(config_finish(&t->config, shape_size(shape, ALONG_SEQUENCES), comm_local_rank()));
    if (t->config.architecture.moe.experts && !t->takes_experts)
        agree(complain("--model %s: has experts; tiny-moe and tiny-hybrid train it", t->config.model));
}

/* Adds what every model with experts holds and sends, for micro-steps of `rows` rows of the stream on this rank. */
static void expect_router(Expected *e, const Trainer *t, ModelPart part, size_t rows)
{
    const Config *c = &t->config;
    const ModelConfig *model = &c->architecture;
    double table = 8.0 * model->layers * (model->moe.experts + 1), micro_steps = (double)(c->steps * c->accumulate);
    bool parts = part.stream_parts > 1; /* then ranks along tp have different rows of the stream */
    int ranks = shape_size(t->shape, parts ? ALONG_ROWS | ALONG_TP : ALONG_ROWS);
    const char *group = parts ? "stream" : "data";
    size_t ep = part.experts.ep ? (size_t)part.experts.ep : 1,
           chunks = part.expert_chunks ? (size_t)part.expert_chunks : 1;
    expect_experts(e, model, part.experts);
    e->memory[MEMORY_ACTIVATIONS] +=
        moe_activation_bytes(model, rows, ep, (size_t)part.expert_rows, chunks, c->recompute);
    expect(e, group, COMM_ALL_REDUCE, micro_steps, micro_steps * table, ranks);       /* counts of each expert's rows */
    expect(e, group, COMM_ALL_REDUCE, (double)c->steps, 8 * (double)c->steps, ranks); /* the auxiliary loss */
}

Expected trainer_expect(const Trainer *t, ModelPart part)
{
    const Config *c = &t->config;
    part = place_sizes(t->shape, part);
    int readers = shape_size(t->shape, ALONG_SEQUENCES), holders = place_model_ranks(t->shape, part);
    size_t step_rows = (size_t)(c->batch * c->seq) / (size_t)(readers * t->shape.size[AXIS_CP]);
    size_t micro_rows = step_rows / (size_t)c->accumulate;
    size_t stream_parts = part.stream_parts ? (size_t)part.stream_parts : 1;
    ModelConfig slice = model_config_slice(&c->architecture, t->shape.size[AXIS_TP]);
    Expected e = {.optimizer_bytes = config_optimizer(c).kind == OPTIMIZER_ADAMW ? 2 * sizeof(acc) : 0};
    expect_params(&e, &c->architecture, part.placement);
    e.memory[MEMORY_OPTIMIZER] += sizeof(StepScalars);
    e.memory[MEMORY_ACTIVATIONS] = model_activation_bytes(&slice, micro_rows, c->recompute, stream_parts) +
                                   rows_bytes((int)step_rows, t->cut.sharers);
    if (c->kernels.workspace_bytes)
        e.memory[MEMORY_BUFFERS] += c->kernels.workspace_bytes(slice.width, slice.head_dim, (int)micro_rows);
    double steps = (double)c->steps;
    expect(&e, "data", COMM_ALL_REDUCE, 2 * steps, 24 * steps, shape_size(t->shape, ALONG_ROWS));
    if (holders > 1) expect(&e, "model", COMM_ALL_REDUCE, steps, 8 * steps, holders);
    if (c->architecture.moe.experts) expect_router(&e, t, part, micro_rows / stream_parts);
    return e;
}

/* Checks --memory-cap by the formulas, before anything is allocated. */
static const char *check_cap(const Config *c, const Expected *expected)
{
    const double gib = 1073741824;
    double total = (double)expected_total(expected);
    if (c->memory_cap == 0 || total <= c->memory_cap * gib) return NULL;
    return complain("--memory-cap %g: a rank of this run holds %.3f GiB; --show memory lists them", c->memory_cap,
                    total / gib);
}

static void open_data(Trainer *t)
{
    const Config *c = &t->config;
    Group *world = t->mesh.world;
    agree(data_open(&t->data, c->data, c->architecture.vocab, (int)c->seq, group_rank(world), group_size(world)));
    uint64_t fingerprint = data_fingerprint(t->data);
    bool same = comm_same_bits(world, &fingerprint, sizeof fingerprint);
    agree(same ? NULL : complain("--data %s: the ranks do not read the same tokens", c->data));
    DataOrder order = config_data_order(c);
    if (c->document < 0) order.document = data_document_token(t->data);
    t->batch = batch_create(t->data, order, (int)c->accumulate, batch_share(&t->mesh, t->cut), &t->config.kernels);
}

void trainer_open(Trainer *t, ModelPart part, const Expected *expected)
{
    Config *c = &t->config;
    agree(check_cap(c, expected));
    memory_cap(c->memory_cap * 1073741824);
    t->mesh = mesh_create(comm_world(), t->shape);
    memory_use(&c->kernels);
    open_data(t);
    part = place_rank(&t->mesh, part, place_model_group(&t->mesh, part));
    part.recompute = c->recompute;
    agree(routes_check(c->save_routes, c->routes, &c->architecture));
    agree(first_rank() ? outputs_check(c) : NULL);
    run_use_threads();
    agree(c->pretrained ? safetensors_check_weights(&c->architecture, c->model) : NULL);
    int rows = t->batch.step_rows;
    ModelConfig slice = model_config_slice(&c->architecture, part.placement.tp);
    if (*c->autotune)
        agree(autotune(&c->kernels, &slice, rows, (int)c->seq, part.row_chunks ? part.row_chunks : 1, c->kernel,
                       c->autotune));
    t->model = model_create_part(&c->architecture, &c->kernels, rows, part);
    if (c->pretrained)
        agree(safetensors_load_weights(&t->model->params, &c->architecture, &c->kernels, c->model));
    else
        params_init(&t->model->params, &c->kernels, (uint64_t)c->seed);
    Group *stream = t->mesh.rows_group; /* ranks with different rows of the residual stream */
    if (c->architecture.moe.experts && part.stream_parts > 1)
        stream = mesh_group(&t->mesh, ALONG_ROWS | ALONG_TP, "stream");
    router_share(t->model, stream, (double)(c->batch / c->accumulate), (int)c->seq);
    agree(routes_open(&t->routes, c->save_routes, c->routes, t->model, &t->batch, c->steps));
    t->optimizer = optimizer_create(config_optimizer(c), &t->model->params, &c->kernels);
}

void trainer_begin(Trainer *t, Replicas replicas)
{
    Config *c = &t->config;
    agree(params_check_start(&t->model->params, &c->kernels, &replicas));
    agree(first_rank() ? outputs_create(c) : NULL);
    if (*c->autotune && first_rank()) autotune_save(c->autotune);
    agree(metrics_open(&t->metrics, c, t->table, t->tables, &t->mesh));
    agree(*c->dump ? dump_open(&t->dump, c->dump, &t->model->params, &c->kernels, first_rank()) : NULL);
    run_begin(c, &t->mesh, model_parameters(&c->architecture), data_tokens(t->data));
    if (first_rank()) data_print_notes(t->data);
    t->verify = verify_create(t->config.verify, t->model, &t->batch, t->optimizer.config, replicas);
    trace_begin("step 1");
    metrics_start(&t->metrics);
}

int trainer_finish(Trainer *t, const Expected *expected)
{
    const Config *c = &t->config;
    int status = 0;
    int64_t acted = bug_acted();
    if (*c->bug) comm_all_reduce(comm_control(), &acted, 1, COMM_INT64, COMM_MAX);
    if (*c->bug && !acted && first_rank()) printf("note: --bug %s: this run never came to its place\n", c->bug);
    routes_close(t->routes, first_rank());
    dump_weights(&t->dump, &t->model->params);
    if (c->ledger) {
        int64_t differs = !ledger_print(expected, first_rank());
        comm_all_reduce(comm_control(), &differs, 1, COMM_INT64, COMM_MAX);
        if (differs) status = 1;
    }
    if (verify_report(t->verify) != 0) status = 1;
    memory_cap(0); /* the cap is for training; --sample may need more */
    if (c->sample) sample_print(t->model, c->prompt, c->sample, &t->batch, first_rank());
    metrics_close(&t->metrics);
    optimizer_free(&t->optimizer);
    model_free(t->model);
    batch_free(&t->batch);
    data_close(t->data);
    return run_finish(status);
}
