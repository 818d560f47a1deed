#include "observe/show.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/params.h"

enum { RANKS_DRAWN = 64 };

/* Experts are dealt over ep neighbours; ranks with the same number among them hold the same experts. */
static void show_groups_of_experts(int ranks, int ep)
{
    printf("%d group%s of %d ranks that hold all experts together; the first is 0 to %d\n", ranks / ep,
           ranks / ep > 1 ? "s" : "", ep, ep - 1);
    if (ranks > ep)
        printf("%d groups of %d ranks that hold the same experts; the first is 0, %d%s\n", ep, ranks / ep, ep,
               ranks > 2 * ep ? ", ..." : "");
}

static void show_mesh(Shape shape, int ep)
{
    int ranks = shape_ranks(shape);
    printf("%d rank%s", ranks, ranks > 1 ? "s:" : "");
    for (int a = 0; a < AXES; a++)
        if (shape.size[a] > 1) printf(" %s=%d", axis_name((Axis)a), shape.size[a]);
    printf("%s\n\nrank", ranks > 1 ? " (the first axis varies fastest)" : "");
    for (int a = 0; a < AXES; a++)
        if (shape.size[a] > 1) printf("  %4s", axis_name((Axis)a));
    printf("\n");
    for (int r = 0; r < ranks && r < RANKS_DRAWN; r++) {
        printf("%4d", r);
        for (int a = 0; a < AXES; a++)
            if (shape.size[a] > 1) printf("  %4d", shape_coordinate(shape, r, (Axis)a));
        printf("\n");
    }
    if (ranks > RANKS_DRAWN) printf("... and %d more\n", ranks - RANKS_DRAWN);

    printf("\n");
    int stride = 1; /* between neighbours along the axis */
    for (int a = 0; a < AXES; a++) {
        int size = shape.size[a];
        if (size > 1) {
            printf("%d group%s of %d ranks along %s; the first is", ranks / size, ranks / size > 1 ? "s" : "", size,
                   axis_name((Axis)a));
            for (int i = 0; i < size && i < RANKS_DRAWN; i++) printf(" %d", i * stride);
            printf("%s\n", size > RANKS_DRAWN ? " ..." : "");
        }
        stride *= size;
    }
    if (ep > 1) show_groups_of_experts(ranks, ep);
}

/* --- shards: a table of which ranks hold which rows of each parameter --- */

/* The shards of each rank that is printed: [tp][fsdp]. */
typedef struct {
    int tp, parts; /* ranks that are printed: along tp, and in a shard group */
    Params *held;  /* [tp * parts] */
} Holders;

static Holders holders_of(const ModelConfig *model, Shape shape, Placement placement)
{
    int tp = shape.size[AXIS_TP], parts = placement.by == SHARD_NOTHING ? 1 : shape_size(shape, ALONG_SHARDS);
    Holders h = {.tp = tp < RANKS_DRAWN ? tp : RANKS_DRAWN, .parts = parts < RANKS_DRAWN ? parts : RANKS_DRAWN};
    h.held = calloc((size_t)(h.tp * h.parts), sizeof *h.held);
    if (!h.held) fatal("out of memory for --show");
    for (int i = 0; i < h.tp * h.parts; i++) {
        h.held[i] = params_table_split(model, tp, i / h.parts);
        placement.ranks = parts;
        placement.rank = i % h.parts;
        params_place(&h.held[i], placement);
    }
    return h;
}

static void holders_free(Holders *h)
{
    for (int i = 0; i < h->tp * h->parts; i++) params_free(&h->held[i]);
    free(h->held);
}

/* "0: rows 0 to 63 | 1: rows 64 to 127": the shards of view n. A shard that does not begin and end with whole rows is
 * printed in elements. Rows are counted in the whole parameter, elements in this rank's block. If the printed ranks do
 * not hold all of the view, the others are named at the end. */
static void print_shards(const Params *held, int n, int parts, const char *separator)
{
    const View *v = &held[0].view[n];
    const char *between = "";
    size_t printed = 0;
    for (int r = 0; r < parts; r++)
        for (int i = 0; i < held[r].shards; i++) {
            Overlap o = params_overlap(v, &held[r].shard[i]);
            if (o.count == 0) continue;
            size_t cols = v->vector ? 1 : (size_t)v->cols, begin = o.in_view, end = o.in_view + o.count;
            bool rows = begin % cols == 0 && end % cols == 0 && v->cols == v->whole_cols;
            if (rows) begin = begin / cols + (size_t)v->row0, end = end / cols + (size_t)v->row0;
            printf("%s%d: %s %zu to %zu", between, r, rows ? "rows" : "elements", begin, end - 1);
            between = separator;
            printed += o.count;
        }
    if (printed < v->size) printf("%sranks from %d on", between, RANKS_DRAWN);
}

