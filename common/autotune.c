#include "autotune.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm.h"
#include "error.h"
#include "recorder.h"

enum { LINE = 1024, ROWS_TIMED = 1024 };
static const char HEADER[] = "# kernels chosen by --autotune\n";
static const double ENOUGH = 0.02, TOO_SLOW = 1; /* seconds: of repeating a call; of one that is not worth repeating */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- what is timed --- */

typedef struct {
    Kernels k;
    const ModelConfig *model;
    int rows, seq; /* enough rows to tell kernels apart; whole sequences */
    void *memory[16];
    int taken;
} Bench;

static void *take(Bench *b, size_t bytes)
{
    void *memory = b->k.alloc(bytes + 64);
    if (!memory) fatal("--autotune: no memory for %zu bytes", bytes);
    b->memory[b->taken++] = memory;
    return memory;
}

/* Random numbers: zeros can be faster. */
static real *random_reals(Bench *b, size_t count)
{
    acc *from = take(b, count * sizeof *from);
    real *x = take(b, count * sizeof *x);
    b->k.draw(from, 0, count, 1, (uint64_t)b->taken, 1);
    b->k.cast(x, from, count);
    return x;
}

static void give_back(Bench *b)
{
    while (b->taken > 0) b->k.free(b->memory[--b->taken]);
}

static void wait_for(Bench *b, const void *anything)
{
    char byte;
    b->k.download(&byte, anything, 1); /* returns when the kernels before it are done */
}

/* Seconds of one call, the fastest of several; after one that is not timed, because it may load and choose. */
static double seconds(Bench *b, void (*call)(Bench *, void *), void *arguments, const void *result)
{
    double best = 1e9, spent = 0, start = now();
    call(b, arguments);
    wait_for(b, result);
    double first = now() - start;
    if (first > TOO_SLOW) return first;
    while (spent < ENOUGH) {
        start = now();
        call(b, arguments);
        wait_for(b, result);
        double time = now() - start;
        spent += time;
        if (time < best) best = time;
    }
    return best;
}

typedef struct {
    int n, in, out;
    real *x, *w, *y, *dx;
    acc *dw;
} Linear;

static void three_products(Bench *b, void *arguments)
{
    Linear *l = arguments;
    b->k.linear_forward(l->y, l->x, l->w, l->n, l->in, l->out);
    b->k.linear_backward_input(l->dx, l->y, l->w, l->n, l->in, l->out);
    b->k.linear_backward_weight(l->dw, l->y, l->x, l->n, l->in, l->out);
}

static void one_product(Bench *b, void *arguments)
{
    Linear *l = arguments;
    b->k.linear_forward(l->y, l->x, l->w, l->n, l->in, l->out);
}

/* May stop early, once it has taken `limit` seconds. */
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
    double time = seconds(b, one_product, &l, l.y);
    if (time < limit) time = seconds(b, three_products, &l, l.dw);
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

/* Milliseconds of all calls of an entry that a micro-step makes, at so many rows; prints each shape. Stops once there are more
 * than `limit`. */
static double time_entry(Bench *b, const char *entry, const char *variant, double limit)
{
    const ModelConfig *c = b->model;
    if (strcmp(entry, "attention") == 0) {
        double ms = 1e3 * time_attention(b);
        printf("autotune: %-18s %6d rows, %d/%d heads of %-12d x %-4d %10.3f ms\n", variant, b->rows, c->heads,
               c->kv_heads, c->head_dim, c->layers, ms);
        return ms * c->layers;
    }
    const struct {
        int in, out, times;
    } shapes[] = {{c->width, (c->heads + 2 * c->kv_heads) * c->head_dim, c->layers},
                  {c->heads * c->head_dim, c->width, c->layers},
                  {c->width, 2 * c->ff, c->layers},
                  {c->ff, c->width, c->layers},
                  {c->width, c->vocab, 1}};
    double total = 0;
    for (int s = 0; s < 5 && total <= limit; s++) {
        double ms = 1e3 * time_linear(b, shapes[s].in, shapes[s].out, 1e-3 * limit);
        printf("autotune: %-18s %6d rows, %6d to %-12d x %-4d %10.3f ms\n", variant, b->rows, shapes[s].in,
               shapes[s].out, shapes[s].times, ms);
        total += ms * shapes[s].times;
    }
    return total;
}

/* --- the cache: a line for each entry: KEY = VARIANT --- */

static void key_of(char *key, const Bench *b, const char *entry)
{
    const ModelConfig *c = b->model;
    snprintf(key, LINE, "%s %s %s, %s: %d rows of %d, width %d, %d/%d heads of %d, ff %d, vocabulary %d, layers %d",
             entry, PRECISION_NAME, b->k.backend, b->k.describe(), b->rows, b->seq, c->width, c->heads, c->kv_heads,
             c->head_dim, c->ff, c->vocab, c->layers);
}

static size_t entry_length(const char *variant)
{
    return strcspn(variant, "=");
}

/* Does the variant have kernels for this model, or does the backend put another in its place? */
static bool fits(const Kernels *kernels, const Variant *variant, int head_dim)
{
    Kernels k = *kernels;
    variant->use(&k);
    void (*before)(real *, acc *, acc *, const real *, const real *, const real *, AttentionShape) =
        k.attention_forward;
    if (k.fit) k.fit(&k, head_dim);
    return k.attention_forward == before;
}

static bool is_of(const Variant *variant, const char *entry)
{
    return strlen(entry) == entry_length(variant->name) && strncmp(variant->name, entry, strlen(entry)) == 0;
}

