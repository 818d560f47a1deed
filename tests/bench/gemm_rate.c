/* gemm_rate MODEL...: measures how fast this machine's BLAS multiplies matrices of the shapes of a preset's layers.
 *
 * It prints one line per preset: "rate MODEL GFLOP/s", the rate of the three products (forward, input gradient, weight
 * gradient) of every linear layer in a step. Each shape is timed alone; the best of several calls counts, as often as a
 * step makes this call. BLAS runs each call on all cores. The rate is an upper bound for the rate of a step. */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "model/model_config.h"
#include "settings/presets.h"

enum { REPEATS = 30 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *matrix(size_t n)
{
    float *x = malloc(n * sizeof *x);
    CHECK(x);
    for (size_t i = 0; i < n; i++) x[i] = (float)(i % 17) * 0.1f - 0.8f;
    return x;
}

/* Returns the seconds of y = x w^T, dx = dy w and dw = dy^T x together, each the best of REPEATS calls. */
static double three_products(int n, int in, int out)
{
    float *x = matrix((size_t)n * in), *w = matrix((size_t)out * in), *y = matrix((size_t)n * out);
    double best[3] = {1e9, 1e9, 1e9};
    for (int p = 0; p < 3; p++)
        for (int r = 0; r < REPEATS; r++) {
            double start = now();
            if (p == 0) cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, out, in, 1, x, in, w, in, 0, y, out);
            if (p == 1) cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, in, out, 1, y, out, w, in, 0, x, in);
            if (p == 2) cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, out, in, n, 1, y, out, x, in, 0, w, in);
            double time = now() - start;
            if (time < best[p]) best[p] = time;
        }
    if (getenv("SHAPES"))
        for (int p = 0; p < 3; p++)
            printf("shape n %d in %d out %d product %d: %.1f GFLOP/s\n", n, in, out, p, 2e-9 * n * in * out / best[p]);
    free(x), free(w), free(y);
    return best[0] + best[1] + best[2];
}

int main(int argc, char **argv)
{
    openblas_set_num_threads((int)sysconf(_SC_NPROCESSORS_ONLN));
    printf("kernel %s\n", openblas_get_corename());
    for (int a = 1; a < argc; a++) {
        const Preset *p = preset_find(argv[a]);
        if (!p) return fprintf(stderr, "%s: no such preset\n", argv[a]), 2;
        const ModelConfig *c = &p->model;
        int n = p->batch * p->seq, C = c->width, qkv = (c->heads + 2 * c->kv_heads) * c->head_dim;
        const struct {
            int in, out, times;
        } layer[] = {{C, qkv, c->layers},
                     {c->heads * c->head_dim, C, c->layers},
                     {C, 2 * c->ff, c->layers},
                     {c->ff, C, c->layers},
                     {C, c->vocab, 1}};
        double seconds = 0, flops = 0;
        for (int l = 0; l < 5; l++) {
            seconds += layer[l].times * three_products(n, layer[l].in, layer[l].out);
            flops += 6.0 * layer[l].times * n * layer[l].in * layer[l].out;
        }
        printf("rate %s %.1f\n", argv[a], flops / seconds * 1e-9);
    }
    return 0;
}
