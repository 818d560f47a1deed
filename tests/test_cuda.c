/* ranks: 1  builds: fp64 fp32
 *
 * Each CUDA kernel against the CPU's on random shapes, odd sizes included; the whole model, CPU against GPU; the same bits
 * twice. Skipped, saying so, where there is no GPU. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "memory.h"
#include "model.h"
#include "optimizer.h"
#include "testing.h"
#include "verify.h"

static Kernels cpu, gpu;
static bool there_is_a_gpu;

/* An array that lies on both sides. */
typedef struct {
    char *host, *device, *back; /* back: what the GPU made of it */
    size_t bytes;
} Both;

enum { ARRAYS_MAX = 16 };
static Both arrays[ARRAYS_MAX];
static int array_count;

static Both *both(const void *from, size_t bytes)
{
    Both *b = &arrays[array_count++];
    *b = (Both){malloc(bytes + 1), gpu.alloc(bytes + 16), malloc(bytes + 1), bytes};
    memcpy(b->host, from, bytes);
    gpu.upload(b->device, from, bytes);
    return b;
}

static Both *both_random(Random *r, size_t count)
{
    real *x = random_array(r, count);
    Both *b = both(x, count * sizeof *x);
    free(x);
    return b;
}

/* Poisoned, so that what is not written shows. */
static Both *both_output(size_t count, size_t size)
{
    char *x = malloc(count * size + 1);
    memset(x, 0xff, count * size);
    Both *b = both(x, count * size);
    free(x);
    return b;
}

static Both *both_zero(size_t count, size_t size)
{
    void *x = calloc(count + 1, size);
    Both *b = both(x, count * size);
    free(x);
    return b;
}

static void forget_arrays(void)
{
    for (int a = 0; a < array_count; a++) {
        free(arrays[a].host);
        free(arrays[a].back);
        gpu.free(arrays[a].device);
    }
    array_count = 0;
}

#define HOST(b)   ((void *)(b)->host)
#define DEVICE(b) ((void *)(b)->device)

/* The GPU's result against the CPU's, relative to the largest of the CPU's entries and of `among`. */
static void check(const char *what, Both *b, double among)
{
    gpu.download(b->back, b->device, b->bytes);
    double difference, largest;
    verify_compare((acc *)(void *)b->back, (acc *)(void *)b->host, b->bytes / sizeof(acc), &difference, &largest);
    double error = verify_error(difference, fmax(largest, among), 0);
    if (!(error <= ROUNDING)) fail_msg("%s: the GPU is off by %.1e", what, error);
}

static double largest_of(const Both *b)
{
    double largest = 0;
    for (size_t i = 0; i < b->bytes / sizeof(acc); i++)
        largest = fmax(largest, fabs((double)((acc *)(void *)b->host)[i]));
    return largest;
}

static void skip_without_gpu(void)
{
    if (!there_is_a_gpu) skip();
}

static void linear(void **state)
{
    (void)state;
    skip_without_gpu();
    Random r = {.seed = 61};
    for (int round = 0; round < 30; round++) {
        int n = random_int(&r, 1, 150), in = random_int(&r, 1, 90), out = random_int(&r, 1, 140);
        Both *x = both_random(&r, (size_t)n * in), *w = both_random(&r, (size_t)out * in);
        Both *dy = both_random(&r, (size_t)n * out), *y = both_output((size_t)n * out, sizeof(real));
        Both *dx = both_output((size_t)n * in, sizeof(real)), *dw = both_random(&r, (size_t)out * in);
        cpu.linear_forward(HOST(y), HOST(x), HOST(w), n, in, out);
        gpu.linear_forward(DEVICE(y), DEVICE(x), DEVICE(w), n, in, out);
        cpu.linear_backward_input(HOST(dx), HOST(dy), HOST(w), n, in, out);
        gpu.linear_backward_input(DEVICE(dx), DEVICE(dy), DEVICE(w), n, in, out);
        cpu.linear_backward_weight(HOST(dw), HOST(dy), HOST(x), n, in, out);
        gpu.linear_backward_weight(DEVICE(dw), DEVICE(dy), DEVICE(x), n, in, out);
        check("y", y, 0), check("dx", dx, 0), check("dw", dw, 0);
        forget_arrays();
    }
}

