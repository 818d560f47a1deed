/* ranks: 1  builds: fp64 fp32 bf16
 *
 * Each CUDA kernel against the CPU's kernel in fp64, from equal inputs, on random shapes, odd sizes included. Without a
 * GPU the tests are skipped and say so. QUICK=1 runs few rounds, for compute-sanitizer. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "both.h"
#include "base/error.h"

static Kernels cpu; /* in fp64 */
static bool there_is_a_gpu;

static int rounds(int usual)
{
    if (!there_is_a_gpu) skip();
    return getenv("QUICK") ? (usual + 5) / 6 : usual * testing_grid();
}

static void linear(void **state)
{
    (void)state;
    int count = rounds(40);
    Random r = {.seed = 61};
    for (int round = 0; round < count; round++) {
        int scale = round % 4 ? 1 : 8; /* every fourth round: sizes that suit tensor cores */
        int n = scale * random_int(&r, 1, 150), in = scale * random_int(&r, 1, 90),
            out = scale * random_int(&r, 1, 140);
        Both *x = both_random(&r, (size_t)n * in, IN_REAL), *w = both_random(&r, (size_t)out * in, IN_REAL);
        Both *dy = both_random(&r, (size_t)n * out, IN_REAL), *y = both_output((size_t)n * out, IN_REAL);
        Both *dx = both_output((size_t)n * in, IN_REAL), *dw = both_random(&r, (size_t)out * in, IN_ACC);
        cpu.linear_forward(HOST(y), HOST(x), HOST(w), n, in, out);
        gpu.linear_forward(DEVICE(y), DEVICE(x), DEVICE(w), n, in, out);
        cpu.linear_backward_input(HOST(dx), HOST(dy), HOST(w), n, in, out);
        gpu.linear_backward_input(DEVICE(dx), DEVICE(dy), DEVICE(w), n, in, out);
        cpu.linear_backward_weight(HOST(dw), HOST(dy), HOST(x), n, in, out);
        gpu.linear_backward_weight(DEVICE(dw), DEVICE(dy), DEVICE(x), n, in, out);
        both_check("linear y", y, 0), both_check("linear dx", dx, 0), both_check("linear dw", dw, 0);
        both_forget();
    }
}

/* Every plan that the auto-tuner may choose computes the same product. */
static void linear_plans(void **state)
{
    (void)state;
    static const char *const names[PRODUCTS] = {"plans y", "plans dx", "plans dw"};
    int count = rounds(12), most = 0;
    Random r = {.seed = 70};
    for (int round = 0; round < count; round++) {
        int n = 8 * random_int(&r, 1, 40), in = 8 * random_int(&r, 1, 60), out = 8 * random_int(&r, 1, 60);
        Both *x = both_random(&r, (size_t)n * in, IN_REAL), *w = both_random(&r, (size_t)out * in, IN_REAL);
        Both *dy = both_random(&r, (size_t)n * out, IN_REAL), *y = both_output((size_t)n * out, IN_REAL);
        Both *dx = both_output((size_t)n * in, IN_REAL), *dw = both_zero((size_t)out * in, IN_ACC);
        cpu.linear_forward(HOST(y), HOST(x), HOST(w), n, in, out);
        cpu.linear_backward_input(HOST(dx), HOST(dy), HOST(w), n, in, out);
        cpu.linear_backward_weight(HOST(dw), HOST(dy), HOST(x), n, in, out);
        Both *result[PRODUCTS] = {y, dx, dw};
        size_t bytes[PRODUCTS] = {n * out * sizeof(real), n * in * sizeof(real), in * out * sizeof(acc)};
        for (Product product = 0; product < PRODUCTS; product++) {
            int plans = gpu.linear_plans(product, n, in, out);
            most = plans > most ? plans : most;
            for (int p = 0; p < plans; p++) {
                gpu.linear_choose_plan(product, n, in, out, p);
                gpu.fill(DEVICE(result[product]), product == PRODUCT_BACKWARD_WEIGHT ? 0 : 0xff,
                         bytes[product]); /* 0xff: NaN */
                if (product == PRODUCT_FORWARD) gpu.linear_forward(DEVICE(y), DEVICE(x), DEVICE(w), n, in, out);
                if (product == PRODUCT_BACKWARD_INPUT)
                    gpu.linear_backward_input(DEVICE(dx), DEVICE(dy), DEVICE(w), n, in, out);
                if (product == PRODUCT_BACKWARD_WEIGHT)
                    gpu.linear_backward_weight(DEVICE(dw), DEVICE(dy), DEVICE(x), n, in, out);
                both_check(names[product], result[product], 0);
            }
            gpu.linear_choose_plan(product, n, in, out, 0);
        }
        both_forget();
    }
    assert_true(most > 1);
}

