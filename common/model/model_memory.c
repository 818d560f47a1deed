/* The model's buffers. Each table below lists pointers and the sizes of their buffers; allocating and freeing walk
 * the same table. model_activation_bytes, the formula that --ledger compares with, does not use these tables: it
 * comes from the configuration alone. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/memory.h"
#include "model/model.h"

typedef struct {
    void *pointer; /* of type real ** or acc ** */
    int rows;      /* rows or width 0: this model needs no such buffer, and the pointer stays NULL */
    int width;     /* elements in a row */
    size_t size;   /* bytes of an element */
} Buffer;

enum { TABLE_MAX = 32 };

#define REAL(name, rows, width)                                                                                        \
    {                                                                                                                  \
        &(name), rows, width, sizeof(real)                                                                             \
    }
#define INT(name, rows, width)                                                                                         \
    {                                                                                                                  \
        &(name), rows, width, sizeof(int)                                                                              \
    }
#define ACC(name, rows, width)                                                                                         \
    {                                                                                                                  \
        &(name), rows, width, sizeof(acc)                                                                              \
    }

/* Rows of experts that this rank has room for, in all chunks. Without experts 0. */
static int expert_room(const Model *m)
{
    bool travel = m->config.moe.experts && m->experts.placement.ep > 1;
    return travel ? m->expert_chunks * m->expert_rows : m->rows_max / m->stream_parts * m->config.moe.top_k;
}

/* Fills table[TABLE_MAX] and returns the number of entries. x1 has a table of its own, because with recompute the
 * layers share all buffers but x1. */
static int layer_table(const Model *m, LayerKept *a, Buffer *table)
{
    const ModelConfig *c = &m->config;
    int N = m->rows_max, S = N / m->stream_parts, raw = c->qk_norm ? N : 0;
    int C = c->width, F = c->ff, H = c->heads, K = c->kv_heads, D = c->head_dim;
    int E = c->moe.experts, k = c->moe.top_k, room = expert_room(m), local = E ? E / m->experts.placement.ep : 0;
    int fed = E ? S : N; /* rows of the feed-forward; with experts, of the shared expert */
    const Buffer buffers[] = {
        ACC(a->rstd1, S, 1),
        REAL(a->n1, S, C),
        REAL(a->qkv, N, (H + 2 * K) * D),
        REAL(a->raw, raw, (H + K) * D),
        ACC(a->raw_rstd, raw, H + K),
        REAL(a->attended, N, H * D),
        ACC(a->lse, N, H),
        REAL(a->x2, S, C),
        ACC(a->rstd2, S, 1),
        REAL(a->n2, S, C),
        REAL(a->gate_up, fed, 2 * F),
        REAL(a->hidden, fed, F),
        REAL(a->moe.logits, S, E),
        INT(a->moe.choice, S, k),
        ACC(a->moe.weight, S, k),
        INT(a->moe.slot, S, k),
        INT(a->moe.first, m->expert_chunks, E + 1),
        INT(a->moe.expert_first, m->expert_chunks, local + 1),
        REAL(a->moe.x, room, C),
        REAL(a->moe.gate_up, room, 2 * c->moe.ff),
        REAL(a->moe.hidden, room, c->moe.ff),
        REAL(a->moe.results, S * k, C),
    };
    memcpy(table, buffers, sizeof buffers);
    return sizeof buffers / sizeof buffers[0];
}

static int x1_table(const Model *m, LayerKept *a, Buffer *table)
{
    table[0] = (Buffer)REAL(a->x1, m->rows_max / m->stream_parts, m->config.width);
    return 1;
}

static int head_table(const Model *m, Activations *a, Buffer *table)
{
    int N = m->rows_max, S = N / m->stream_parts, C = m->config.width;
    const Buffer buffers[] = {
        REAL(a->x_final, S, C),
        ACC(a->rstd_final, S, 1),
        REAL(a->n_final, S, C),
        ACC(a->loss, N, 1),
        REAL(a->logits, N, m->config.vocab),
    };
    memcpy(table, buffers, sizeof buffers);
    return sizeof buffers / sizeof buffers[0];
}

static int scratch_table(const Model *m, Scratch *t, Buffer *table)
{
    const ModelConfig *c = &m->config;
    int N = m->rows_max, S = N / m->stream_parts, C = c->width, F = c->ff, H = c->heads, K = c->kv_heads;
    int D = c->head_dim, E = c->moe.experts, k = c->moe.top_k, room = expert_room(m);
    bool travel = E && m->experts.placement.ep > 1;
    const Buffer buffers[] = {
        REAL(t->dx, S, C),
        REAL(t->dn, N, C),
        REAL(t->dqkv, N, (H + 2 * K) * D),
        REAL(t->dattended, N, H * D),
        REAL(t->dgate_up, E ? S : N, 2 * F),
        REAL(t->dhidden, E ? S : N, F),
        ACC(t->dot, N, H),
        REAL(t->embedded, N, C),
        REAL(t->delta, N, C),
        REAL(t->slots, S * k, C),
        REAL(t->expert_rows, travel ? room : 0, C),
        REAL(t->dexpert_gate_up, room, 2 * c->moe.ff),
        REAL(t->dexpert_hidden, room, c->moe.ff),
        REAL(t->dlogits, S, E),
        ACC(t->dweight, S, k),
        ACC(t->aux, E ? S : 0, 1),
        ACC(t->slope, c->moe.balance == BALANCE_SEQ_AUX ? S : 1, E),
    };
    memcpy(table, buffers, sizeof buffers);
    return sizeof buffers / sizeof buffers[0];
}

