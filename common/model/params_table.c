/* The table of a model's parameters: their names and shapes, and the block of each that this rank has. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "model/params.h"

/* Appends this rank's block of a parameter to the flat model. Rows of the block past the parameter's last row are
 * padding. */
static void add(Params *p, int unit, View block, const char *format, ...) __attribute__((format(printf, 4, 5)));
static void add(Params *p, int unit, View block, const char *format, ...)
{
    if (p->views == p->view_room) {
        p->view_room = 2 * p->view_room + 16;
        p->view = realloc(p->view, (size_t)p->view_room * sizeof *p->view);
        if (!p->view) fatal("out of memory for the table of parameters");
    }
    View *v = &p->view[p->views++];
    *v = block;
    v->unit = unit;
    v->size = (size_t)v->rows * (size_t)v->cols;
    v->offset = p->count;
    v->valid_rows = v->whole_rows - v->row0 < v->rows ? v->whole_rows - v->row0 : v->rows;
    if (v->valid_rows < 0) v->valid_rows = 0;
    p->count += v->size;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(v->name, sizeof v->name, format, arguments);
    va_end(arguments);
}

/* A matrix that is not split: every rank along tp holds a replica of it, and uses it on its own rows. */
static View replica(int rows, int cols, double std, int tp_rank)
{
    return (View){.rows = rows,
                  .cols = cols,
                  .init_std = std,
                  .whole_rows = rows,
                  .whole_cols = cols,
                  .partial = PARTIAL_BY_ROWS,
                  .replica = tp_rank};
}

/* The weight of a norm: every rank along tp holds a replica of it. */
static View vector(int width, Partial partial, int tp_rank)
{
    return (View){.rows = 1,
                  .cols = width,
                  .vector = true,
                  .whole_rows = 1,
                  .whole_cols = width,
                  .partial = partial,
                  .replica = tp_rank};
}

/* Block `part` of `parts` of a matrix [rows, cols], split by rows. This is a column-parallel matrix: y = x w^T, so a
 * rank has some of the outputs. */
static View cut_rows(int rows, int cols, double std, int parts, int part)
{
    int each = (rows + parts - 1) / parts;
    return (View){
        .rows = each, .cols = cols, .init_std = std, .whole_rows = rows, .whole_cols = cols, .row0 = part * each};
}

/* The same, split by columns. This is a row-parallel matrix: a rank has some of the inputs. */
static View cut_cols(int rows, int cols, double std, int parts, int part)
{
    int each = cols / parts;
    return (View){
        .rows = rows, .cols = each, .init_std = std, .whole_rows = rows, .whole_cols = cols, .col0 = part * each};
}

static Params new_table(const ModelConfig *c)
{
    Params p = {.units = 1 + c->layers};
    p.unit = calloc((size_t)p.units, sizeof *p.unit);
    if (!p.unit) fatal("out of memory for the table of parameters");
    return p;
}

/* Finds each unit's run of the flat model and of the table of views. A unit may be empty. */
static void set_units(Params *p)
{
    for (int n = p->views - 1; n >= 0; n--) {
        Unit *unit = &p->unit[p->view[n].unit];
        unit->offset = p->view[n].offset;
        unit->count += p->view[n].size;
        unit->first_view = n;
        unit->views++;
    }
}

Params params_table(const ModelConfig *config)
{
    return params_table_split(config, 1, 0);
}