static void embedding(void **state)
{
    (void)state;
    int count = rounds(12);
    Random r = {.seed = 62};
    for (int round = 0; round < count; round++) {
        int n = random_int(&r, 1, 1500), vocab = random_int(&r, 1, round % 2 ? 4 : 200), width = random_int(&r, 1, 300);
        int *tokens = malloc((size_t)n * sizeof *tokens);
        for (int i = 0; i < n; i++) tokens[i] = random_int(&r, 0, vocab - 1);
        Both *token = both_bytes(tokens, (size_t)n * sizeof *tokens);
        int first = round % 3 ? 0 : random_int(&r, 0, vocab - 1), mine = vocab - first; /* a rank's part of the table */
        if (round % 3 == 1) mine = random_int(&r, 0, mine);
        Both *w = both_random(&r, (size_t)vocab * width, IN_REAL), *y = both_output((size_t)n * width, IN_REAL);
        Both *dy = both_random(&r, (size_t)n * width, IN_REAL), *dw = both_random(&r, (size_t)vocab * width, IN_ACC);
        cpu.embedding_forward(HOST(y), HOST(w), HOST(token), first, mine, n, width);
        gpu.embedding_forward(DEVICE(y), DEVICE(w), DEVICE(token), first, mine, n, width);
        cpu.embedding_backward(HOST(dw), HOST(dy), HOST(token), first, mine, n, width);
        gpu.embedding_backward(DEVICE(dw), DEVICE(dy), DEVICE(token), first, mine, n, width);
        both_check("embedding y", y, 0), both_check("embedding dw", dw, 0);
        free(tokens);
        both_forget();
    }
}

static void residual_norm(void **state)
{
    (void)state;
    int rounds_left = rounds(24);
    Random r = {.seed = 63};
    for (int round = 0; round < rounds_left; round++) {
        int n = random_int(&r, 1, 900), width = round % 2 ? random_int(&r, 1, 300) : 8 * random_int(&r, 1, 200);
        size_t count = (size_t)n * width;
        Both *x = both_random(&r, count, IN_REAL), *delta = both_random(&r, count, IN_REAL);
        Both *w = both_random(&r, width, IN_REAL), *sum = both_output(count, IN_REAL);
        Both *y = both_output(count, IN_REAL), *rstd = both_output(n, IN_ACC);
        Both *dy = both_random(&r, count, IN_REAL), *dx = both_random(&r, count, IN_REAL);
        Both *dw = both_random(&r, width, IN_ACC);
        bool first = round % 4 == 0;
        cpu.residual_norm_forward(HOST(sum), HOST(y), HOST(rstd), HOST(x), first ? NULL : HOST(delta), HOST(w), 1e-5, n,
                                  width);
        gpu.residual_norm_forward(DEVICE(sum), DEVICE(y), DEVICE(rstd), DEVICE(x), first ? NULL : DEVICE(delta),
                                  DEVICE(w), 1e-5, n, width);
        both_check("norm sum", sum, 0), both_check("norm y", y, 0), both_check_as(IN_REAL, "norm rstd", rstd, 0);
        both_to_host(sum), both_to_host(rstd);
        cpu.residual_norm_backward(HOST(dx), HOST(dw), HOST(dy), HOST(sum), HOST(rstd), HOST(w), n, width);
        gpu.residual_norm_backward(DEVICE(dx), DEVICE(dw), DEVICE(dy), DEVICE(sum), DEVICE(rstd), DEVICE(w), n, width);
        both_check("norm dx", dx, 0), both_check("norm dw", dw, 0);
        both_forget();
    }
}

