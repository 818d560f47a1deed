#include "autotune.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autotune_bench.h"
#include "comm.h"
#include "error.h"
#include "recorder.h"

enum { LINE = 1024, ROWS_TIMED = 1024 };
static const char HEADER[] = "# kernels chosen by --autotune\n";

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

/* On rank 0: sets `variant` to what to take for the entry that variant `first` is one of. Returns NULL, or a complaint about the
 * file. */
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
        double ms = bench_entry(b, entry, candidate->name, best);
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
    char table[LINE] = ""; /* what there is to choose from, which all ranks must agree on */
    snprintf(table, sizeof table, "%s", kernels->backend);
    for (int v = 0; v < kernels->variant_count; v++)
        snprintf(table + strlen(table), sizeof table - strlen(table), " %s", kernels->variants[v].name);
    if (!comm_same_bits(control, table, sizeof table))
        return complain("--autotune %s: the ranks have different kernels; --device says which to take", path);
    size_t bytes = kernels->workspace_bytes ? kernels->workspace_bytes(model, b.rows) : 0;
    void *workspace = bytes && decides ? kernels->alloc(bytes) : NULL;
    if (workspace) kernels->use_workspace(workspace, bytes);
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
