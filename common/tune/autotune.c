#include "tune/autotune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tune/autotune_bench.h"
#include "tune/autotune_cache.h"
#include "comm/comm.h"
#include "base/error.h"

/* LINE: bytes of a line of the file. ROWS_TIMED: rows that variants are timed on. PLANS_TIMED: the most plans of a
 * product. */
enum { LINE = 1024, ROWS_TIMED = 1024, PLANS_TIMED = 32 };

/* --- variants --- */

/* The text that the file stores a choice under: the entry, the device and all shapes. */
static void variant_key(char *key, const Bench *b, const char *entry)
{
    const ModelConfig *c = b->model;
    snprintf(key, LINE, "%s %s %s, %s: %d rows of %d, width %d, %d/%d heads of %d, ff %d, vocabulary %d, layers %d",
             entry, PRECISION_NAME, b->k.backend, b->k.describe(), b->rows, b->seq, c->width, c->heads, c->kv_heads,
             c->head_dim, c->ff, c->vocab, c->layers);
}

/* The length of "linear" in "linear=naive". */
static size_t entry_length(const char *variant)
{
    return strcspn(variant, "=");
}

/* Does the variant have kernels for this head size? If not, the backend's `fit` replaces it. */
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

typedef struct {
    const Kernels *kernels;
    const char *entry;
    int head_dim;
} Wanted;

/* May the tuner choose the variant of this name for the entry in `context`? */
static bool can_be_taken(const char *name, const void *context)
{
    const Wanted *w = context;
    for (int v = 0; v < w->kernels->variant_count; v++) {
        const Variant *known = &w->kernels->variants[v];
        if (strcmp(known->name, name) == 0 && is_of(known, w->entry) && fits(w->kernels, known, w->head_dim))
            return true;
    }
    return false;
}

/* On rank 0: finds the fastest variant of an entry, in the file or by measuring, and writes its name to `variant`.
 * `first`: the number of the entry's first variant. Returns NULL, or a complaint about the file. */
static const char *choose_variant(Bench *b, const Kernels *kernels, int first, char *variant, const char *path)
{
    char entry[32], key[LINE];
    size_t length = entry_length(kernels->variants[first].name);
    snprintf(entry, sizeof entry, "%.*s", (int)length, kernels->variants[first].name);
    b->k = *kernels;
    variant_key(key, b, entry);
    *variant = '\0';
    Wanted wanted = {kernels, entry, b->model->head_dim};
    if (cache_find(variant, 64, path, key, can_be_taken, &wanted)) {
        printf("autotune: %s, from %s\n", variant, path);
        return NULL;
    }
    double best = 1e12;
    for (int v = kernels->variant_count - 1; v >= first; v--) { /* the default first: it is seldom the slowest */
        const Variant *candidate = &kernels->variants[v];
        if (!is_of(candidate, entry) || !fits(kernels, candidate, b->model->head_dim)) continue;
        b->k = *kernels;
        candidate->use(&b->k);
        double ms = bench_entry(b, entry, candidate->name, best);
        if (ms >= best) continue;
        best = ms;
        snprintf(variant, 64, "%s", candidate->name);
    }
    printf("autotune: %s: %.3f ms for %d rows\n", variant, best, b->rows);
    cache_add(key, variant);
    return NULL;
}

/* Must the tuner choose a variant for the entry of variant `first`? True if `first` is the entry's first variant, the
 * entry has several variants, and --kernel names none of them. */
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

/* --- plans --- */

/* Is the text the number of a plan? `context`: how many plans there are. */
static bool is_plan(const char *value, const void *context)
{
    char *end;
    long plan = strtol(value, &end, 10);
    return end != value && *end == '\0' && plan >= 0 && plan < *(const int *)context;
}

/* Has an earlier matrix the same shape? */
static bool is_repeated(const Matrix *matrix, int m)
{
    for (int i = 0; i < m; i++)
        if (matrix[i].in == matrix[m].in && matrix[i].out == matrix[m].out) return true;
    return false;
}

/* On rank 0: finds the fastest plan for a product on n rows, in the file or by measuring, and sets *taken. A micro-step
 * computes this product m.times times. If it measures, it adds the milliseconds in a micro-step to ms[0] (with plan 0)
 * and to ms[1] (with the chosen plan). Returns NULL, or a complaint about the file. */
