#include "model/model.h"

#include <math.h>
#include <stdlib.h>

#include "comm/comm.h"
#include "base/error.h"
#include "kernels/memory.h"
#include "comm/trace.h"

/* --- memory --- */

static real *new_real(int rows, int width)
{
    return memory_alloc((size_t)rows * (size_t)width * sizeof(real), MEMORY_ACTIVATIONS);
}

static acc *new_acc(int rows, int width)
{
    return memory_alloc((size_t)rows * (size_t)width * sizeof(acc), MEMORY_ACTIVATIONS);
}

/* Offset of a parameter inside its unit; 0 for one that this model does not have. */
static size_t place(const Params *p, const char *name)
{
    const View *v = params_find(p, name);
    return v ? v->offset - p->unit[v->unit].offset : 0;
}

static LayerLayout layer_layout(const Params *p)
{
    return (LayerLayout){
        .norm1 = place(p, "model.layers.0.input_layernorm.weight"),
        .norm2 = place(p, "model.layers.0.post_attention_layernorm.weight"),
        .q_norm = place(p, "model.layers.0.self_attn.q_norm.weight"),
        .k_norm = place(p, "model.layers.0.self_attn.k_norm.weight"),
        .qkv = place(p, "model.layers.0.self_attn.q_proj.weight"),
        .o = place(p, "model.layers.0.self_attn.o_proj.weight"),
        .gate_up = place(p, "model.layers.0.mlp.gate_proj.weight"),
        .down = place(p, "model.layers.0.mlp.down_proj.weight"),
    };
}

/* The angle of pair d at position t is t theta^(-2d/D). */
static acc *rope_table(const ModelConfig *c, const Kernels *kernels)
{
    int half = c->head_dim / 2;
    size_t count = (size_t)c->max_seq * (size_t)c->head_dim;
    acc *table = new_acc(c->max_seq, c->head_dim), *host = malloc(count * sizeof *host);
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

/* All but x1: n rows, s of the stream. */
static LayerKept layer_kept(const ModelConfig *c, int n, int s)
{
    int C = c->width, F = c->ff, H = c->heads, K = c->kv_heads, D = c->head_dim;
    return (LayerKept){
        .rstd1 = new_acc(s, 1),
        .n1 = new_real(s, C),
        .qkv = new_real(n, (H + 2 * K) * D),
        .raw = c->qk_norm ? new_real(n, (H + K) * D) : NULL,
        .raw_rstd = c->qk_norm ? new_acc(n, H + K) : NULL,
        .attended = new_real(n, H * D),
        .lse = new_acc(n, H),
        .x2 = new_real(s, C),
        .rstd2 = new_acc(s, 1),
        .n2 = new_real(s, C),
        .gate_up = new_real(n, 2 * F),
        .hidden = new_real(n, F),
    };
}

/* The kernels may have worked for another model meanwhile (verify's twin). */
static void use_workspace(Model *m)
{
    if (m->workspace) m->kernels.use_workspace(m->workspace, m->workspace_bytes);
}

Model *model_create(const ModelConfig *config, const Kernels *kernels, int n)
{
    return model_create_part(config, kernels, n, (ModelPart){0});
}

Model *model_create_part(const ModelConfig *config, const Kernels *kernels, int n, ModelPart part)
{
    Model *m = calloc(1, sizeof *m);
    if (!m) fatal("out of memory");
    const ModelConfig *c = &m->config;
    m->whole = *config;
    m->config = model_config_slice(config, part.holding.tp);
    m->stream_parts = part.stream_parts ? part.stream_parts : 1;
    CHECK(n % m->stream_parts == 0);
    m->kernels = *kernels;
    m->rows_max = n;
    m->recompute = part.recompute;
    m->params = params_create(config, part.holding, kernels);
    m->layout = layer_layout(&m->params);
    m->embedding = place(&m->params, "model.embed_tokens.weight");
    m->final_norm = place(&m->params, "model.norm.weight");
    m->head = c->tied ? m->embedding : place(&m->params, "lm_head.weight");

    int C = c->width, F = c->ff, H = c->heads, K = c->kv_heads, D = c->head_dim, S = n / m->stream_parts;
    m->rope = rope_table(c, kernels);
    m->layer = calloc((size_t)c->layers, sizeof *m->layer);
    if (!m->layer) fatal("out of memory");
    for (int l = 0; l < c->layers; l++) {
        m->layer[l] = l > 0 && m->recompute ? m->layer[0] : layer_kept(c, n, S);
        m->layer[l].x1 = new_real(S, C);
    }
    m->scratch = (Scratch){
        .dx = new_real(S, C),
        .dn = new_real(n, C),
        .dqkv = new_real(n, (H + 2 * K) * D),
        .dattended = new_real(n, H * D),
        .dgate_up = new_real(n, 2 * F),
        .dhidden = new_real(n, F),
        .dot = new_acc(n, H),
    };
    m->embedded = new_real(n, C);
    m->delta = new_real(n, C);
    m->x_final = new_real(S, C);
    m->rstd_final = new_acc(S, 1);
    m->n_final = new_real(S, C);
    m->logits = new_real(n, c->vocab);
    m->loss = new_acc(n, 1);
    m->loss_sum = memory_alloc(sizeof *m->loss_sum, MEMORY_ACTIVATIONS);
    m->workspace_bytes = kernels->workspace_bytes ? kernels->workspace_bytes(c->width, c->head_dim, n) : 0;
    if (m->workspace_bytes) m->workspace = memory_alloc(m->workspace_bytes, MEMORY_BUFFERS);
    use_workspace(m);
    return m;
}

void model_free(Model *m)
{
    if (!m) return;
    for (int l = 0; l < m->config.layers; l++) {
        LayerKept *a = &m->layer[l];
        void *kept[] = {a->rstd1, a->n1, a->qkv, a->raw,   a->raw_rstd, a->attended,
                        a->lse,   a->x2, a->n2,  a->rstd2, a->gate_up,  a->hidden};
        memory_free(a->x1);
        for (size_t i = 0; i < sizeof kept / sizeof kept[0] && (l == 0 || !m->recompute); i++) memory_free(kept[i]);
    }
    if (m->workspace) m->kernels.use_workspace(NULL, 0);
    Scratch *t = &m->scratch;
    void *rest[] = {m->workspace,  t->dx,      t->dn,     t->dqkv,     t->dattended, t->dgate_up,
                    t->dhidden,    t->dot,     m->rope,   m->embedded, m->delta,     m->x_final,
                    m->rstd_final, m->n_final, m->logits, m->loss,     m->loss_sum};
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++) memory_free(rest[i]);
    params_free(&m->params);
    free(m->layer);
    free(m);
}

