/* grouped_rate: measures the grouped products of experts on this GPU beside one dense product of the same size, at three
 * shapes: 8 experts (32,768 rows, 2048 x 4096), 64 (65,536 rows, 2048 x 1408), 128 (131,072 rows, 2048 x 768). The loads
 * are uneven: expert e gets rows in proportion to 1 + e mod 4.
 *
 * It prints lines "grouped EXPERTS ROWS IN OUT PRODUCT TFLOP/s DENSE RATIO". */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/error.h"
#include "kernels/kernels.h"

enum { ROUNDS = 7, REPEATS = 5 };

static Kernels kernels;
static real *x, *y, *w;
static acc *dw;
static int *first;

static double now(void)
{
    struct timespec t;
    int ignored;
    kernels.download(&ignored, first, sizeof ignored); /* waits for the GPU */
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *take(size_t bytes)
{
    void *memory = kernels.alloc(bytes);
    if (!memory) fatal("out of memory on the GPU: %zu bytes", bytes);
    return memory;
}

static real *random_matrix(size_t n, uint64_t stream)
{
    acc *stage = take(n * sizeof *stage);
    real *matrix = take(n * sizeof *matrix);
    kernels.draw(stage, 0, n, 1, stream, 1);
    kernels.cast(matrix, stage, n);
    kernels.free(stage);
    return matrix;
}

static void multiply(Product product, int groups, int rows, int in, int out)
{
    if (groups == 0 && product == PRODUCT_FORWARD) kernels.linear_forward(y, x, w, rows, in, out);
    if (groups == 0 && product == PRODUCT_BACKWARD_INPUT) kernels.linear_backward_input(x, y, w, rows, in, out);
    if (groups == 0 && product == PRODUCT_BACKWARD_WEIGHT) kernels.linear_backward_weight(dw, y, x, rows, in, out);
    if (groups == 0) return;
    if (product == PRODUCT_FORWARD) kernels.grouped_forward(y, x, w, first, groups, rows, in, out);
    if (product == PRODUCT_BACKWARD_INPUT) kernels.grouped_backward_input(x, y, w, first, groups, rows, in, out);
    if (product == PRODUCT_BACKWARD_WEIGHT) kernels.grouped_backward_weight(dw, y, x, first, groups, rows, in, out);
}

static int ascending(const void *a, const void *b)
{
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

/* TFLOP/s, the median of ROUNDS. */
static double rate(Product product, int groups, int rows, int in, int out)
{
    double time[ROUNDS];
    multiply(product, groups, rows, in, out);
    for (int r = 0; r < ROUNDS; r++) {
        double start = now();
        for (int i = 0; i < REPEATS; i++) multiply(product, groups, rows, in, out);
        time[r] = (now() - start) / REPEATS;
    }
    qsort(time, ROUNDS, sizeof *time, ascending);
    return 2.0 * rows * in * out / time[ROUNDS / 2] * 1e-12;
}

static void measure(int experts, int rows, int in, int out)
{
    static const char *const names[PRODUCTS] = {"forward", "backward-input", "backward-weight"};
    int *host = calloc((size_t)experts + 1, sizeof *host), parts = 0, done = 0;
    if (!host) fatal("out of memory");
    for (int e = 0; e < experts; e++) parts += 1 + e % 4;
    for (int e = 0; e < experts; e++) {
        done += 1 + e % 4;
        host[e + 1] = (int)((long)rows * done / parts);
    }
    first = take(((size_t)experts + 1) * sizeof *first);
    kernels.upload(first, host, ((size_t)experts + 1) * sizeof *first);
    x = random_matrix((size_t)rows * (size_t)in, 1);
    y = random_matrix((size_t)rows * (size_t)out, 2);
    w = random_matrix((size_t)experts * (size_t)in * (size_t)out, 3);
    dw = take((size_t)experts * (size_t)in * (size_t)out * sizeof *dw);
    kernels.fill(dw, 0, (size_t)experts * (size_t)in * (size_t)out * sizeof *dw);
    for (Product p = 0; p < PRODUCTS; p++) {
        double dense = rate(p, 0, rows, in, out), grouped = rate(p, experts, rows, in, out);
        printf("grouped %d %d %d %d %s %.0f %.0f %.2f\n", experts, rows, in, out, names[p], grouped, dense,
               grouped / dense);
    }
    kernels.free(x), kernels.free(y), kernels.free(w), kernels.free(dw), kernels.free(first);
    free(host);
}

int main(void)
{
    const char *complaint = kernels_cuda(&kernels, 0);
    if (complaint) fatal("%s", complaint);
    printf("%s\n", kernels.describe());
    size_t bytes = kernels.workspace_bytes(2048, 64, 131072);
    kernels.use_workspace(take(bytes), bytes);
    measure(8, 32768, 2048, 4096);
    measure(64, 65536, 2048, 1408);
    measure(128, 131072, 2048, 768);
    return 0;
}