static void embedding(void **state)
{
    (void)state;
    skip_without_gpu();
    Random r = {.seed = 62};
    for (int round = 0; round < 10; round++) {
        int n = random_int(&r, 1, 700), vocab = random_int(&r, 1, 50), width = random_int(&r, 1, 300);
        int *tokens = malloc((size_t)n * sizeof *tokens);
        for (int i = 0; i < n; i++) tokens[i] = random_int(&r, 0, vocab - 1);
        Both *token = both(tokens, (size_t)n * sizeof *tokens), *w = both_random(&r, (size_t)vocab * width);
        Both *y = both_output((size_t)n * width, sizeof(real)), *dy = both_random(&r, (size_t)n * width);
        Both *dw = both_random(&r, (size_t)vocab * width);
        cpu.embedding_forward(HOST(y), HOST(w), HOST(token), n, width);
        gpu.embedding_forward(DEVICE(y), DEVICE(w), DEVICE(token), n, width);
        cpu.embedding_backward(HOST(dw), HOST(dy), HOST(token), n, width);
        gpu.embedding_backward(DEVICE(dw), DEVICE(dy), DEVICE(token), n, width);
        check("y", y, 0), check("dw", dw, 0);
        free(tokens);
        forget_arrays();
    }
}

static void residual_norm(void **state)
{
    (void)state;
    skip_without_gpu();
    Random r = {.seed = 63};
    for (int round = 0; round < 20; round++) {
        int n = random_int(&r, 1, 900), width = round % 2 ? random_int(&r, 1, 300) : 8 * random_int(&r, 1, 200);
        size_t count = (size_t)n * width;
        Both *x = both_random(&r, count), *delta = both_random(&r, count), *w = both_random(&r, width);
        Both *sum = both_output(count, sizeof(real)), *y = both_output(count, sizeof(real)),
             *rstd = both_output(n, sizeof(acc));
        Both *dy = both_random(&r, count), *dx = both_random(&r, count), *dw = both_random(&r, width);
        void *no_delta = NULL;
        bool first = round % 4 == 0;
        cpu.residual_norm_forward(HOST(sum), HOST(y), HOST(rstd), HOST(x), first ? no_delta : HOST(delta), HOST(w),
                                  1e-5, n, width);
        gpu.residual_norm_forward(DEVICE(sum), DEVICE(y), DEVICE(rstd), DEVICE(x), first ? no_delta : DEVICE(delta),
                                  DEVICE(w), 1e-5, n, width);
        check("sum", sum, 0), check("y", y, 0), check("rstd", rstd, 0);
        cpu.residual_norm_backward(HOST(dx), HOST(dw), HOST(dy), HOST(sum), HOST(rstd), HOST(w), n, width);
        gpu.residual_norm_backward(DEVICE(dx), DEVICE(dw), DEVICE(dy), DEVICE(sum), DEVICE(rstd), DEVICE(w), n, width);
        check("dx", dx, 0), check("dw", dw, 0);
        forget_arrays();
    }
}

