#include "model/params.h"

#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "comm/comm.h"
#include "base/error.h"
#include "kernels/memory.h"
#include "base/rng.h"

/* --- what a rank holds --- */

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
    if (holding.tp == 0) holding.tp = 1;
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
    Params p = params_table_split(c, holding.tp ? holding.tp : 1, holding.tp_rank);
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

/* --- values --- */

enum { PIECE = 1 << 24 }; /* what is drawn between two signs of life */

/* to[count] becomes elements [begin, begin + count) of the block, each drawn by its index in the whole parameter. */
static void draw(const Kernels *kernels, acc *to, const View *v, size_t begin, size_t count, uint64_t seed)
{
    size_t cols = (size_t)v->cols, valid = (size_t)v->valid_rows * cols;
    bool rows_are_whole = v->cols == v->whole_cols;
    double std = v->vector ? 0 : v->init_std;
    for (size_t done = 0; done < count;) {
        size_t at = begin + done, row = at / cols, col = at % cols, run = rows_are_whole ? count - done : cols - col;
        if (at >= valid) { /* padding */
            kernels->fill(to + done, 0, (count - done) * sizeof *to);
            return;
        }
        if (run > count - done) run = count - done;
        if (run > valid - at) run = valid - at;
        if (run > PIECE) run = PIECE;
        size_t index = ((size_t)v->row0 + row) * (size_t)v->whole_cols + (size_t)v->col0 + col;
        kernels->draw(to + done, index, run, seed, rng_stream(v->name), std);
        comm_progress(); /* a sign of life: a large model takes long */
        done += run;
    }
}

void params_init(Params *p, const Kernels *kernels, uint64_t seed)
{
    if (BUG(rank_seeded_init)) seed += (uint64_t)comm_world_rank();
    for (int n = 0; n < p->views; n++)
        for (int i = 0; i < p->pieces; i++) {
            Overlap o = params_overlap(&p->view[n], &p->piece[i]);
            if (o.count == 0) continue;
            draw(kernels, p->piece[i].master + o.in_piece, &p->view[n], o.in_view, o.count, seed);
        }
    for (int i = 0; i < p->pieces; i++) kernels->cast(p->piece[i].weights, p->piece[i].master, p->piece[i].count);
}

size_t params_whole_size(const View *v)
{
    return (size_t)v->whole_rows * (size_t)v->whole_cols;
}

void params_take_block(const View *v, const acc *whole, acc *block)
{
    size_t cols = (size_t)v->cols, valid = (size_t)v->valid_rows;
    for (size_t r = 0; r < valid; r++)
        memcpy(block + r * cols, whole + ((size_t)v->row0 + r) * (size_t)v->whole_cols + (size_t)v->col0,
               cols * sizeof *block);
    memset(block + valid * cols, 0, ((size_t)v->rows - valid) * cols * sizeof *block);
}

void params_put_block(const View *v, const acc *block, acc *whole)
{
    size_t cols = (size_t)v->cols;
    for (size_t r = 0; r < (size_t)v->valid_rows; r++)
        memcpy(whole + ((size_t)v->row0 + r) * (size_t)v->whole_cols + (size_t)v->col0, block + r * cols,
               cols * sizeof *block);
}

static acc *block_on_host(const View *v)
{
    acc *block = calloc(v->size + 1, sizeof *block);
    if (!block) fatal("out of memory for %s", v->name);
    return block;
}

void params_upload(Params *p, const Kernels *kernels, const View *view, const acc *host)
{
    acc *block = block_on_host(view);
    params_take_block(view, host, block);
    for (int i = 0; i < p->pieces; i++) {
        Piece *piece = &p->piece[i];
        Overlap o = params_overlap(view, piece);
        if (o.count == 0) continue;
        kernels->upload(piece->master + o.in_piece, block + o.in_view, o.count * sizeof *block);
        kernels->cast(piece->weights + o.in_piece, piece->master + o.in_piece, o.count);
    }
    free(block);
}

void params_collect(const Params *p, const Kernels *kernels, const View *view, bool grads, acc *host)
{
    acc *block = block_on_host(view);
    for (int i = 0; i < p->pieces; i++) {
        const Piece *piece = &p->piece[i];
        Overlap o = params_overlap(view, piece);
        const acc *from = (grads ? piece->grads : piece->master) + o.in_piece;
        if (o.count > 0) kernels->download(block + o.in_view, from, o.count * sizeof *block);
    }
    memset(host, 0, params_whole_size(view) * sizeof *host);
    bool alone = p->holding.cut == CUT_NOTHING && p->holding.tp == 1; /* then each rank has everything */
    if (alone || (!p->holding.copy && !view->copy)) params_put_block(view, block, host);
    free(block);
    /* each element has one speaker, the others say zero */
    if (!alone) comm_all_reduce(comm_control(), host, params_whole_size(view), COMM_ACC, COMM_SUM);
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
        Group *alike = v->vector ? replicas.tp : v->partial == PARTIAL_BY_KV_HEADS ? replicas.kv : NULL;
        for (int i = 0; i < p->pieces && alike; i++) {
            Overlap o = params_overlap(v, &p->piece[i]);
            const acc *master = p->piece[i].master + o.in_piece;
            if (o.count > 0) same = same_bits(kernels, alike, master, o.count * sizeof *master) && same;
        }
        if (!same && !name) name = v->name;
    }
    return name;
}

const char *params_check_start(const Params *p, const Kernels *kernels, Replicas replicas)
{
    const char *unequal = params_unequal(p, kernels, replicas);
    return unequal ? complain("the ranks start from different weights: %s", unequal) : NULL;
}
