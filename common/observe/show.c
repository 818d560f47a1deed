#include "observe/show.h"

#include <stdio.h>
#include <string.h>

#include "model/params.h"

enum { RANKS_DRAWN = 64 };

static void show_mesh(Shape shape)
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
}

/* "0: rows 0 to 63 | 1: rows 64 to 127", in elements where a part does not end with a row. */
static void print_owners(const ModelConfig *model, const View *v, Holding holding, int ranks)
{
    const char *separator = "";
    for (int r = 0; r < ranks && r < RANKS_DRAWN; r++) {
        Params p = params_table(model);
        holding.ranks = ranks;
        holding.rank = r;
        params_cut(&p, holding);
        for (int i = 0; i < p.pieces; i++) {
            Overlap o = params_overlap(v, &p.piece[i]);
            if (o.count == 0) continue;
            size_t cols = v->vector ? 1 : (size_t)v->cols, end = o.in_view + o.count;
            bool rows = o.in_view % cols == 0 && end % cols == 0;
            printf("%s%d: %s %zu to %zu", separator, r, rows ? "rows" : "elements", o.in_view / (rows ? cols : 1),
                   end / (rows ? cols : 1) - 1);
            separator = " | ";
        }
        params_free(&p);
    }
    printf("%s\n", ranks > RANKS_DRAWN ? " | and perhaps ranks from 64 on" : "");
}

/* The blocks of view n along tp. */
static void print_slices(const ModelConfig *model, int n, int tp)
{
    for (int r = 0; r < tp && r < RANKS_DRAWN; r++) {
        Params slice = params_table_split(model, tp, r);
        const View *v = &slice.view[n];
        bool rows = v->cols == v->whole_cols, whole = v->size == params_whole_size(v);
        if (whole)
            printf("whole on all\n");
        else if (v->valid_rows == 0)
            printf("%s%d: padding", r ? " | " : "", r);
        else
            printf("%s%d: %s %d to %d", r ? " | " : "", r, rows ? "rows" : "columns", rows ? v->row0 : v->col0,
                   rows ? v->row0 + v->valid_rows - 1 : v->col0 + v->cols - 1);
        params_free(&slice);
        if (whole) return;
    }
    printf("%s\n", tp > RANKS_DRAWN ? " ..." : "");
}

static void show_shards(const ModelConfig *model, Shape shape, Holding holding)
{
    Params p = params_table(model);
    int ranks = shape_ranks(shape), parts = shape.size[AXIS_FSDP];
    int tp = shape.size[AXIS_TP];
    bool cut = holding.cut != CUT_NOTHING && parts > 1;
    printf("%-50s %14s %12s  %s\n", "parameter", "shape", "elements", "who holds it");
    for (int n = 0; n < p.views; n++) {
        const View *v = &p.view[n];
        char text[32];
        snprintf(text, sizeof text, v->vector ? "[%d]" : "[%d, %d]", v->vector ? v->cols : v->rows, v->cols);
        printf("%-50s %14s %12zu  ", v->name, text, v->size);
        if (tp > 1)
            print_slices(model, n, tp);
        else if (cut)
            print_owners(model, v, holding, parts);
        else
            printf("%s\n", ranks > 1 ? "whole on every rank; its gradient partial over dp" : "whole");
    }
    if (tp > 1) {
        Params slice = params_table_split(model, tp, 0);
        printf("%zu parameters; each of %d ranks along tp holds %zu, padding and copies included\n", p.count, tp,
               slice.count);
        params_free(&slice);
    } else if (cut) {
        holding.ranks = parts;
        params_cut(&p, holding);
        printf(
            "%zu parameters; each of %d ranks along fsdp keeps optimizer state for %zu elements, padding included%s\n",
            p.count, parts, p.held, holding.whole_weights ? ", and all weights" : "");
    } else {
        printf("%zu parameters; every rank holds all of them\n", p.count);
    }
    params_free(&p);
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

bool show(const Config *config, Shape shape, Holding holding, const Expected *expected)
{
    if (strcmp(config->show, "mesh") == 0)
        show_mesh(shape);
    else if (strcmp(config->show, "shards") == 0)
        show_shards(&config->architecture, shape, holding);
    else if (strcmp(config->show, "memory") == 0)
        show_memory(expected, shape);
    else
        return false;
    return true;
}
