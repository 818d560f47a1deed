/* ranks: 1  builds: fp64 fp32 bf16
 *
 * The whole model on the GPU: its gradients and weights against the CPU's, equal bits in two runs, flash attention
 * against naive attention, and a step captured in a CUDA graph. Without a GPU the tests are skipped and say so. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "both.h"
#include "base/error.h"
#include "kernels/memory.h"
#include "model/model.h"
#include "model/optimizer.h"

static Kernels cpu; /* in this build's precision; bf16 builds have none */
static bool there_is_a_gpu;

typedef struct {
    size_t count;
    acc *grads, *weights; /* gradients of the first step; weights after the last step */
} Trained;

static void trained_free(Trained *t)
{
    free(t->grads);
    free(t->weights);
}

static OptimizerConfig recipe(double clip)
{
    return (OptimizerConfig){
        .lr = 1e-2, .steps = 2, .weight_decay = 0.1, .clip = clip, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
}

static Trained train(const Kernels *kernels, const ModelConfig *c, const Rows *host)
{
    memory_use(kernels);
    Rows rows = rows_create(host->count);
    rows_upload(kernels, &rows, host);
    Model *m = model_create(c, kernels, host->count);
    params_init(&m->params, kernels, 9);
    Optimizer o = optimizer_create(recipe(0.5), &m->params, kernels);
    Trained t = {.count = m->params.count};
    t.grads = malloc(t.count * sizeof *t.grads);
    t.weights = malloc(t.count * sizeof *t.weights);
    CHECK(t.grads && t.weights);
    for (long step = 0; step < 2; step++) {
        model_zero_grads(m);
        model_forward(m, m->activations, &rows);
        model_loss(m, m->activations, 1.0 / (double)host->count);
        model_backward(m, m->activations);
        if (step == 0) kernels->download(t.grads, m->params.grads, t.count * sizeof *t.grads);
        optimizer_measure(&o, &m->params, step);
        optimizer_step(&o, &m->params);
    }
    kernels->download(t.weights, m->params.shard[0].master, t.count * sizeof *t.weights);
    optimizer_free(&o);
    model_free(m);
    rows_free(&rows);
    return t;
}

static ModelConfig small_model(Random *r, int round, int seq)
{
    int K = random_int(r, 1, 3);
    bool for_flash = sizeof(real) == 2 && round % 4;
    return (ModelConfig){.name = "random",
                         .layers = random_int(r, 1, 3),
                         .width = random_int(r, 8, 70),
                         .heads = K * random_int(r, 1, 3),
                         .kv_heads = K,
                         .head_dim = for_flash ? 16 << random_int(r, 0, 2) : 2 * random_int(r, 2, 20),
                         .ff = random_int(r, 4, 90),
                         .vocab = random_int(r, 5, 150),
                         .max_seq = seq,
                         .tied = round % 2,
                         .qk_norm = round % 3 == 0,
                         .theta = 1e4,
                         .eps = 1e-5,
                         .init_std = 0.2};
}

static void against_the_cpu(void **state)
{
    (void)state;
    if (!there_is_a_gpu) skip();
    Random r = {.seed = 69};
    for (int round = 0; round < 12 * testing_grid(); round++) {
        int seq = random_int(&r, 2, 40);
        ModelConfig c = small_model(&r, round, seq);
        Rows rows = random_rows(&r, 3, seq, c.vocab, (unsigned)round % 8);
        Kernels kernels = gpu;
        if (kernels.fit) kernels.fit(&kernels, c.head_dim);
        Trained once = train(&kernels, &c, &rows), twice = train(&kernels, &c, &rows);
        assert_memory_equal(once.grads, twice.grads, once.count * sizeof(acc));
        assert_memory_equal(once.weights, twice.weights, once.count * sizeof(acc));
        if (cpu.backend) {
            Trained on_cpu = train(&cpu, &c, &rows);
            assert_true(error_of(once.grads, on_cpu.grads, once.count) <= ROUNDING);
            if (sizeof(acc) == 8) assert_true(error_of(once.weights, on_cpu.weights, once.count) <= 1e-9);
            trained_free(&on_cpu);
        }
        trained_free(&once), trained_free(&twice);
        rows_free_host(&rows);
    }
}

static void flash_is_naive(void **state)
{
    (void)state;
    Kernels flash = gpu, naive = gpu;
    if (!there_is_a_gpu || kernels_choose(&flash, "attention=flash")) skip();
    assert_null(kernels_choose(&naive, "attention=naive"));
    Random r = {.seed = 70};
    double worst = 0;
    for (int round = 0; round < 12 * testing_grid(); round++) {
        int seq = random_int(&r, 2, 150);
        ModelConfig c = small_model(&r, 4 * round + 1, seq);
        Rows rows = random_rows(&r, 3, seq, c.vocab, (unsigned)round % 8);
        Trained a = train(&flash, &c, &rows), b = train(&naive, &c, &rows);
        worst = fmax(worst, error_of(a.grads, b.grads, a.count));
        trained_free(&a), trained_free(&b);
        rows_free_host(&rows);
    }
    printf("flash attention against naive: gradients of the model off by %.1e\n", worst);
    assert_true(worst <= 0.07); /* 3.4e-2 on an H200: the two round to bf16 at different places */
}

/* --- every step launches the same kernels with the same pointers, so CUDA can replay a captured step --- */

#ifdef HAVE_CUDA
#include <cuda_runtime.h>
cudaStream_t cuda_stream(void);

static void one_step(Model *m, Optimizer *o, const Rows *rows, double scale)
{
    model_zero_grads(m);
    model_forward(m, m->activations, rows);
    model_loss(m, m->activations, scale);
    model_backward(m, m->activations);
    optimizer_step(o, &m->params);
}

static void captured(void **state)
{
    (void)state;
    if (!there_is_a_gpu) skip();
    enum { STEPS = 3 };
    Random r = {.seed = 71};
    ModelConfig c = small_model(&r, 1, 40);
    Rows host = random_rows(&r, 3, 40, c.vocab, ROWS_MASKED);
    acc *weights[2];
    size_t count = 0;
    for (int graph = 0; graph < 2; graph++) {
        Kernels kernels = gpu;
        if (kernels.fit) kernels.fit(&kernels, c.head_dim);
        memory_use(&kernels);
        Rows rows = rows_create(host.count);
        rows_upload(&kernels, &rows, &host);
        Model *m = model_create(&c, &kernels, host.count);
        params_init(&m->params, &kernels, 9);
        model_zero_grads(m);
        Optimizer o = optimizer_create(recipe(0), &m->params, &kernels);
        optimizer_measure(&o, &m->params, 0);
        count = m->params.count;
        if (graph) {
            cudaGraph_t recorded;
            cudaGraphExec_t step;
            assert_int_equal(cudaStreamBeginCapture(cuda_stream(), cudaStreamCaptureModeGlobal), cudaSuccess);
            one_step(m, &o, &rows, 0.1);
            assert_int_equal(cudaStreamEndCapture(cuda_stream(), &recorded), cudaSuccess);
            assert_int_equal(cudaGraphInstantiate(&step, recorded, 0), cudaSuccess);
            for (int s = 0; s < STEPS; s++) assert_int_equal(cudaGraphLaunch(step, cuda_stream()), cudaSuccess);
            assert_int_equal(cudaStreamSynchronize(cuda_stream()), cudaSuccess);
            cudaGraphExecDestroy(step);
            cudaGraphDestroy(recorded);
        } else {
            for (int s = 0; s < STEPS; s++) one_step(m, &o, &rows, 0.1);
        }
        weights[graph] = malloc(count * sizeof(acc));
        CHECK(weights[graph]);
        kernels.download(weights[graph], m->params.shard[0].master, count * sizeof(acc));
        optimizer_free(&o);
        model_free(m);
        rows_free(&rows);
    }
    assert_memory_equal(weights[0], weights[1], count * sizeof(acc));
    free(weights[0]), free(weights[1]);
    rows_free_host(&host);
}
#else
static void captured(void **state)
{
    (void)state;
    skip();
}
#endif

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(against_the_cpu),
    cmocka_unit_test(flash_is_naive),
    cmocka_unit_test(captured),
};

int main(int argc, char **argv)
{
    cpu = kernels_cpu();
    there_is_a_gpu = both_open();
    return testing_run("test_cuda_model", tests, sizeof tests / sizeof tests[0], argc, argv);
}