static void qk_rope(void **state)
{
    (void)state;
    skip_without_gpu();
    Random r = {.seed = 64};
    for (int round = 0; round < 20; round++) {
        int n = random_int(&r, 1, 300), K = random_int(&r, 1, 3), H = K * random_int(&r, 1, 3),
            D = 2 * random_int(&r, 1, 70);
        size_t count = (size_t)n * (H + 2 * K) * D, turned = (size_t)n * (H + K);
        int *positions = malloc((size_t)n * sizeof *positions);
        for (int i = 0; i < n; i++) positions[i] = random_int(&r, 0, n - 1);
        Both *position = both(positions, (size_t)n * sizeof *positions), *rope = both_random(&r, (size_t)n * D);
        Both *wq = both_random(&r, D), *wk = both_random(&r, D), *qkv = both_random(&r, count);
        Both *raw = both_output(turned * D, sizeof(real)), *rstd = both_output(turned, sizeof(acc));
        Both *d = both_random(&r, count), *dwq = both_random(&r, D), *dwk = both_random(&r, D);
        void *none = NULL;
        bool norm = round % 2;
        cpu.qk_rope_forward(HOST(qkv), HOST(raw), HOST(rstd), norm ? HOST(wq) : none, norm ? HOST(wk) : none,
                            HOST(rope), HOST(position), 1e-6, n, H, K, D);
        gpu.qk_rope_forward(DEVICE(qkv), DEVICE(raw), DEVICE(rstd), norm ? DEVICE(wq) : none, norm ? DEVICE(wk) : none,
                            DEVICE(rope), DEVICE(position), 1e-6, n, H, K, D);
        check("qkv", qkv, 0);
        if (norm) check("raw", raw, 0), check("rstd", rstd, 0);
        cpu.qk_rope_backward(HOST(d), HOST(dwq), HOST(dwk), HOST(raw), HOST(rstd), norm ? HOST(wq) : none,
                             norm ? HOST(wk) : none, HOST(rope), HOST(position), n, H, K, D);
        gpu.qk_rope_backward(DEVICE(d), DEVICE(dwq), DEVICE(dwk), DEVICE(raw), DEVICE(rstd), norm ? DEVICE(wq) : none,
                             norm ? DEVICE(wk) : none, DEVICE(rope), DEVICE(position), n, H, K, D);
        check("dqkv", d, 0), check("dwq", dwq, 0), check("dwk", dwk, 0);
        free(positions);
        forget_arrays();
    }
}

static void attention(void **state)
{
    (void)state;
    skip_without_gpu();
    Random r = {.seed = 65};
    for (int round = 0; round < 24; round++) {
        Rows rows = random_rows(&r, random_int(&r, 1, 3), random_int(&r, 1, 80), 10, (unsigned)round % 4);
        int n = rows.count, K = random_int(&r, 1, 2), H = K * random_int(&r, 1, 3), D = 2 * random_int(&r, 1, 70);
        if (round == 5)
            for (int i = 0; i < n; i += 2) rows.lo[i] = rows.hi[i]; /* blind rows */
        size_t nq = (size_t)n * H * D, nkv = (size_t)n * K * D, ints = (size_t)n * sizeof(int);
        Both *lo = both(rows.lo, ints), *hi = both(rows.hi, ints), *id = both(rows.id, ints);
        Both *q = both_random(&r, nq), *k = both_random(&r, nkv), *v = both_random(&r, nkv),
             *dout = both_random(&r, nq);
        Both *out = both_output(nq, sizeof(real)), *lse = both_output((size_t)n * H, sizeof(acc));
        Both *dot = both_output((size_t)n * H, sizeof(acc)), *dq = both_output(nq, sizeof(real));
        Both *dk = both_output(nkv, sizeof(real)), *dv = both_output(nkv, sizeof(real));
        AttentionShape s = {
            H, K, D, n, n, NULL, NULL, NULL, (size_t)H * D, (size_t)K * D, ATTENTION_FIRST | ATTENTION_LAST};
        AttentionShape t = s;
        s.lo = HOST(lo), s.hi = HOST(hi), s.key_id = HOST(id);
        t.lo = DEVICE(lo), t.hi = DEVICE(hi), t.key_id = DEVICE(id);
        cpu.attention_forward(HOST(out), NULL, HOST(lse), HOST(q), HOST(k), HOST(v), s);
        gpu.attention_forward(DEVICE(out), NULL, DEVICE(lse), DEVICE(q), DEVICE(k), DEVICE(v), t);
        check("out", out, 0);
        cpu.attention_backward(HOST(dq), NULL, HOST(dk), HOST(dv), NULL, NULL, HOST(dot), HOST(dout), HOST(out),
                               HOST(lse), HOST(q), HOST(k), HOST(v), s);
        gpu.attention_backward(DEVICE(dq), NULL, DEVICE(dk), DEVICE(dv), NULL, NULL, DEVICE(dot), DEVICE(dout),
                               DEVICE(out), DEVICE(lse), DEVICE(q), DEVICE(k), DEVICE(v), t);
        double among = fmax(largest_of(dq), fmax(largest_of(dk), largest_of(dv)));
        check("dq", dq, among), check("dk", dk, among), check("dv", dv, among);
        rows_free(&rows);
        forget_arrays();
    }
}