Params params_table_split(const ModelConfig *c, int tp, int r)
{
    Params p = new_table(c);
    double std = c->init_std, std_residual = c->init_std / sqrt(2.0 * c->layers);
    int C = c->width, D = c->head_dim, q_rows = c->heads * D, kv_rows = c->kv_heads * D;
    int kv_parts = c->kv_heads < tp ? c->kv_heads : tp, sharers = tp / kv_parts; /* ranks that share a kv head */

    add(&p, 0, cut_rows(c->vocab, C, std, tp, r), "model.embed_tokens.weight");
    add(&p, 0, vector(C, PARTIAL_BY_ROWS, r), "model.norm.weight");
    if (!c->tied) add(&p, 0, cut_rows(c->vocab, C, std, tp, r), "lm_head.weight");
    for (int l = 0; l < c->layers; l++) {
        int u = 1 + l;
        View kv = cut_rows(kv_rows, C, std, kv_parts, r / sharers);
        kv.partial = sharers > 1 ? PARTIAL_BY_KV_HEADS : PARTIAL_NEVER;
        kv.replica = r % sharers;
        add(&p, u, vector(C, PARTIAL_BY_ROWS, r), "model.layers.%d.input_layernorm.weight", l);
        add(&p, u, vector(C, PARTIAL_BY_ROWS, r), "model.layers.%d.post_attention_layernorm.weight", l);
        if (c->moe.experts) { /* the router, and the expert that every row goes through */
            const char *shared = "mlp.shared_expert";
            add(&p, u, replica(c->moe.experts, C, std, r), "model.layers.%d.mlp.gate.weight", l);
            if (c->ff) {
                add(&p, u, replica(c->ff, C, std, r), "model.layers.%d.%s.gate_proj.weight", l, shared);
                add(&p, u, replica(c->ff, C, std, r), "model.layers.%d.%s.up_proj.weight", l, shared);
                add(&p, u, replica(C, c->ff, std_residual, r), "model.layers.%d.%s.down_proj.weight", l, shared);
            }
        }
        if (c->qk_norm) {
            add(&p, u, vector(D, PARTIAL_BY_HEADS, r), "model.layers.%d.self_attn.q_norm.weight", l);
            add(&p, u, vector(D, PARTIAL_BY_HEADS, r), "model.layers.%d.self_attn.k_norm.weight", l);
        }
        /* q, k and v are adjacent, so one GEMM multiplies by all three; likewise gate and up */
        add(&p, u, cut_rows(q_rows, C, std, tp, r), "model.layers.%d.self_attn.q_proj.weight", l);
        add(&p, u, kv, "model.layers.%d.self_attn.k_proj.weight", l);
        add(&p, u, kv, "model.layers.%d.self_attn.v_proj.weight", l);
        add(&p, u, cut_cols(C, q_rows, std_residual, tp, r), "model.layers.%d.self_attn.o_proj.weight", l);
        if (c->moe.experts) continue;
        add(&p, u, cut_rows(c->ff, C, std, tp, r), "model.layers.%d.mlp.gate_proj.weight", l);
        add(&p, u, cut_rows(c->ff, C, std, tp, r), "model.layers.%d.mlp.up_proj.weight", l);
        add(&p, u, cut_cols(C, c->ff, std_residual, tp, r), "model.layers.%d.mlp.down_proj.weight", l);
    }
    set_units(&p);
    return p;
}

size_t model_parameters(const ModelConfig *c)
{
    Params p = params_table(c), experts = c->moe.experts ? experts_table(c, 1, 0) : (Params){0};
    size_t count = p.count + experts.count;
    params_free(&p);
    params_free(&experts);
    return count;
}

Params experts_table(const ModelConfig *c, int ep, int r)
{
    Params p = new_table(c);
    int C = c->width, F = c->moe.ff, E = c->moe.experts;
    double std = c->init_std, std_residual = c->init_std / sqrt(2.0 * c->layers);
    for (int l = 0; l < c->layers; l++) {
        /* the matrices of the experts, one below the other; gate and up of an expert are adjacent */
        add(&p, 1 + l, cut_rows(E * 2 * F, C, std, ep, r), "model.layers.%d.mlp.experts.gate_up_proj", l);
        add(&p, 1 + l, cut_rows(E * C, F, std_residual, ep, r), "model.layers.%d.mlp.experts.down_proj", l);
    }
    set_units(&p);
    return p;
}
