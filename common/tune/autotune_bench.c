#include "tune/autotune_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

static const double ENOUGH = 0.03; /* seconds spent on repeating a call */
static const double BATCH = 0.002; /* seconds of a batch: calls that are timed together */
static const double TOO_SLOW = 1;  /* a call of more seconds is not repeated */
enum { PIECE = 1 << 20 };          /* elements drawn at a time */

/* Allocates memory for one measurement. Ends the job if there is none. */
static void *take(Bench *b, size_t bytes)
{
    void *memory = b->k.alloc(bytes + 64);
    if (!memory) fatal("--autotune: no memory for %zu bytes", bytes);
    b->memory[b->taken++] = memory;
    return memory;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Allocates an array of random numbers. Zeros could make the products faster than in a run. */
static real *random_reals(Bench *b, size_t count)
{
    acc *from = take(b, smaller(PIECE, count) * sizeof *from);
    real *x = take(b, count * sizeof *x);
    for (size_t at = 0; at < count; at += PIECE) {
        size_t part = smaller(PIECE, count - at);
        b->k.draw(from, at, part, 1, (uint64_t)b->taken, 1);
        b->k.cast(x + at, from, part);
    }
    return x;
}

/* Frees all memory of take. */
static void give_back(Bench *b)
{
    while (b->taken > 0) b->k.free(b->memory[--b->taken]);
}

static void wait_for(Bench *b, const void *anything)
{
    char byte;
    b->k.download(&byte, anything, 1); /* returns when all kernels launched before it are done */
}

static double seconds_of(Bench *b, void (*call)(Bench *, void *), void *arguments, const void *result, int calls)
{
    double start = clock_seconds();
    for (int i = 0; i < calls; i++) call(b, arguments);
    wait_for(b, result);
    return clock_seconds() - start;
}

/* Returns the seconds of one call, in the fastest of several batches. A batch has several calls, because waiting for
 * the GPU takes as long as a small kernel. The first call does not count, because it may load code and choose plans;
 * but it is the only one if it takes more than TOO_SLOW. */
static double seconds(Bench *b, void (*call)(Bench *, void *), void *arguments, const void *result)
{
    double first = seconds_of(b, call, arguments, result, 1);
    if (first > TOO_SLOW) return first;
    double once = seconds_of(b, call, arguments, result, 1), best = 1e9, spent = 0;
    int calls = (int)(BATCH / (once + 1e-6)) + 1;
    while (spent < ENOUGH) {
        double time = seconds_of(b, call, arguments, result, calls);
        spent += time;
        if (time / calls < best) best = time / calls;
    }
    return best;
}

typedef struct {
    int n, in, out;
    real *x, *w, *y, *dx;
    acc *dw;
} Linear;

static void multiply(Bench *b, const Linear *l, Product product)
{
    switch (product) {
    case PRODUCT_FORWARD: b->k.linear_forward(l->y, l->x, l->w, l->n, l->in, l->out); break;
    case PRODUCT_BACKWARD_INPUT: b->k.linear_backward_input(l->dx, l->y, l->w, l->n, l->in, l->out); break;
    default: b->k.linear_backward_weight(l->dw, l->y, l->x, l->n, l->in, l->out); break;
    }
}

static void first_product(Bench *b, void *linear)
{
    multiply(b, linear, PRODUCT_FORWARD);
}

static void all_products(Bench *b, void *linear)
{
    for (int p = 0; p < PRODUCTS; p++) multiply(b, linear, (Product)p);
}

/* Returns the seconds of the three products of a layer. If the forward product alone takes `limit` seconds or more, it
 * returns the seconds of that product. */
static double time_linear(Bench *b, int in, int out, double limit)
{
    size_t n = (size_t)b->rows;
    Linear l = {.n = b->rows, .in = in, .out = out};
    l.x = random_reals(b, n * (size_t)in);
    l.w = random_reals(b, (size_t)in * (size_t)out);
    l.y = take(b, n * (size_t)out * sizeof(real));
    l.dx = take(b, n * (size_t)in * sizeof(real));
    l.dw = take(b, (size_t)in * (size_t)out * sizeof(acc));
    b->k.fill(l.dw, 0, (size_t)in * (size_t)out * sizeof(acc));
    double time = seconds(b, first_product, &l, l.y);
    if (time < limit) time = seconds(b, all_products, &l, l.dw);
    give_back(b);
    return time;
}

typedef struct {
    AttentionShape shape;
    real *qkv, *out, *dqkv;
    acc *lse, *dot;
} Attention;

static void both_passes(Bench *b, void *arguments)
{
    Attention *a = arguments;
    size_t q = (size_t)a->shape.heads * (size_t)a->shape.head_dim,
           kv = (size_t)a->shape.kv_heads * (size_t)a->shape.head_dim;
    b->k.attention_forward(a->out, NULL, a->lse, a->qkv, a->qkv + q, a->qkv + q + kv, a->shape);
    b->k.attention_backward(a->dqkv, NULL, a->dqkv + q, a->dqkv + q + kv, NULL, NULL, a->dot, a->out, a->out, a->lse,
                            a->qkv, a->qkv + q, a->qkv + q + kv, a->shape);
}

static double time_attention(Bench *b)
{
    const ModelConfig *c = b->model;
    size_t n = (size_t)b->rows, stride = (size_t)(c->heads + 2 * c->kv_heads) * (size_t)c->head_dim;
    int *host = malloc(3 * n * sizeof *host), *rows = take(b, 3 * n * sizeof *rows);
    if (!host) fatal("--autotune: no memory");
    for (size_t i = 0; i < n; i++) { /* causal */
        host[i] = (int)(i - i % (size_t)b->seq);
        host[n + i] = (int)i + 1;
        host[2 * n + i] = (int)i;
    }
    b->k.upload(rows, host, 3 * n * sizeof *host);
    free(host);
    Attention a = {.shape = {c->heads, c->kv_heads, c->head_dim, b->rows, b->rows, rows, rows + n, rows + 2 * n, stride,
                             stride, ATTENTION_FIRST | ATTENTION_LAST}};
    a.qkv = random_reals(b, n * stride);
    a.dqkv = take(b, n * stride * sizeof(real));
    a.out = take(b, n * (size_t)(c->heads * c->head_dim) * sizeof(real));
    a.lse = take(b, n * (size_t)c->heads * sizeof(acc));
    a.dot = take(b, n * (size_t)c->heads * sizeof(acc));
    double time = seconds(b, both_passes, &a, a.dqkv);
    give_back(b);
    return time;
}

void bench_matrices(Matrix matrix[MATRICES], const ModelConfig *c)
{
    matrix[0] = (Matrix){c->width, (c->heads + 2 * c->kv_heads) * c->head_dim, c->layers};
    matrix[1] = (Matrix){c->heads * c->head_dim, c->width, c->layers};
    matrix[2] = (Matrix){c->width, 2 * c->ff, c->layers};
    matrix[3] = (Matrix){c->ff, c->width, c->layers};
    matrix[4] = (Matrix){c->width, c->vocab, 1};
}

double bench_entry(Bench *b, const char *entry, const char *variant, double limit)
{
    const ModelConfig *c = b->model;
    if (strcmp(entry, "attention") == 0) {
        double ms = 1e3 * time_attention(b);
        printf("autotune: %-18s %6d rows, %d/%d heads of %-12d x %-4d %10.3f ms\n", variant, b->rows, c->heads,
               c->kv_heads, c->head_dim, c->layers, ms);
        return ms * c->layers;
    }
    Matrix matrix[MATRICES];
    bench_matrices(matrix, c);
    double total = 0;
    for (int i = 0; i < MATRICES && total <= limit; i++) {
        Matrix m = matrix[i];
        double ms = 1e3 * time_linear(b, m.in, m.out, 1e-3 * limit);
        printf("autotune: %-18s %6d rows, %6d to %-12d x %-4d %10.3f ms\n", variant, b->rows, m.in, m.out, m.times, ms);
        total += ms * m.times;
    }
    if (total > limit) printf("autotune: %-18s slower: given up\n", variant);
    return total;
}

/* --- plans --- */

typedef struct {
    Product product;
    Linear l;
} Planned;

static void planned_product(Bench *b, void *planned)
{
    Planned *p = planned;
    multiply(b, &p->l, p->product);
}

void bench_plans(Bench *b, Product product, int n, Matrix matrix, int plans, double *ms)
{
    size_t in = (size_t)matrix.in, out = (size_t)matrix.out, rows = (size_t)n;
    Planned p = {.product = product, .l = {.n = n, .in = matrix.in, .out = matrix.out}};
    const void *result = NULL;
    if (product != PRODUCT_BACKWARD_WEIGHT) p.l.w = random_reals(b, in * out);
    if (product != PRODUCT_BACKWARD_INPUT) p.l.x = random_reals(b, rows * in);
    if (product == PRODUCT_FORWARD) result = p.l.y = take(b, rows * out * sizeof(real));
    if (product != PRODUCT_FORWARD) p.l.y = random_reals(b, rows * out);
    if (product == PRODUCT_BACKWARD_INPUT) result = p.l.dx = take(b, rows * in * sizeof(real));
    if (product == PRODUCT_BACKWARD_WEIGHT) {
        result = p.l.dw = take(b, in * out * sizeof(acc));
        b->k.fill(p.l.dw, 0, in * out * sizeof(acc));
    }
    for (int plan = 0; plan < plans; plan++) {
        b->k.linear_choose_plan(product, n, matrix.in, matrix.out, plan);
        ms[plan] = 1e3 * seconds(b, planned_product, &p, result);
    }
    give_back(b);
}