/* The fold, in two blocks of keys, against one call on the CPU. */
static void attention_folds(void **state)
{
    (void)state;
    skip_without_gpu();
    Random r = {.seed = 66};
    for (int round = 0; round < 12; round++) {
        Rows rows = random_rows(&r, 2, random_int(&r, 1, 60), 10, (unsigned)round % 4);
        int n = rows.count, K = 2, H = 4, D = 16, half = n / 2;
        size_t nq = (size_t)n * H * D, nkv = (size_t)n * K * D, ints = (size_t)n * sizeof(int);
        Both *lo = both(rows.lo, ints), *hi = both(rows.hi, ints), *id = both(rows.id, ints);
        Both *q = both_random(&r, nq), *k = both_random(&r, nkv), *v = both_random(&r, nkv),
             *dout = both_random(&r, nq);
        Both *out = both_output(nq, sizeof(real)), *lse = both_output((size_t)n * H, sizeof(acc));
        Both *dot = both_output((size_t)n * H, sizeof(acc)), *dq = both_output(nq, sizeof(real));
        Both *dk = both_zero(nkv, sizeof(real)), *dv = both_zero(nkv, sizeof(real));
        Both *fold = both_output(nq, sizeof(acc)), *dq_fold = both_output(nq, sizeof(acc));
        AttentionShape s = {H,
                            K,
                            D,
                            n,
                            n,
                            HOST(lo),
                            HOST(hi),
                            HOST(id),
                            (size_t)H * D,
                            (size_t)K * D,
                            ATTENTION_FIRST | ATTENTION_LAST};
        cpu.attention_forward(HOST(out), NULL, HOST(lse), HOST(q), HOST(k), HOST(v), s);
        cpu.attention_backward(HOST(dq), NULL, HOST(dk), HOST(dv), NULL, NULL, HOST(dot), HOST(dout), HOST(out),
                               HOST(lse), HOST(q), HOST(k), HOST(v), s);
        for (int pass = 0; pass < 2; pass++)
            for (int part = 0; part < 2; part++) {
                int first = part ? half : 0;
                size_t at = (size_t)first * K * D * sizeof(real);
                AttentionShape t = {H,
                                    K,
                                    D,
                                    n,
                                    part ? n - half : half,
                                    DEVICE(lo),
                                    DEVICE(hi),
                                    (int *)DEVICE(id) + first,
                                    (size_t)H * D,
                                    (size_t)K * D,
                                    part ? ATTENTION_LAST : ATTENTION_FIRST};
                void *kp = k->device + at, *vp = v->device + at, *dkp = dk->device + at, *dvp = dv->device + at;
                if (pass == 0)
                    gpu.attention_forward(DEVICE(out), DEVICE(fold), DEVICE(lse), DEVICE(q), kp, vp, t);
                else
                    gpu.attention_backward(DEVICE(dq), DEVICE(dq_fold), NULL, NULL, dkp, dvp, DEVICE(dot), DEVICE(dout),
                                           DEVICE(out), DEVICE(lse), DEVICE(q), kp, vp, t);
            }
        double among = fmax(largest_of(dq), fmax(largest_of(dk), largest_of(dv)));
        check("out", out, 0), check("dq", dq, among), check("dk", dk, among), check("dv", dv, among);
        rows_free(&rows);
        forget_arrays();
    }
}

