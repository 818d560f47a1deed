/* device_rate MODEL:SEQUENCES...: measures how fast this GPU multiplies matrices of the shapes in a training step, and
 * how fast it reads and writes its memory.
 *
 * It prints one line per argument: "gemm MODEL:SEQUENCES SECONDS TFLOPS". SECONDS is the time of the three products
 * (forward, input gradient, weight gradient) of every linear layer, in a step of SEQUENCES sequences of the preset.
 * TFLOPS is their rate. Each product runs alone and is repeated, so a small product may find its operands in the cache,
 * which a step reads from memory. So SECONDS is a lower bound for the step. Then it prints "read X GB/s" and "write X
 * GB/s", measured on 1 GiB. SHAPES=1 prints each product.
 *
 * The operands are random. A GPU that multiplies zeros draws less power and keeps a higher clock. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/error.h"
#include "kernels/kernels.h"
#include "settings/presets.h"
#include "model/model_config.h"

static const size_t STAGE = ((size_t)1 << 30) / sizeof(acc);
static const double LONG_ENOUGH = 0.1; /* seconds of a measurement */

static Kernels kernels;
static acc *stage;    /* [STAGE]  random numbers before the cast; later the memory that is read and written */
static double *total; /* [1] */

typedef struct {
    int n, in, out;
    real *x;      /* [n, in] */
    real *w;      /* [out, in] */
    real *dy;     /* [n, out] */
    acc *dw;      /* [out, in] */
    real *result; /* [n, max(in, out)]  y or dx */
} Linear;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void wait_for_gpu(void)
{
    double ignored;
    kernels.download(&ignored, total, sizeof ignored);
}

static void *take(size_t bytes)
{
    void *memory = kernels.alloc(bytes);
    if (!memory) fatal("out of memory on the GPU: %zu bytes", bytes);
    return memory;
}

static real *random_matrix(size_t n)
{
    static uint64_t stream;
    real *x = take(n * sizeof *x);
    for (size_t done = 0; done < n; done += STAGE) {
        size_t part = n - done < STAGE ? n - done : STAGE;
        kernels.draw(stage, 0, part, 1, stream++, 1);
        kernels.cast(x + done, stage, part);
    }
    return x;
}

static Linear linear_create(int n, int in, int out)
{
    size_t rows = (size_t)n, weights = (size_t)in * (size_t)out;
    Linear l = {.n = n, .in = in, .out = out};
    l.x = random_matrix(rows * (size_t)in);
    l.w = random_matrix(weights);
    l.dy = random_matrix(rows * (size_t)out);
    l.dw = take(weights * sizeof *l.dw);
    kernels.draw(l.dw, 0, weights, 2, 0, 1);
    l.result = take(rows * (size_t)(in > out ? in : out) * sizeof *l.result);
    return l;
}

static void linear_free(Linear *l)
{
    void *all[] = {l->x, l->w, l->dy, l->dw, l->result};
    for (int i = 0; i < 5; i++) kernels.free(all[i]);
}

/* --- the calls that are timed --- */

static void forward(const Linear *l)
{
    kernels.linear_forward(l->result, l->x, l->w, l->n, l->in, l->out);
}

static void backward_input(const Linear *l)
{
    kernels.linear_backward_input(l->result, l->dy, l->w, l->n, l->in, l->out);
}

static void backward_weight(const Linear *l)
{
    kernels.linear_backward_weight(l->dw, l->dy, l->x, l->n, l->in, l->out);
}

static void read_stage(const Linear *unused)
{
    (void)unused;
    kernels.sum_squares(total, stage, STAGE);
}

static void write_stage(const Linear *unused)
{
    (void)unused;
    kernels.fill(stage, 0x3c, STAGE * sizeof *stage);
}

/* Returns the seconds of one call. Doubles the number of calls until they take LONG_ENOUGH together. Then launching the
 * first call and waiting for the last one hardly count. */
static double seconds(void (*work)(const Linear *), const Linear *l)
{
    work(l); /* not timed: the first call may load and choose kernels */
    for (int calls = 4;; calls *= 2) {
        wait_for_gpu();
        double start = now();
        for (int i = 0; i < calls; i++) work(l);
        wait_for_gpu();
        double time = now() - start;
        if (time > LONG_ENOUGH) return time / calls;
    }
}

static double three_products(int n, int in, int out)
{
    void (*const product[])(const Linear *) = {forward, backward_input, backward_weight};
    Linear l = linear_create(n, in, out);
    double sum = 0;
    for (int p = 0; p < 3; p++) {
        double time = seconds(product[p], &l);
        if (getenv("SHAPES"))
            printf("shape n %d in %d out %d product %d: %.1f TFLOP/s\n", n, in, out, p, 2e-12 * n * in * out / time);
        sum += time;
    }
    linear_free(&l);
    return sum;
}

/* Parses an argument such as "124m:64": returns the preset and sets the rows of a step. Ends the program with status 2
 * if the text is not a preset and a number of sequences. */
static const Preset *parse(const char *text, int *rows)
{
    char name[32], after;
    int sequences;
    bool whole = sscanf(text, "%31[^:]:%d%c", name, &sequences, &after) == 2;
    const Preset *p = whole ? preset_find(name) : NULL;
    if (!p || sequences < 1 || sequences > 65536) {
        fprintf(stderr, "%s: not MODEL:SEQUENCES, as in 124m:64\n", text);
        exit(2);
    }
    *rows = sequences * p->seq;
    return p;
}

/* Allocates scratch memory for the largest of the arguments and hands it to the kernels. */
static void hand_over_workspace(int count, char **arguments)
{
    size_t most = 0;
    for (int a = 0; a < count; a++) {
        int rows;
        const Preset *p = parse(arguments[a], &rows);
        size_t bytes = kernels.workspace_bytes ? kernels.workspace_bytes(p->model.width, p->model.head_dim, rows) : 0;
        if (bytes > most) most = bytes;
    }
    if (most) kernels.use_workspace(take(most), most);
}

int main(int argc, char **argv)
{
    if (argc < 2) return fprintf(stderr, "usage: device_rate MODEL:SEQUENCES...\n"), 2;
    if (kernels_cuda(&kernels, 0)) return puts("no GPU"), 0;
    hand_over_workspace(argc - 1, argv + 1);
    stage = take(STAGE * sizeof *stage);
    total = take(sizeof *total);
    kernels.fill(total, 0, sizeof *total);

    for (int a = 1; a < argc; a++) {
        int n;
        const ModelConfig *c = &parse(argv[a], &n)->model;
        int C = c->width, qkv = (c->heads + 2 * c->kv_heads) * c->head_dim;
        const struct {
            int in, out, times;
        } layer[] = {{C, qkv, c->layers},
                     {c->heads * c->head_dim, C, c->layers},
                     {C, 2 * c->ff, c->layers},
                     {c->ff, C, c->layers},
                     {C, c->vocab, 1}};
        double time = 0, flops = 0;
        for (int l = 0; l < 5; l++) {
            time += layer[l].times * three_products(n, layer[l].in, layer[l].out);
            flops += 6.0 * layer[l].times * n * layer[l].in * layer[l].out;
        }
        printf("gemm %s %.6f %.1f\n", argv[a], time, flops / time * 1e-12);
    }
    double bytes = (double)(STAGE * sizeof *stage);
    kernels.draw(stage, 0, STAGE, 3, 0, 1);
    printf("read %.0f GB/s\n", bytes / seconds(read_stage, NULL) * 1e-9);
    printf("write %.0f GB/s\n", bytes / seconds(write_stage, NULL) * 1e-9);
    return 0;
}