/* --- the parameter seam --- */

static void call(void (*hook)(void *, int), void *self, int unit)
{
    if (hook) hook(self, unit);
}

/* Which tokens this rank's part of the embedding has. */
static const View *embedding_view(const Model *m)
{
    return &m->params.view[0];
}

/* --- forward and backward --- */

void model_zero_grads(Model *m)
{
    use_workspace(m);
    m->kernels.fill(m->params.grads, 0, m->params.grad_count * sizeof *m->params.grads);
    m->kernels.fill(m->loss_sum, 0, sizeof *m->loss_sum);
}

void model_forward(Model *m, const Rows *rows)
{
    const Kernels *k = &m->kernels;
    const ModelConfig *c = &m->config;
    ParameterSeam *s = &m->seams.parameters;
    int N = rows->count, S = N / m->stream_parts, C = c->width;
    CHECK(N <= m->rows_max && N % m->stream_parts == 0);
    use_workspace(m);

    call(s->before_forward, s->self, 0);
    const real *root = m->params.unit[0].weights;
    const View *table = embedding_view(m);
    k->embedding_forward(m->embedded, root + m->embedding, rows->token, table->row0, table->valid_rows, N, C);
    FeatureSeam *f = &m->seams.features;
    const real *delta = NULL;
    const real *x = f->embedding_forward ? f->embedding_forward(f->self, m->embedded, N, C) : m->embedded;
    for (int l = 0; l < c->layers; l++) {
        call(s->before_forward, s->self, 1 + l);
        trace_begin("layer %d forward", l);
        delta = layer_forward(m, l, x, delta, rows);
        trace_end();
        call(s->after_forward, s->self, 1 + l);
        x = m->layer[l].x2;
        comm_progress();
    }
    trace_begin("head forward");
    k->residual_norm_forward(m->x_final, m->n_final, m->rstd_final, x, delta, root + m->final_norm, c->eps, S, C);
    model_column_forward(m, m->logits, m->n_final, root + m->head, N, C, c->vocab);
    trace_end();
    call(s->after_forward, s->self, 0);
}

void model_loss(Model *m, const Rows *rows, double scale)
{
    FeatureSeam *f = &m->seams.features;
    if (f->loss)
        f->loss(f->self, m->loss, m->logits, rows->label, scale, rows->count);
    else
        m->kernels.cross_entropy(m->loss, m->logits, rows->label, scale, rows->count, m->config.vocab);
    m->kernels.sum(m->loss_sum, m->loss, (size_t)rows->count);
}

double model_read_loss(Model *m)
{
    double loss;
    m->kernels.download(&loss, m->loss_sum, sizeof loss);
    return loss;
}

void model_backward(Model *m, const Rows *rows)
{
    const Kernels *k = &m->kernels;
    const ModelConfig *c = &m->config;
    ParameterSeam *s = &m->seams.parameters;
    FeatureSeam *f = &m->seams.features;
    int N = rows->count, S = N / m->stream_parts, C = c->width;
    real *dx = m->scratch.dx;

    call(s->before_backward, s->self, 0);
    const real *root = m->params.unit[0].weights;
    acc *droot = m->params.unit[0].grads;
    trace_begin("head backward");
    const real *dn =
        model_column_backward(m, m->scratch.dn, droot + m->head, m->logits, m->n_final, root + m->head, N, C, c->vocab);
    k->fill(dx, 0, (size_t)S * (size_t)C * sizeof *dx);
    k->residual_norm_backward(dx, droot + m->final_norm, dn, m->x_final, m->rstd_final, root + m->final_norm, S, C);
    trace_end();
    for (int l = c->layers - 1; l >= 0; l--) {
        call(s->before_backward, s->self, 1 + l);
        if (m->recompute) {
            trace_begin("layer %d forward", l);
            layer_forward(m, l, m->layer[l].x1, NULL, rows); /* x1 is x + delta already */
            trace_end();
        }
        trace_begin("layer %d backward", l);
        layer_backward(m, l, rows);
        trace_end();
        call(s->after_backward, s->self, 1 + l);
        comm_progress();
    }
    const View *table = embedding_view(m);
    const real *dembedded = f->embedding_backward ? f->embedding_backward(f->self, dx, N, C) : dx;
    k->embedding_backward(droot + m->embedding, dembedded, rows->token, table->row0, table->valid_rows, N, C);
    call(s->after_backward, s->self, 0);
}