static void swiglu_and_cross_entropy(void **state)
{
    (void)state;
    skip_without_gpu();
    Random r = {.seed = 67};
    for (int round = 0; round < 20; round++) {
        int n = random_int(&r, 1, 60), F = round % 2 ? random_int(&r, 1, 300) : 8 * random_int(&r, 1, 60);
        Both *gate_up = both_random(&r, 2 * (size_t)n * F), *y = both_output((size_t)n * F, sizeof(real));
        Both *dy = both_random(&r, (size_t)n * F), *d = both_output(2 * (size_t)n * F, sizeof(real));
        cpu.swiglu_forward(HOST(y), HOST(gate_up), n, F);
        gpu.swiglu_forward(DEVICE(y), DEVICE(gate_up), n, F);
        cpu.swiglu_backward(HOST(d), HOST(dy), HOST(gate_up), n, F);
        gpu.swiglu_backward(DEVICE(d), DEVICE(dy), DEVICE(gate_up), n, F);
        check("y", y, 0), check("dgate_up", d, 0);

        int *labels = malloc((size_t)n * sizeof *labels), V = F;
        for (int i = 0; i < n; i++) labels[i] = random_int(&r, -1, V - 1);
        Both *label = both(labels, (size_t)n * sizeof *labels), *logits = both_random(&r, (size_t)n * V);
        Both *loss = both_output(n, sizeof(acc));
        cpu.cross_entropy(HOST(loss), HOST(logits), HOST(label), 0.37, n, V);
        gpu.cross_entropy(DEVICE(loss), DEVICE(logits), DEVICE(label), 0.37, n, V);
        check("loss", loss, 1), check("dlogits", logits, 0);
        free(labels);
        forget_arrays();
    }
}

static void flat(void **state)
{
    (void)state;
    skip_without_gpu();
    Random r = {.seed = 68};
    for (size_t n = 1; n < 3000000; n = n * 7 + 3) {
        Both *w = both_output(n, sizeof(acc)), *g = both_random(&r, n), *m = both_random(&r, n),
             *v = both_random(&r, n);
        cpu.draw(HOST(w), n, 5, 77, 0.02);
        gpu.draw(DEVICE(w), n, 5, 77, 0.02);
        gpu.download(w->back, w->device, w->bytes);
        assert_memory_equal(w->back, w->host, w->bytes); /* a draw has the same bits everywhere */

        for (size_t i = 0; i < n; i++) ((acc *)HOST(v))[i] = (acc)fabs((double)((acc *)HOST(v))[i]);
        gpu.upload(v->device, v->host, v->bytes);
        StepScalars scalars = {.lr = 0.1,
                               .beta1 = 0.9,
                               .beta2 = 0.95,
                               .eps = 1e-8,
                               .correction1 = 0.1,
                               .correction2 = 0.05,
                               .clip = 1,
                               .squares = 0};
        Both *step = both(&scalars, sizeof scalars);
        double sums[2] = {1, 2};
        Both *total = both(sums, sizeof sums);
        cpu.sum((double *)HOST(total), HOST(g), n);
        gpu.sum((double *)DEVICE(total), DEVICE(g), n);
        cpu.sum_squares((double *)HOST(total) + 1, HOST(g), n);
        gpu.sum_squares((double *)DEVICE(total) + 1, DEVICE(g), n);
        gpu.download(total->back, total->device, total->bytes);
        double *got = (double *)(void *)total->back, *want = HOST(total);
        assert_true(fabs(got[0] - want[0]) <= 1e-12 * want[1] && fabs(got[1] - want[1]) <= 1e-12 * want[1]);

        ((StepScalars *)HOST(step))->squares = want[1];
        gpu.upload(step->device, step->host, step->bytes);
        cpu.adamw(HOST(w), HOST(w), HOST(m), HOST(v), HOST(g), n, 0.1, HOST(step));
        gpu.adamw(DEVICE(w), DEVICE(w), DEVICE(m), DEVICE(v), DEVICE(g), n, 0.1, DEVICE(step));
        check("adamw", w, 0), check("m", m, 0), check("v", v, 0);
        cpu.sgd(HOST(w), HOST(w), HOST(g), n, 0.1, HOST(step));
        gpu.sgd(DEVICE(w), DEVICE(w), DEVICE(g), n, 0.1, DEVICE(step));
        check("sgd", w, 0);
        forget_arrays();
    }
}