static void qk_rope(void **state)
{
    (void)state;
    int rounds_left = rounds(24);
    Random r = {.seed = 64};
    for (int round = 0; round < rounds_left; round++) {
        int n = random_int(&r, 1, 300), K = random_int(&r, 1, 3), H = K * random_int(&r, 1, 3);
        int D = round % 3 ? 2 * random_int(&r, 1, 70) : 64;
        size_t count = (size_t)n * (H + 2 * K) * D, turned = (size_t)n * (H + K);
        int *positions = malloc((size_t)n * sizeof *positions);
        for (int i = 0; i < n; i++) positions[i] = random_int(&r, 0, n - 1);
        Both *position = both_bytes(positions, (size_t)n * sizeof *positions);
        Both *rope = both_random(&r, (size_t)n * D, IN_ACC), *qkv = both_random(&r, count, IN_REAL);
        Both *wq = both_random(&r, D, IN_REAL), *wk = both_random(&r, D, IN_REAL);
        Both *raw = both_output(turned * D, IN_REAL), *rstd = both_output(turned, IN_ACC);
        Both *d = both_random(&r, count, IN_REAL), *dwq = both_random(&r, D, IN_ACC), *dwk = both_random(&r, D, IN_ACC);
        bool norm = round % 2;
        cpu.qk_rope_forward(HOST(qkv), HOST(raw), HOST(rstd), norm ? HOST(wq) : NULL, norm ? HOST(wk) : NULL,
                            HOST(rope), HOST(position), 1e-6, n, H, K, D);
        gpu.qk_rope_forward(DEVICE(qkv), DEVICE(raw), DEVICE(rstd), norm ? DEVICE(wq) : NULL, norm ? DEVICE(wk) : NULL,
                            DEVICE(rope), DEVICE(position), 1e-6, n, H, K, D);
        both_check("rope qkv", qkv, 0);
        if (norm) both_check("rope raw", raw, 0), both_check("rope rstd", rstd, 0), both_to_host(rstd);
        cpu.qk_rope_backward(HOST(d), HOST(dwq), HOST(dwk), HOST(raw), HOST(rstd), norm ? HOST(wq) : NULL,
                             norm ? HOST(wk) : NULL, HOST(rope), HOST(position), n, H, K, D);
        gpu.qk_rope_backward(DEVICE(d), DEVICE(dwq), DEVICE(dwk), DEVICE(raw), DEVICE(rstd), norm ? DEVICE(wq) : NULL,
                             norm ? DEVICE(wk) : NULL, DEVICE(rope), DEVICE(position), n, H, K, D);
        both_check("rope dqkv", d, 0), both_check("rope dwq", dwq, 0), both_check("rope dwk", dwk, 0);
        free(positions);
        both_forget();
    }
}

static void swiglu(void **state)
{
    (void)state;
    int count = rounds(24);
    Random r = {.seed = 67};
    for (int round = 0; round < count; round++) {
        int n = random_int(&r, 1, 60), F = round % 2 ? random_int(&r, 1, 300) : 8 * random_int(&r, 1, 60);
        Both *gate_up = both_random(&r, 2 * (size_t)n * F, IN_REAL), *y = both_output((size_t)n * F, IN_REAL);
        Both *dy = both_random(&r, (size_t)n * F, IN_REAL), *d = both_output(2 * (size_t)n * F, IN_REAL);
        cpu.swiglu_forward(HOST(y), HOST(gate_up), n, F);
        gpu.swiglu_forward(DEVICE(y), DEVICE(gate_up), n, F);
        cpu.swiglu_backward(HOST(d), HOST(dy), HOST(gate_up), n, F);
        gpu.swiglu_backward(DEVICE(d), DEVICE(dy), DEVICE(gate_up), n, F);
        both_check("swiglu y", y, 0), both_check("swiglu d", d, 0);
        both_forget();
    }
}

