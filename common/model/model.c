#include "model/model.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "comm/comm.h"
#include "comm/trace.h"
#include "kernels/memory.h"

/* Offset of a parameter inside its unit. 0 if the model has no such parameter. */
static size_t place(const Params *p, const char *name)
{
    const View *v = params_find(p, name);
    return v ? v->offset - p->unit[v->unit].offset : 0;
}

static LayerLayout layer_layout(const Params *p, bool experts)
{
    return (LayerLayout){
        .norm1 = place(p, "model.layers.0.input_layernorm.weight"),
        .norm2 = place(p, "model.layers.0.post_attention_layernorm.weight"),
        .q_norm = place(p, "model.layers.0.self_attn.q_norm.weight"),
        .k_norm = place(p, "model.layers.0.self_attn.k_norm.weight"),
        .qkv = place(p, "model.layers.0.self_attn.q_proj.weight"),
        .o = place(p, "model.layers.0.self_attn.o_proj.weight"),
        .gate_up = place(p, experts ? "model.layers.0.mlp.shared_expert.gate_proj.weight"
                                    : "model.layers.0.mlp.gate_proj.weight"),
        .down = place(p, experts ? "model.layers.0.mlp.shared_expert.down_proj.weight"
                                 : "model.layers.0.mlp.down_proj.weight"),
        .router = place(p, "model.layers.0.mlp.gate.weight"),
        .expert_gate_up = experts ? place(p->next, "model.layers.0.mlp.experts.gate_up_proj") : 0,
        .expert_down = experts ? place(p->next, "model.layers.0.mlp.experts.down_proj") : 0,
    };
}

/* The table of RoPE: pair d at position t is rotated by the angle t theta^(-2d/D). */
static acc *rope_table(const ModelConfig *c, const Kernels *kernels)
{
    int half = c->head_dim / 2;
    size_t count = (size_t)c->max_seq * (size_t)c->head_dim;
    acc *table = memory_alloc(count * sizeof *table, MEMORY_ACTIVATIONS), *host = malloc(count * sizeof *host);
    if (!host) fatal("out of memory for the RoPE table");
    for (int t = 0; t < c->max_seq; t++)
        for (int d = 0; d < half; d++) {
            double angle = t * pow(c->theta, -(double)d / half);
            host[(size_t)t * c->head_dim + d] = (acc)cos(angle);
            host[(size_t)t * c->head_dim + half + d] = (acc)sin(angle);
        }
    kernels->upload(table, host, count * sizeof *host);
    free(host);
    return table;
}

/* Gives the kernels this model's workspace. Another model (the twin of --verify) may have given them its own. */
static void use_workspace(Model *m)
{
    if (m->workspace) m->kernels.use_workspace(m->workspace, m->workspace_bytes);
}

Model *model_create(const ModelConfig *config, const Kernels *kernels, int rows_max)
{
    return model_create_part(config, kernels, rows_max, (ModelPart){0});
}

Model *model_create_part(const ModelConfig *config, const Kernels *kernels, int rows_max, ModelPart part)
{
    Model *m = calloc(1, sizeof *m);
    if (!m) fatal("out of memory");
    const ModelConfig *c = &m->config;
    m->whole = *config;
    m->config = model_config_slice(config, part.placement.tp);
    m->stream_parts = part.stream_parts ? part.stream_parts : 1;
    CHECK(rows_max % m->stream_parts == 0);
    m->kernels = *kernels;
    m->rows_max = rows_max;
    m->recompute = part.recompute;
    m->micro_step = (MicroStep){.count = 1};
    m->params = params_create(config, part.placement, kernels);
    if (c->moe.experts) {
        m->experts = experts_create(config, part.experts, kernels);
        m->params.next = &m->experts;
        m->expert_chunks = part.expert_chunks ? part.expert_chunks : 1;
        m->expert_rows = part.expert_rows ? part.expert_rows : rows_max / m->stream_parts * c->moe.top_k;
    }
    m->layout = layer_layout(&m->params, c->moe.experts > 0);
    m->embedding = place(&m->params, "model.embed_tokens.weight");
    m->final_norm = place(&m->params, "model.norm.weight");
    m->head = c->tied ? m->embedding : place(&m->params, "lm_head.weight");
    m->rope = rope_table(c, kernels);
    model_allocate(m);
    use_workspace(m);
    return m;
}

void model_free(Model *m)
{
    if (!m) return;
    if (m->workspace) m->kernels.use_workspace(NULL, 0);
    model_release(m);
    memory_free(m->rope);
    params_free(&m->params);
    params_free(&m->experts);
    free(m);
}

static void call(void (*hook)(void *, int), void *self, int unit)
{
    if (hook) hook(self, unit);
}

/* The view of the embedding: its rows are the tokens that this rank holds. */
static const View *embedding_view(const Model *m)
{
    return &m->params.view[0];
}

static Linear head_matrix(const Model *m)
{
    const Unit *root = &m->params.unit[0];
    acc *grads = root->grads ? root->grads + m->head : NULL;
    return (Linear){root->weights + m->head, grads, m->config.width, m->config.vocab};
}

/* S: rows of the residual stream that this rank keeps. */
static int stream_rows(const Model *m, const Activations *a)
{
    return a->rows.count / m->stream_parts;
}

/* --- a step --- */