static int later_table(const Model *m, LayerGrads *g, Buffer *table)
{
    const ModelConfig *c = &m->config;
    int N = m->rows_max, S = N / m->stream_parts, C = c->width;
    const Buffer buffers[] = {
        REAL(g->ddown, S, C),
        REAL(g->dgate_up, N, 2 * c->ff),
        REAL(g->dout, S, C),
        REAL(g->dqkv, N, (c->heads + 2 * c->kv_heads) * c->head_dim),
    };
    memcpy(table, buffers, sizeof buffers);
    return sizeof buffers / sizeof buffers[0];
}

static void allocate(const Buffer *table, int count)
{
    for (int i = 0; i < count; i++) {
        size_t bytes = (size_t)table[i].rows * (size_t)table[i].width * table[i].size;
        void *memory = bytes > 0 ? memory_alloc(bytes, MEMORY_ACTIVATIONS) : NULL;
        memcpy(table[i].pointer, &memory, sizeof memory);
    }
}

static void release(const Buffer *table, int count)
{
    for (int i = 0; i < count; i++) {
        void *memory;
        memcpy(&memory, table[i].pointer, sizeof memory);
        memory_free(memory);
    }
}

/* --- activations --- */

Activations *activations_create(const Model *m)
{
    Buffer table[TABLE_MAX] = {0};
    Activations *a = calloc(1, sizeof *a);
    if (!a) fatal("out of memory");
    a->layer = calloc((size_t)m->config.layers, sizeof *a->layer);
    if (!a->layer) fatal("out of memory");
    for (int l = 0; l < m->config.layers; l++) {
        if (l > 0 && m->recompute)
            a->layer[l] = a->layer[0];
        else
            allocate(table, layer_table(m, &a->layer[l], table));
        allocate(table, x1_table(m, &a->layer[l], table));
    }
    allocate(table, head_table(m, a, table));
    return a;
}

void activations_free(const Model *m, Activations *a)
{
    Buffer table[TABLE_MAX] = {0};
    if (!a) return;
    for (int l = 0; l < m->config.layers; l++) {
        release(table, x1_table(m, &a->layer[l], table));
        if (l == 0 || !m->recompute) release(table, layer_table(m, &a->layer[l], table));
    }
    release(table, head_table(m, a, table));
    free(a->layer);
    free(a);
}

LayerGrads layer_grads_create(const Model *m)
{
    Buffer table[TABLE_MAX] = {0};
    LayerGrads g = {0};
    allocate(table, later_table(m, &g, table));
    return g;
}

void layer_grads_free(LayerGrads *g)
{
    void *all[] = {g->ddown, g->dgate_up, g->dout, g->dqkv};
    for (int i = 0; i < 4; i++) memory_free(all[i]);
    *g = (LayerGrads){0};
}

/* --- the model's own --- */

static void router_allocate(Model *m)
{
    Router *r = &m->router;
    size_t table = router_table_size(m) * sizeof *r->count, bias = (size_t)(m->config.layers * m->config.moe.experts);
    r->count = memory_alloc(table, MEMORY_ACTIVATIONS);
    r->summed = memory_alloc(table, MEMORY_ACTIVATIONS);
    r->total = memory_alloc(table, MEMORY_ACTIVATIONS);
    r->aux_sum = memory_alloc(sizeof *r->aux_sum, MEMORY_ACTIVATIONS);
    r->load = calloc(1, table);
    if (!r->load) fatal("out of memory");
    if (m->config.moe.balance != BALANCE_BIAS) return;
    r->bias = memory_alloc(bias * sizeof *r->bias, MEMORY_ACTIVATIONS);
    m->kernels.fill(r->bias, 0, bias * sizeof *r->bias);
}

static void router_release(Router *r)
{
    memory_free(r->count);
    memory_free(r->summed);
    memory_free(r->total);
    memory_free(r->aux_sum);
    memory_free(r->bias);
    free(r->load);
}

void model_allocate(Model *m)
{
    Buffer table[TABLE_MAX] = {0};
    const Kernels *k = &m->kernels;
    m->activations = activations_create(m);
    allocate(table, scratch_table(m, &m->scratch, table));
    m->loss_sum = memory_alloc(sizeof *m->loss_sum, MEMORY_ACTIVATIONS);
    if (m->config.moe.experts) router_allocate(m);
    m->workspace_bytes = k->workspace_bytes ? k->workspace_bytes(m->config.width, m->config.head_dim, m->rows_max) : 0;
    if (m->workspace_bytes) m->workspace = memory_alloc(m->workspace_bytes, MEMORY_BUFFERS);
}

void model_release(Model *m)
{
    Buffer table[TABLE_MAX] = {0};
    activations_free(m, m->activations);
    release(table, scratch_table(m, &m->scratch, table));
    memory_free(m->loss_sum);
    router_release(&m->router);
    memory_free(m->workspace);
}
