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

Params params_create(const ModelConfig *c)
{
    Params p = params_table(c);
    p.weights = memory_alloc(p.count * sizeof *p.weights, MEMORY_PARAMETERS);
    p.master = MASTER_BYTES ? memory_alloc(p.count * sizeof *p.master, MEMORY_PARAMETERS) : (acc *)p.weights;
    p.grads = memory_alloc(p.count * sizeof *p.grads, MEMORY_GRADIENTS);
    for (int u = 0; u < p.units; u++) {
        p.unit[u].weights = p.weights + p.unit[u].offset;
        p.unit[u].grads = p.grads + p.unit[u].offset;
    }
    return p;
}

void params_free(Params *p)
{
    if (MASTER_BYTES) memory_free(p->master);
    memory_free(p->weights);
    memory_free(p->grads);
    free(p->view);
    free(p->unit);
    *p = (Params){0};
}

const View *params_find(const Params *p, const char *name)
{
    for (int v = 0; v < p->views; v++)
        if (strcmp(p->view[v].name, name) == 0) return &p->view[v];
    return NULL;
}

void params_init(Params *p, const Kernels *kernels, uint64_t seed)
{
    if (BUG(rank_seeded_init)) seed += (uint64_t)comm_world_rank();
    for (int n = 0; n < p->views; n++) {
        const View *v = &p->view[n];
        kernels->draw(p->master + v->offset, v->size, seed, rng_stream(v->name), v->vector ? 0 : v->init_std);
        comm_progress(); /* a sign of life: a large model takes long */
    }
    kernels->cast(p->weights, p->master, p->count);
}

const char *params_unequal(const Params *p, const Kernels *kernels, Group *group)
{
    const char *name = NULL;
    for (int n = 0; n < p->views; n++) {
        const View *v = &p->view[n];
        acc *host = malloc(v->size * sizeof *host);
        if (!host) fatal("out of memory to compare %s", v->name);
        kernels->download(host, p->master + v->offset, v->size * sizeof *host);
        if (!comm_same_bits(group, host, v->size * sizeof *host) && !name) name = v->name;
        free(host);
    }
    return name;
}
