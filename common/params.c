#include "params.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bug.h"
#include "comm.h"
#include "error.h"
#include "memory.h"
#include "rng.h"

/* Appends a view of [rows, cols] at the end of the buffer; rows 0 makes a vector of cols. */
static void add(Params *p, int unit, int rows, int cols, double std, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
static void add(Params *p, int unit, int rows, int cols, double std, const char *format, ...)
{
    View *v = &p->view[p->views++];
    *v = (View){.unit = unit, .rows = rows ? rows : 1, .cols = cols, .vector = rows == 0, .init_std = std};
    v->size = (size_t)v->rows * (size_t)v->cols;
    v->offset = p->count;
    p->count += v->size;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(v->name, sizeof v->name, format, arguments);
    va_end(arguments);
}

Params params_table(const ModelConfig *c)
{
    enum { VIEWS_OF_LAYER = 11, VIEWS_OF_ROOT = 3 };
    Params p = {.units = 1 + c->layers};
    p.view = calloc((size_t)(VIEWS_OF_ROOT + c->layers * VIEWS_OF_LAYER), sizeof *p.view);
    p.unit = calloc((size_t)p.units, sizeof *p.unit);
    if (!p.view || !p.unit) fatal("out of memory for the table of parameters");

    double std = c->init_std, std_residual = c->init_std / sqrt(2.0 * c->layers);
    int C = c->width, D = c->head_dim, q_rows = c->heads * D, kv_rows = c->kv_heads * D;

    add(&p, 0, c->vocab, C, std, "model.embed_tokens.weight");
    add(&p, 0, 0, C, 0, "model.norm.weight");
    if (!c->tied) add(&p, 0, c->vocab, C, std, "lm_head.weight");
    for (int l = 0; l < c->layers; l++) {
        int u = 1 + l;
        add(&p, u, 0, C, 0, "model.layers.%d.input_layernorm.weight", l);
        add(&p, u, 0, C, 0, "model.layers.%d.post_attention_layernorm.weight", l);
        if (c->qk_norm) {
            add(&p, u, 0, D, 0, "model.layers.%d.self_attn.q_norm.weight", l);
            add(&p, u, 0, D, 0, "model.layers.%d.self_attn.k_norm.weight", l);
        }
        /* q, k, v side by side are one matrix, and so are gate and up: one GEMM each */
        add(&p, u, q_rows, C, std, "model.layers.%d.self_attn.q_proj.weight", l);
        add(&p, u, kv_rows, C, std, "model.layers.%d.self_attn.k_proj.weight", l);
        add(&p, u, kv_rows, C, std, "model.layers.%d.self_attn.v_proj.weight", l);
        add(&p, u, C, q_rows, std_residual, "model.layers.%d.self_attn.o_proj.weight", l);
        add(&p, u, c->ff, C, std, "model.layers.%d.mlp.gate_proj.weight", l);
        add(&p, u, c->ff, C, std, "model.layers.%d.mlp.up_proj.weight", l);
        add(&p, u, C, c->ff, std_residual, "model.layers.%d.mlp.down_proj.weight", l);
    }
    for (int n = p.views - 1; n >= 0; n--) {
        Unit *unit = &p.unit[p.view[n].unit];
        unit->offset = p.view[n].offset;
        unit->count += p.view[n].size;
    }
    return p;
}

size_t params_part(size_t count, int ranks)
{
    size_t step = (size_t)ranks * PART_ALIGN;
    return (count + step - 1) / step * PART_ALIGN;
}

/* Adds the piece that `rank` has of elements [offset, offset + count). */
static void add_piece(Params *p, size_t offset, size_t count)
{
    const Holding *h = &p->holding;
    Piece *piece = &p->piece[p->pieces++];
    piece->part = h->cut == CUT_NOTHING ? count : params_part(count, h->ranks);
    size_t begin = (size_t)h->rank * piece->part, end = begin + piece->part;
    if (begin > count) begin = count;
    if (end > count) end = count;
    piece->begin = offset + begin;
    piece->count = end - begin;
    piece->at = p->held;
    p->held += piece->part;
}

void params_cut(Params *p, Holding holding)
{
    if (holding.ranks == 0) holding.ranks = 1;
    CHECK(holding.cut != CUT_NOTHING || holding.ranks == 1);
    CHECK(!holding.whole_weights || holding.cut == CUT_MODEL || holding.cut == CUT_UNITS);
    CHECK(!holding.whole_grads || holding.cut == CUT_MODEL);
    p->holding = holding;
    p->piece = calloc((size_t)p->views + 1, sizeof *p->piece);
    if (!p->piece) fatal("out of memory for the table of pieces");
    switch (holding.cut) {
    case CUT_NOTHING:
    case CUT_MODEL: add_piece(p, 0, p->count); break;
    case CUT_UNITS:
        for (int u = 0; u < p->units; u++) add_piece(p, p->unit[u].offset, p->unit[u].count);
        break;
    case CUT_VIEWS:
        for (int v = 0; v < p->views; v++) add_piece(p, p->view[v].offset, p->view[v].size);
        break;
    }
}

/* Whole weights are the parts of all ranks, piece by piece; a unit begins where the first part of its piece does. */
static void place_weights(Params *p)
{
    const Holding *h = &p->holding;
    for (int n = 0; n < p->pieces; n++) {
        Piece *piece = &p->piece[n];
        size_t whole = piece->at * (size_t)h->ranks; /* before this piece */
        piece->weights = p->weights + (h->whole_weights ? whole + (size_t)h->rank * piece->part : piece->at);
        if (h->whole_weights && h->cut == CUT_UNITS) p->unit[n].weights = p->weights + whole;
    }
    if (h->cut == CUT_NOTHING || (h->whole_weights && h->cut == CUT_MODEL))
        for (int u = 0; u < p->units; u++) p->unit[u].weights = p->weights + p->unit[u].offset;
}

Params params_create(const ModelConfig *c, Holding holding, const Kernels *kernels)
{
    Params p = params_table(c);
    params_cut(&p, holding);
    const Holding *h = &p.holding;
    size_t everyone = p.held * (size_t)h->ranks;
    p.weights = memory_alloc((h->whole_weights ? everyone : p.held) * sizeof *p.weights, MEMORY_PARAMETERS);
    if (MASTER_BYTES) p.master = memory_alloc(p.held * sizeof *p.master, MEMORY_PARAMETERS);
    p.grad_count = h->whole_grads ? everyone : p.held;
    p.grads = memory_alloc(p.grad_count * sizeof *p.grads, MEMORY_GRADIENTS);
    if (h->whole_grads) p.part_grads = memory_alloc(p.held * sizeof *p.part_grads, MEMORY_GRADIENTS);
    place_weights(&p);
    for (int n = 0; n < p.pieces; n++) {
        Piece *piece = &p.piece[n];
        piece->master = MASTER_BYTES ? p.master + piece->at : (acc *)piece->weights;
        piece->grads = (h->whole_grads ? p.part_grads : p.grads) + piece->at;
        size_t padding = piece->part - piece->count;
        kernels->fill(piece->master + piece->count, 0, padding * sizeof *piece->master);
        kernels->fill(piece->weights + piece->count, 0, padding * sizeof *piece->weights);
        kernels->fill(piece->grads + piece->count, 0, padding * sizeof *piece->grads);
    }
    if (h->cut == CUT_NOTHING || h->whole_grads)
        for (int u = 0; u < p.units; u++) p.unit[u].grads = p.grads + p.unit[u].offset;
    return p;
}

void params_free(Params *p)
{
    memory_free(p->master);
    memory_free(p->weights);
    memory_free(p->grads);
    memory_free(p->part_grads);
    free(p->view);
    free(p->unit);
    free(p->piece);
    *p = (Params){0};
}

const View *params_find(const Params *p, const char *name)
{
    for (int v = 0; v < p->views; v++)
        if (strcmp(p->view[v].name, name) == 0) return &p->view[v];
    return NULL;
}

Overlap params_overlap(const View *view, const Piece *piece)
{
    size_t begin = view->offset > piece->begin ? view->offset : piece->begin;
    size_t view_end = view->offset + view->size, piece_end = piece->begin + piece->count;
    size_t end = view_end < piece_end ? view_end : piece_end;
    if (begin >= end) return (Overlap){0};
    return (Overlap){.count = end - begin, .in_view = begin - view->offset, .in_piece = begin - piece->begin};
}

void params_init(Params *p, const Kernels *kernels, uint64_t seed)
{
    if (BUG(rank_seeded_init)) seed += (uint64_t)comm_world_rank();
    for (int n = 0; n < p->views; n++)
        for (int i = 0; i < p->pieces; i++) {
            const View *v = &p->view[n];
            Overlap o = params_overlap(v, &p->piece[i]);
            if (o.count == 0) continue;
            kernels->draw(p->piece[i].master + o.in_piece, o.in_view, o.count, seed, rng_stream(v->name),
                          v->vector ? 0 : v->init_std);
            comm_progress(); /* a sign of life: a large model takes long */
        }
    for (int i = 0; i < p->pieces; i++) kernels->cast(p->piece[i].weights, p->piece[i].master, p->piece[i].count);
}

void params_upload(Params *p, const Kernels *kernels, const View *view, const acc *host)
{
    for (int i = 0; i < p->pieces; i++) {
        Piece *piece = &p->piece[i];
        Overlap o = params_overlap(view, piece);
        if (o.count == 0) continue;
        kernels->upload(piece->master + o.in_piece, host + o.in_view, o.count * sizeof *host);
        kernels->cast(piece->weights + o.in_piece, piece->master + o.in_piece, o.count);
    }
}

void params_collect(const Params *p, const Kernels *kernels, const View *view, bool grads, acc *host)
{
    memset(host, 0, view->size * sizeof *host);
    for (int i = 0; i < p->pieces; i++) {
        const Piece *piece = &p->piece[i];
        Overlap o = params_overlap(view, piece);
        const acc *from = (grads ? piece->grads : piece->master) + o.in_piece;
        if (o.count > 0 && !p->holding.copy) kernels->download(host + o.in_view, from, o.count * sizeof *host);
    }
    if (p->holding.cut == CUT_NOTHING) {
        CHECK(!p->holding.copy);
        return;
    }
    /* each element has one speaker, the others say zero */
    comm_all_reduce(comm_control(), host, view->size, COMM_ACC, COMM_SUM);
}

/* [all ranks of group] Compares n elements of `size` bytes in the backend's memory. */
static bool same_bits(const Kernels *kernels, Group *group, const void *data, size_t bytes)
{
    char *host = malloc(bytes + 1);
    if (!host) fatal("out of memory to compare %zu bytes", bytes);
    kernels->download(host, data, bytes);
    bool same = comm_same_bits(group, host, bytes);
    free(host);
    return same;
}

const char *params_unequal(const Params *p, const Kernels *kernels, Replicas replicas)
{
    const char *name = NULL;
    for (int n = 0; n < p->views; n++) {
        const View *v = &p->view[n];
        bool same = true;
        for (int i = 0; i < p->pieces && replicas.pieces; i++) {
            Overlap o = params_overlap(v, &p->piece[i]);
            if (o.count > 0)
                same =
                    same_bits(kernels, replicas.pieces, p->piece[i].master + o.in_piece, o.count * sizeof(acc)) && same;
        }
        if (replicas.whole) {
            const Unit *unit = &p->unit[v->unit];
            const real *weights = unit->weights + (v->offset - unit->offset);
            same = same_bits(kernels, replicas.whole, weights, v->size * sizeof *weights) && same;
        }
        if (!same && !name) name = v->name;
    }
    return name;
}