static void cross_entropy(void **state)
{
    (void)state;
    int count = rounds(24);
    Random r = {.seed = 68};
    for (int round = 0; round < count; round++) {
        int n = random_int(&r, 1, 60), V = round % 2 ? random_int(&r, 1, 300) : 8 * random_int(&r, 1, 600);
        int *labels = malloc((size_t)n * sizeof *labels);
        for (int i = 0; i < n; i++) labels[i] = random_int(&r, -1, V - 1);
        Both *label = both_bytes(labels, (size_t)n * sizeof *labels), *logits = both_random(&r, (size_t)n * V, IN_REAL);
        Both *loss = both_output(n, IN_ACC);
        cpu.cross_entropy(HOST(loss), HOST(logits), HOST(label), 0.37, n, V);
        gpu.cross_entropy(DEVICE(loss), DEVICE(logits), DEVICE(label), 0.37, n, V);
        both_check("loss", loss, 1), both_check("dlogits", logits, 0);
        free(labels);
        both_forget();
    }
}

/* Plays both ranks of a split vocabulary, with padding. */
static void split_cross_entropy(void **state)
{
    (void)state;
    int count = rounds(12);
    Random r = {.seed = 70};
    for (int round = 0; round < count; round++) {
        int n = random_int(&r, 1, 40), V = random_int(&r, 3, round % 2 ? 3000 : 500), stride = (V + 1) / 2,
            part[2] = {stride, round % 4 ? V - stride : 0};
        int *labels = malloc((size_t)n * sizeof *labels);
        for (int i = 0; i < n; i++) labels[i] = random_int(&r, -1, V - 1);
        Both *label = both_bytes(labels, (size_t)n * sizeof *labels);
        for (int side = 0; side < 2; side++) {
            size_t all = (size_t)n * stride;
            Both *logits = both_random(&r, all, IN_REAL), *top = both_output(n, IN_ACC),
                 *total = both_output(n, IN_ACC);
            Both *target = both_output(n, IN_ACC), *loss = both_output(n, IN_ACC);
            cpu.logits_top(HOST(top), HOST(logits), n, part[side], stride);
            gpu.logits_top(DEVICE(top), DEVICE(logits), n, part[side], stride);
            both_check("split top", top, 1);
            for (int i = 0; i < n; i++) ((double *)HOST(top))[i] += side; /* as if the other rank had the maximum */
            both_to_device(top);
            cpu.logits_sum(HOST(total), HOST(target), HOST(logits), HOST(top), HOST(label), side * stride, n,
                           part[side], stride);
            gpu.logits_sum(DEVICE(total), DEVICE(target), DEVICE(logits), DEVICE(top), DEVICE(label), side * stride, n,
                           part[side], stride);
            both_check("split total", total, 1), both_check("split target", target, 1);
            cpu.logits_gradient(HOST(loss), HOST(logits), HOST(top), HOST(total), HOST(target), HOST(label),
                                side * stride, 0.37, n, part[side], stride);
            gpu.logits_gradient(DEVICE(loss), DEVICE(logits), DEVICE(top), DEVICE(total), DEVICE(target), DEVICE(label),
                                side * stride, 0.37, n, part[side], stride);
            both_check("split loss", loss, 1), both_check("split dlogits", logits, 0);
        }
        free(labels);
        both_forget();
    }
}