/* "rows 0 to 63" or "columns 0 to 63": the block that one rank along tp holds. */
static void print_block(const View *v)
{
    bool rows = v->cols == v->whole_cols;
    if (v->valid_rows == 0)
        printf("padding");
    else
        printf("%s %d to %d", rows ? "rows" : "columns", rows ? v->row0 : v->col0,
               rows ? v->row0 + v->valid_rows - 1 : v->col0 + v->cols - 1);
}

static void print_holders(const Holders *h, int n, Shape shape)
{
    bool sharded = h->parts > 1;
    const View *v = &h->held[0].view[n];
    if (v->size == params_whole_size(v)) { /* not split over tp */
        if (sharded)
            print_shards(h->held, n, h->parts, " | ");
        else if (h->tp > 1)
            printf("whole on all");
        else
            printf("%s", shape_ranks(shape) > 1 ? "whole on every rank; its gradient partial over dp" : "whole");
        return;
    }
    for (int t = 0; t < h->tp; t++) {
        const Params *held = &h->held[t * h->parts];
        printf("%s%s%d: ", t ? " | " : "", sharded ? "tp " : "", t);
        print_block(&held->view[n]);
        if (!sharded) continue;
        printf(" (fsdp ");
        print_shards(held, n, h->parts, ", ");
        printf(")");
    }
    if (shape.size[AXIS_TP] > h->tp) printf(" | %sranks from %d on", sharded ? "tp " : "", RANKS_DRAWN);
}

/* The experts of each layer, and who holds which. */
static void show_experts(const ModelConfig *model, int ep)
{
    Params whole = experts_table(model, 1, 0), mine = experts_table(model, ep, 0);
    int E = model->moe.experts, local = E / ep;
    for (int n = 0; n < whole.views; n++) {
        const View *v = &whole.view[n];
        char text[48];
        snprintf(text, sizeof text, "[%d, %d, %d]", E, v->rows / E, v->cols);
        printf("%-50s %14s %12zu  ", v->name, text, v->size);
        for (int r = 0; r < ep && r < RANKS_DRAWN; r++)
            printf("%s%d: experts %d to %d", r ? " | " : "", r, r * local, (r + 1) * local - 1);
        printf("%s\n", ep > RANKS_DRAWN ? " | ..." : "");
    }
    printf("%zu parameters of experts; each rank holds %zu. The numbers of ranks are modulo %d\n", whole.count,
           mine.count, ep);
    params_free(&whole);
    params_free(&mine);
}

static void show_shards(const ModelConfig *model, Shape shape, Placement placement, int ep)
{
    Params whole = params_table(model);
    Holders h = holders_of(model, shape, placement);
    int tp = shape.size[AXIS_TP], parts = shape_size(shape, ALONG_SHARDS);
    printf("%-50s %14s %12s  %s\n", "parameter", "shape", "elements", "who holds it");
    for (int n = 0; n < whole.views; n++) {
        const View *v = &whole.view[n];
        char text[32];
        snprintf(text, sizeof text, v->vector ? "[%d]" : "[%d, %d]", v->vector ? v->cols : v->rows, v->cols);
        printf("%-50s %14s %12zu  ", v->name, text, v->size);
        print_holders(&h, n, shape);
        printf("\n");
    }
    if (tp > 1)
        printf("%zu parameters; each of %d ranks along tp holds %zu, padding and copies included\n", whole.count, tp,
               h.held[0].count);
    if (h.parts > 1)
        printf(
            "%zu parameters; each of %d ranks along fsdp keeps optimizer state for %zu elements, padding included%s\n",
            tp > 1 ? h.held[0].count : whole.count, parts, h.held[0].held,
            placement.whole_weights ? ", and all weights" : "");
    if (tp == 1 && h.parts == 1) printf("%zu parameters; every rank holds all of them\n", whole.count);
    holders_free(&h);
    params_free(&whole);
    if (model->moe.experts) show_experts(model, ep);
}

static void show_memory(const Expected *expected, Shape shape)
{
    size_t total = 0;
    printf("each rank of %d holds\n", shape_ranks(shape));
    for (int c = 0; c < MEMORY_TWIN; c++) {
        printf("  %-12s %16zu bytes  %10.2f MiB\n", memory_category_name((MemoryCategory)c), expected->memory[c],
               (double)expected->memory[c] / 1048576);
        total += expected->memory[c];
    }
    printf("  %-12s %16zu bytes  %10.2f MiB\n", "total", total, (double)total / 1048576);
}

bool show(const Config *config, Shape shape, ModelPart part, const Expected *expected)
{
    if (strcmp(config->show, "mesh") == 0)
        show_mesh(shape, config->architecture.moe.experts ? part.experts.ep : 1);
    else if (strcmp(config->show, "shards") == 0)
        show_shards(&config->architecture, shape, part.placement, part.experts.ep);
    else if (strcmp(config->show, "memory") == 0)
        show_memory(expected, shape);
    else
        return false;
    return true;
}