/* Is there a line for the key, with a variant of the entry that can be taken? */
static bool find_cached(char *variant, const Kernels *k, const char *path, const char *key, const char *entry,
                        int head_dim)
{
    char line[LINE + 64];
    FILE *f = fopen(path, "r");
    bool found = false;
    while (f && fgets(line, sizeof line, f)) {
        size_t length = strlen(key);
        if (strncmp(line, key, length) != 0 || strncmp(line + length, " = ", 3) != 0) continue;
        line[strcspn(line, "\n")] = '\0';
        for (int v = 0; v < k->variant_count; v++) {
            const Variant *known = &k->variants[v];
            if (strcmp(known->name, line + length + 3) != 0 || !is_of(known, entry) || !fits(k, known, head_dim))
                continue;
            snprintf(variant, 64, "%s", known->name);
            found = true;
        }
    }
    if (f) fclose(f);
    return found;
}

/* A new file, or one that this program has written: anything else is somebody's. */
static const char *check_file(const char *path)
{
    char line[sizeof HEADER] = "";
    FILE *f = fopen(path, "a+");
    if (!f) return complain("--autotune %s: %s", path, strerror(errno));
    rewind(f);
    bool empty = fgets(line, sizeof line, f) == NULL, ours = strcmp(line, HEADER) == 0;
    fseek(f, 0, SEEK_END);
    int bad = empty && fputs(HEADER, f) < 0;
    if (fclose(f) != 0 || bad) return complain("--autotune %s: %s", path, strerror(errno));
    return empty || ours ? NULL : complain("--autotune %s: is there, and not a file of --autotune", path);
}

static const char *append(const char *path, const char *key, const char *variant)
{
    FILE *f = fopen(path, "a");
    if (!f) return complain("--autotune %s: %s", path, strerror(errno));
    int bad = fprintf(f, "%s = %s\n", key, variant) < 0;
    if (fclose(f) != 0 || bad) return complain("--autotune %s: %s", path, strerror(errno));
    return NULL;
}

/* --- choosing --- */

/* On rank 0: the variant to take for the entry that `first` is one of; NULL if there is no choice. */
static const char *choose(Bench *b, const Kernels *kernels, int first, char *variant, const char *path)
{
    char entry[32], key[LINE];
    size_t length = entry_length(kernels->variants[first].name);
    snprintf(entry, sizeof entry, "%.*s", (int)length, kernels->variants[first].name);
    b->k = *kernels;
    key_of(key, b, entry);
    *variant = '\0';
    if (find_cached(variant, kernels, path, key, entry, b->model->head_dim)) {
        printf("autotune: %s, from %s\n", variant, path);
        return NULL;
    }
    double best = 1e12;
    for (int v = kernels->variant_count - 1; v >= first; v--) { /* the default first: it is seldom the slowest */
        const Variant *candidate = &kernels->variants[v];
        if (!is_of(candidate, entry) || !fits(kernels, candidate, b->model->head_dim)) continue;
        b->k = *kernels;
        candidate->use(&b->k);
        double ms = time_entry(b, entry, candidate->name, best);
        if (ms >= best) continue;
        best = ms;
        snprintf(variant, 64, "%s", candidate->name);
    }
    printf("autotune: %s: %.3f ms in a micro-step of %d rows\n", variant, best, b->rows);
    return append(path, key, variant);
}

/* Is there a choice to make from variant `first` on: the first of its entry, which has several, and --kernel names none? */
static bool is_open(const Kernels *k, int first, const char *chosen)
{
    const char *name = k->variants[first].name;
    size_t length = entry_length(name) + 1; /* with the = */
    int count = 0;
    for (int v = 0; v < k->variant_count; v++)
        if (strncmp(k->variants[v].name, name, length) == 0) {
            if (v < first) return false;
            count++;
        }
    for (const char *at = chosen; *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ','))
        if (strncmp(at, name, length) == 0) return false;
    return count > 1;
}

const char *autotune(Kernels *kernels, const ModelConfig *model, int rows, int seq, const char *chosen,
                     const char *path)
{
    Group *control = comm_control();
    bool decides = group_rank(control) == 0;
    Bench b = {.model = model, .seq = seq, .rows = rows};
    if (rows > ROWS_TIMED) b.rows = seq > ROWS_TIMED ? seq : ROWS_TIMED / seq * seq;
    size_t bytes = kernels->workspace_bytes ? kernels->workspace_bytes(model, b.rows) : 0;
    void *workspace = bytes && decides ? kernels->alloc(bytes) : NULL;
    if (workspace) kernels->use_workspace(workspace, bytes);
    char table[LINE] = ""; /* what there is to choose from, which all ranks must agree on */
    snprintf(table, sizeof table, "%s", kernels->backend);
    for (int v = 0; v < kernels->variant_count; v++)
        snprintf(table + strlen(table), sizeof table - strlen(table), " %s", kernels->variants[v].name);
    if (!comm_same_bits(control, table, sizeof table))
        return complain("--autotune %s: the ranks have different kernels; --device says which to take", path);
    const char *complaint = decides ? check_file(path) : NULL;
    watchdog_pause(); /* the others wait for rank 0 */
    for (int v = 0; v < kernels->variant_count; v++) {
        char variant[64] = "";
        if (!is_open(kernels, v, chosen)) continue;
        if (decides && !complaint) complaint = choose(&b, kernels, v, variant, path);
        comm_broadcast(control, variant, sizeof variant, COMM_BYTE, 0);
        if (*variant && !complaint) complaint = kernels_choose(kernels, variant);
    }
    watchdog_resume();
    if (workspace) {
        kernels->use_workspace(NULL, 0);
        kernels->free(workspace);
    }
    return complaint;
}