static void flat(void **state)
{
    (void)state;
    rounds(1);
    Random r = {.seed = 69};
    for (size_t n = 1; n < (getenv("QUICK") ? 2000 : 3000000); n = n * 7 + 3) {
        Both *master = both_output(n, IN_ACC), *w = both_output(n, IN_REAL), *g = both_random(&r, n, IN_ACC);
        Both *m = both_random(&r, n, IN_ACC), *v = both_random(&r, n, IN_ACC);
        cpu.draw(HOST(master), n / 3, n, 5, 77, 0.02);
        gpu.draw(DEVICE(master), n / 3, n, 5, 77, 0.02);
        double *drawn = malloc(n * sizeof *drawn);
        memcpy(drawn, HOST(master), n * sizeof *drawn);
        both_to_host(master);
        assert_memory_equal(drawn, HOST(master), n * sizeof *drawn); /* CPU and GPU draw the same bits */
        free(drawn);
        cpu.cast(HOST(w), HOST(master), n);
        gpu.cast(DEVICE(w), DEVICE(master), n);
        both_check("cast", w, 0);
        both_to_host(w);
        cpu.add(HOST(g), HOST(m), n);
        gpu.add(DEVICE(g), DEVICE(m), n);
        both_check("add", g, 0);
        both_to_host(g);
        cpu.add_real(HOST(g), HOST(w), n);
        gpu.add_real(DEVICE(g), DEVICE(w), n);
        both_check("add real", g, 0);
        both_to_host(g);
        gpu.copy(DEVICE(v), DEVICE(g), n * sizeof(acc));
        memcpy(HOST(v), HOST(g), n * sizeof(double));
        both_check("copy", v, 0);

        for (size_t i = 0; i < n; i++) ((double *)HOST(v))[i] = fabs(((double *)HOST(v))[i]);
        both_to_device(v);
        StepScalars scalars = {
            .lr = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .correction1 = 0.1, .correction2 = 0.05, .clip = 1};
        double sums[4] = {1, 2, 1, 2}; /* the CPU's two sums, then the GPU's */
        Both *total = both_bytes(sums, sizeof sums);
        cpu.sum(&sums[0], HOST(g), n);
        cpu.sum_squares(&sums[1], HOST(g), n);
        gpu.sum((double *)DEVICE(total) + 2, DEVICE(g), n);
        gpu.sum_squares((double *)DEVICE(total) + 3, DEVICE(g), n);
        gpu.download(&sums[2], (double *)DEVICE(total) + 2, 2 * sizeof *sums);
        for (int s = 0; s < 2; s++) assert_true(fabs(sums[2 + s] - sums[s]) <= 1e-12 * sums[1]);

        scalars.squares = sums[1];
        Both *step = both_bytes(&scalars, sizeof scalars);
        bool same = sizeof(real) == sizeof(acc); /* then the weights are their own master copy */
        cpu.adamw(HOST(w), HOST(master), HOST(m), HOST(v), HOST(g), n, 0.1, HOST(step));
        gpu.adamw(same ? DEVICE(master) : DEVICE(w), DEVICE(master), DEVICE(m), DEVICE(v), DEVICE(g), n, 0.1,
                  DEVICE(step));
        both_check("adamw", master, 0), both_check("adamw m", m, 0), both_check("adamw v", v, 0);
        if (!same) both_check("adamw w", w, 0);
        cpu.sgd(HOST(w), HOST(master), HOST(g), n, 0.1, HOST(step));
        gpu.sgd(same ? DEVICE(master) : DEVICE(w), DEVICE(master), DEVICE(g), n, 0.1, DEVICE(step));
        both_check("sgd", master, 0);
        if (!same) both_check("sgd w", w, 0);
        both_forget();
    }
}

/* A block of one matrix to a block of another; what lies beside the block stays. */
static void copied_blocks(void **state)
{
    (void)state;
    int count = rounds(12);
    Random r = {.seed = 71};
    for (int round = 0; round < count; round++) {
        int scale = round % 2 ? 8 : 1, n = random_int(&r, 0, 200), width = scale * random_int(&r, 1, 40);
        int from_width = width + scale * random_int(&r, 0, 9), to_width = width + scale * random_int(&r, 0, 9);
        Both *from = both_random(&r, (size_t)n * from_width, IN_REAL);
        Both *to = both_random(&r, (size_t)n * to_width, IN_REAL);
        cpu.copy_block(HOST(to), (size_t)to_width, HOST(from), (size_t)from_width, n, width);
        gpu.copy_block(DEVICE(to), (size_t)to_width, DEVICE(from), (size_t)from_width, n, width);
        both_check("copied blocks", to, 0);
        both_forget();
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(linear),        cmocka_unit_test(linear_plans),
    cmocka_unit_test(embedding),     cmocka_unit_test(residual_norm),
    cmocka_unit_test(qk_rope),       cmocka_unit_test(swiglu),
    cmocka_unit_test(cross_entropy), cmocka_unit_test(split_cross_entropy),
    cmocka_unit_test(flat),          cmocka_unit_test(copied_blocks),
};

int main(int argc, char **argv)
{
    cpu = reference_kernels();
    there_is_a_gpu = both_open();
    int failed = testing_run("test_cuda", tests, sizeof tests / sizeof tests[0], argc, argv);
    if (there_is_a_gpu) both_report();
    return failed;
}
