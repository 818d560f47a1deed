/* ranks: 2  builds: fp64 fp32
 *
 * --dump beside --verify, in two steps of tiny-ddp: the file holds the gradients of step 1 and the final weights, to
 * the bit, and --verify passes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/batch.h"
#include "ddp.h"
#include "observe/dump.h"
#include "base/error.h"
#include "comm/mesh.h"
#include "model/model.h"
#include "model/optimizer.h"
#include "model/safetensors.h"
#include "testing.h"
#include "observe/verify.h"

/* Two steps of a tiny model over both ranks. Returns verify's exit status. */
static int train_and_dump(const char *path)
{
    static Group *dp;
    if (!dp) dp = group_split(comm_world(), 0, "dp");
    ModelConfig config = {.name = "tiny",
                          .layers = 2,
                          .width = 8,
                          .heads = 2,
                          .kv_heads = 1,
                          .head_dim = 4,
                          .ff = 12,
                          .vocab = 20,
                          .max_seq = 6,
                          .tied = true,
                          .theta = 1e4,
                          .eps = 1e-5,
                          .init_std = 0.3};
    Kernels kernels = kernels_cpu();
    Data *data;
    CHECK(data_open(&data, testing_token_file(20, 500), 20, 6, 0, 1) == NULL);
    Batch batch =
        batch_create(data, (DataOrder){.seed = 3, .batch = 4, .seq = 6, .ignore = 0.3}, 1,
                     (BatchShare){.reader = group_rank(dp), .readers = group_size(dp), .rows_group = dp}, &kernels);
    Model *m = model_create(&config, &kernels, batch.sequences * 6);
    params_init(&m->params, &kernels, 8);
    OptimizerConfig recipe = {.lr = 1e-2, .steps = 2, .clip = 1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    Optimizer o = optimizer_create(recipe, &m->params, &kernels);
    Ddp ddp = ddp_create(&m->params, &m->micro_step, dp, (DdpOptions){.overlap = 1, .bucket_mb = 1});
    m->seams.parameters = ddp_seam(&ddp);
    Dump dump = {0};
    bool first = group_rank(dp) == 0;
    if (first) CHECK(dump_open(&dump, path, &m->params, &kernels, true) == NULL);
    acc *first_gradient = malloc(m->params.count * sizeof *first_gradient);

    Replicas replicas = {0};
    ddp_replicas(&ddp, &replicas);
    Verify *v = verify_create(2, m, &batch, recipe, replicas);
    for (long step = 0; step < 2; step++) {
        batch_read(&batch, step);
        model_zero_grads(m);
        Rows rows = batch_micro_step(&batch, 0);
        model_begin(m, 0, 1);
        model_forward(m, m->activations, &rows);
        model_loss(m, m->activations, batch_scale(&batch));
        model_backward(m, m->activations);
        ddp_finish(&ddp);
        optimizer_measure(&o, &m->params, step);
        if (step == 0) {
            dump_gradients(&dump, &m->params);
            memcpy(first_gradient, m->params.grads, m->params.count * sizeof *first_gradient);
        }
        verify_gradients(v, m, step);
        optimizer_step(&o, &m->params);
        verify_weights(v, m, step);
        double loss = model_read_loss(m);
        comm_all_reduce(dp, &loss, 1, COMM_DOUBLE, COMM_SUM);
        verify_numbers(v, step, loss, 0, optimizer_read_norm(&o));
    }
    dump_weights(&dump, &m->params);

    bool same = true;
    if (first) {
        Safetensors *file;
        CHECK(safetensors_open(&file, path) == NULL);
        for (int n = 0; n < m->params.views; n++) {
            const View *view = &m->params.view[n];
            char grad[96], final[96];
            snprintf(grad, sizeof grad, "grad.%s", view->name);
            snprintf(final, sizeof final, "final.%s", view->name);
            const Tensor *g = safetensors_find(file, grad), *w = safetensors_find(file, final);
            CHECK(g && w && g->count == view->size && g->dims == (view->vector ? 1 : 2));
            for (size_t i = 0; i < view->size; i++)
                same = same && tensor_at(g, i) == (double)first_gradient[view->offset + i] &&
                       tensor_at(w, i) == (double)m->params.weights[view->offset + i];
        }
        safetensors_close(file);
        unlink(path);
    }
    assert_together(same, "the dump is not what was there");
    int status = verify_report(v);
    free(first_gradient);
    ddp_free(&ddp);
    optimizer_free(&o);
    model_free(m);
    batch_free(&batch);
    data_close(data);
    return status;
}

static void the_dump_is_what_was_there(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "/tmp/tiny-dump-%d.safetensors", (int)getpid());
    assert_together(train_and_dump(path) == 0, "--verify failed");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_dump_is_what_was_there),
};
TESTING_MAIN(tests)