/* --- the whole model --- */

/* Two steps; returns the gradients of the first and the weights after the second, to be freed. */
static void train(const Kernels *kernels, const ModelConfig *c, const Rows *host, acc **grads, acc **weights,
                  size_t *count)
{
    memory_use(kernels);
    Rows rows = rows_create(host->count);
    rows_upload(kernels, &rows, host);
    Model *m = model_create(c, kernels, host->count);
    params_init(&m->params, kernels, 9);
    OptimizerConfig config = {
        .lr = 1e-2, .steps = 2, .weight_decay = 0.1, .clip = 0.5, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    Optimizer o = optimizer_create(config, &m->params, kernels);
    *count = m->params.count;
    *grads = malloc(*count * sizeof **grads);
    *weights = malloc(*count * sizeof **weights);
    for (long step = 0; step < 2; step++) {
        model_zero_grads(m);
        model_forward(m, &rows);
        model_loss(m, &rows, 1.0 / (double)host->count);
        model_backward(m, &rows);
        if (step == 0) kernels->download(*grads, m->params.grads, *count * sizeof **grads);
        optimizer_measure(&o, &m->params, step);
        optimizer_step(&o, &m->params);
    }
    kernels->download(*weights, m->params.master, *count * sizeof **weights);
    optimizer_free(&o);
    model_free(m);
    rows_free(&rows);
    memory_use(&cpu);
}

static void whole_model(void **state)
{
    (void)state;
    skip_without_gpu();
    Random r = {.seed = 69};
    for (int round = 0; round < 8; round++) {
        int K = random_int(&r, 1, 3), seq = random_int(&r, 2, 40);
        ModelConfig c = {.name = "random",
                         .layers = random_int(&r, 1, 3),
                         .width = random_int(&r, 8, 70),
                         .heads = K * random_int(&r, 1, 3),
                         .kv_heads = K,
                         .head_dim = 2 * random_int(&r, 2, 20),
                         .ff = random_int(&r, 4, 90),
                         .vocab = random_int(&r, 5, 150),
                         .max_seq = seq,
                         .tied = round % 2,
                         .qk_norm = round % 3 == 0,
                         .theta = 1e4,
                         .eps = 1e-5,
                         .init_std = 0.2};
        Rows rows = random_rows(&r, 3, seq, c.vocab, (unsigned)round % 8);
        acc *g[3], *w[3];
        size_t count;
        train(&cpu, &c, &rows, &g[0], &w[0], &count);
        for (int k = 1; k < 3; k++) train(&gpu, &c, &rows, &g[k], &w[k], &count);
        assert_true(error_of(g[1], g[0], count) <= ROUNDING);
        if (sizeof(acc) == 8) assert_true(error_of(w[1], w[0], count) <= 1e-9);
        assert_memory_equal(g[1], g[2], count * sizeof(acc)); /* twice on the GPU: the same bits */
        assert_memory_equal(w[1], w[2], count * sizeof(acc));
        for (int k = 0; k < 3; k++) free(g[k]), free(w[k]);
        rows_free(&rows);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(linear),        cmocka_unit_test(embedding),
    cmocka_unit_test(residual_norm), cmocka_unit_test(qk_rope),
    cmocka_unit_test(attention),     cmocka_unit_test(attention_folds),
    cmocka_unit_test(flat),          cmocka_unit_test(swiglu_and_cross_entropy),
    cmocka_unit_test(whole_model),
};

int main(int argc, char **argv)
{
    cpu = kernels_cpu();
    const char *complaint = kernels_cuda(&gpu, 0);
    there_is_a_gpu = complaint == NULL;
    printf("test_cuda: %s\n", complaint ? complaint : gpu.describe());
    return testing_run("test_cuda", tests, sizeof tests / sizeof tests[0], argc, argv);
}