static const char *choose_plan(int *taken, double ms[2], Bench *b, Product product, int n, Matrix m, const char *path)
{
    static const char *const names[PRODUCTS] = {"forward", "backward input", "backward weight"};
    char key[LINE], value[16];
    double time[PLANS_TIMED];
    int plans = b->k.linear_plans(product, n, m.in, m.out);
    CHECK(plans <= PLANS_TIMED);
    snprintf(key, sizeof key, "plan of %s %s %s, %s: %d rows, %d to %d", names[product], PRECISION_NAME, b->k.backend,
             b->k.describe(), n, m.in, m.out);
    if (cache_find(value, sizeof value, path, key, is_plan, &plans)) {
        *taken = (int)strtol(value, NULL, 10);
        return NULL;
    }
    bench_plans(b, product, n, m, plans, time);
    *taken = 0;
    for (int p = 1; p < plans; p++)
        if (time[p] < time[*taken] && time[p] < 0.98 * time[0]) *taken = p;
    printf("autotune: %-18s %6d rows, %6d to %-12d x %-4d %10.3f ms, plan %d of %d: %.3f ms\n", names[product], n, m.in,
           m.out, m.times, time[0], *taken, plans, time[*taken]);
    ms[0] += time[0] * m.times;
    ms[1] += time[*taken] * m.times;
    snprintf(value, sizeof value, "%d", *taken);
    cache_add(key, value);
    return NULL;
}

/* [all ranks] Chooses the plans of all products and makes `kernels` use them. `decides`: on rank 0, unless it has a
 * complaint already. */
static const char *choose_plans(Bench *b, const Kernels *kernels, int rows, int chunks, bool decides, const char *path)
{
    Matrix matrix[MATRICES];
    bench_matrices(matrix, b->model);
    int64_t taken[MATRICES][PRODUCTS] = {{0}};
    int n[PRODUCTS] = {rows / chunks, rows / chunks, rows};
    double ms[2] = {0};
    const char *complaint = NULL;
    b->k = *kernels;
    for (int m = 0; decides && m < MATRICES; m++)
        for (int p = 0; p < PRODUCTS && !complaint && !is_repeated(matrix, m); p++) {
            int plan = 0;
            Matrix each = matrix[m];
            each.times *= rows / n[p];
            complaint = choose_plan(&plan, ms, b, (Product)p, n[p], each, path);
            taken[m][p] = plan;
        }
    comm_broadcast(comm_control(), taken, MATRICES * PRODUCTS, COMM_INT64, 0);
    for (int m = 0; m < MATRICES; m++)
        for (int p = 0; p < PRODUCTS && !is_repeated(matrix, m); p++)
            kernels->linear_choose_plan((Product)p, n[p], matrix[m].in, matrix[m].out, (int)taken[m][p]);
    if (ms[0] > 0)
        printf("autotune: products timed: %.3f ms in a micro-step, by the first plans %.3f ms\n", ms[1], ms[0]);
    else if (decides && !complaint)
        printf("autotune: plans of products, from %s\n", path);
    return complaint;
}

const char *autotune(Kernels *kernels, const ModelConfig *model, int rows, int seq, int chunks, const char *chosen,
                     const char *path)
{
    Group *control = comm_control();
    bool decides = group_rank(control) == 0;
    Bench b = {.model = model, .seq = seq, .rows = rows};
    if (rows > ROWS_TIMED) b.rows = seq > ROWS_TIMED ? seq : ROWS_TIMED / seq * seq;
    char table[LINE] = ""; /* the backend and its variants: must be the same on all ranks */
    snprintf(table, sizeof table, "%s", kernels->backend);
    for (int v = 0; v < kernels->variant_count; v++)
        snprintf(table + strlen(table), sizeof table - strlen(table), " %s", kernels->variants[v].name);
    if (!comm_same_bits(control, table, sizeof table))
        return complain("--autotune %s: the ranks have different kernels; --device says which to take", path);
    size_t bytes = kernels->workspace_bytes ? kernels->workspace_bytes(model->width, model->head_dim, rows) : 0;
    void *workspace = bytes && decides ? kernels->alloc(bytes) : NULL;
    if (workspace) kernels->use_workspace(workspace, bytes);
    const char *complaint = decides ? cache_check(path) : NULL;
    for (int v = 0; v < kernels->variant_count; v++) {
        char variant[64] = "";
        if (!is_open(kernels, v, chosen)) continue;
        if (decides && !complaint) complaint = choose_variant(&b, kernels, v, variant, path);
        comm_broadcast(control, variant, sizeof variant, COMM_BYTE, 0);
        if (*variant && !complaint) complaint = kernels_choose(kernels, variant);
    }
    if (kernels->linear_plans) {
        const char *other = choose_plans(&b, kernels, rows, chunks, decides && !complaint, path);
        if (!complaint) complaint = other;
    }
    if (workspace) {
        kernels->use_workspace(NULL, 0);
        kernels->free(workspace);
    }
    return complaint;
}

void autotune_save(const char *path)
{
    cache_save(path);
}