void model_zero_grads(Model *m)
{
    use_workspace(m);
    for (const Params *p = &m->params; p; p = p->next) m->kernels.fill(p->grads, 0, p->grad_count * sizeof *p->grads);
    if (m->config.moe.experts) {
        m->kernels.fill(m->router.total, 0, router_table_size(m) * sizeof *m->router.total);
        m->kernels.fill(m->router.aux_sum, 0, sizeof *m->router.aux_sum);
    }
    m->kernels.fill(m->loss_sum, 0, sizeof *m->loss_sum);
}

void model_begin(Model *m, int index, int count)
{
    m->micro_step.index = index;
    m->micro_step.count = count;
}

double model_read_loss(Model *m)
{
    double loss;
    m->kernels.download(&loss, m->loss_sum, sizeof loss);
    return loss;
}

/* --- forward --- */

void model_forward(Model *m, Activations *a, const Rows *rows)
{
    model_embed(m, a, rows);
    model_forward_layers(m, a, 0, m->config.layers);
    model_forward_head(m, a);
}

void model_embed(Model *m, Activations *a, const Rows *rows)
{
    ParameterSeam *s = &m->seams.parameters;
    FeatureSeam *f = &m->seams.features;
    int N = rows->count, C = m->config.width;
    CHECK(N <= m->rows_max && N % m->stream_parts == 0);
    use_workspace(m);
    a->rows = *rows;
    call(s->before_forward, s->self, 0);
    const View *table = embedding_view(m);
    real *embedded = m->scratch.embedded;
    m->kernels.embedding_forward(embedded, m->params.unit[0].weights + m->embedding, rows->token, table->row0,
                                 table->valid_rows, N, C);
    a->x = f->embedding_forward ? f->embedding_forward(f->self, embedded, N, C) : embedded;
    a->delta = NULL;
}

void model_forward_layers(Model *m, Activations *a, int first, int end)
{
    ParameterSeam *s = &m->seams.parameters;
    for (int l = first; l < end; l++) {
        call(s->before_forward, s->self, 1 + l);
        trace_begin("layer %d forward", l);
        a->delta = layer_forward(m, a, l, a->x, a->delta);
        trace_end();
        call(s->after_forward, s->self, 1 + l);
        a->x = a->layer[l].x2;
        comm_progress();
    }
}

void model_forward_head(Model *m, Activations *a)
{
    ParameterSeam *s = &m->seams.parameters;
    const ModelConfig *c = &m->config;
    trace_begin("head forward");
    m->kernels.residual_norm_forward(a->x_final, a->n_final, a->rstd_final, a->x, a->delta,
                                     m->params.unit[0].weights + m->final_norm, c->eps, stream_rows(m, a), c->width);
    model_column_forward(m, a->logits, a->n_final, head_matrix(m), a->rows.count);
    trace_end();
    call(s->after_forward, s->self, 0);
}

void model_loss(Model *m, Activations *a, double scale)
{
    FeatureSeam *f = &m->seams.features;
    int N = a->rows.count;
    if (f->loss)
        f->loss(f->self, a->loss, a->logits, a->rows.label, scale, N);
    else
        m->kernels.cross_entropy(a->loss, a->logits, a->rows.label, scale, N, m->config.vocab);
    m->kernels.sum(m->loss_sum, a->loss, (size_t)N);
    router_count(m);
}

/* --- backward --- */

void model_backward(Model *m, Activations *a)
{
    model_backward_head(m, a);
    model_backward_layers(m, a, 0, m->config.layers);
    model_backward_embed(m, a);
}

void model_backward_head(Model *m, Activations *a)
{
    ParameterSeam *s = &m->seams.parameters;
    int S = stream_rows(m, a), C = m->config.width;
    real *dx = m->scratch.dx;
    call(s->before_backward, s->self, 0);
    const Unit *root = &m->params.unit[0];
    trace_begin("head backward");
    const real *dn =
        model_column_backward(m, m->scratch.dn, a->logits, a->n_final, head_matrix(m), a->rows.count, GRADIENTS);
    m->kernels.fill(dx, 0, (size_t)S * (size_t)C * sizeof *dx);
    m->kernels.residual_norm_backward(dx, root->grads + m->final_norm, dn, a->x_final, a->rstd_final,
                                      root->weights + m->final_norm, S, C);
    trace_end();
}

void model_backward_layers(Model *m, Activations *a, int first, int end)
{
    ParameterSeam *s = &m->seams.parameters;
    for (int l = end - 1; l >= first; l--) {
        call(s->before_backward, s->self, 1 + l);
        if (m->recompute) {
            trace_begin("layer %d forward", l);
            layer_forward(m, a, l, a->layer[l].x1, NULL); /* delta NULL: x1 already is x + delta */
            trace_end();
        }
        trace_begin("layer %d backward", l);
        layer_backward(m, a, l);
        trace_end();
        call(s->after_backward, s->self, 1 + l);
        comm_progress();
    }
}

void model_backward_embed(Model *m, Activations *a)
{
    ParameterSeam *s = &m->seams.parameters;
    FeatureSeam *f = &m->seams.features;
    int N = a->rows.count, C = m->config.width;
    const View *table = embedding_view(m);
    const real *dx = m->scratch.dx;
    if (f->embedding_backward) dx = f->embedding_backward(f->self, dx, N, C);
    m->kernels.embedding_backward(m->params.unit[0].grads + m->embedding, dx, a->rows.token, table->row0,
                                  table->valid_rows, N, C);
    call(s->after_backward, s->self, 0);
}
