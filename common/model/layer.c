/* One decoder layer:   x1 = x + delta
 *                      x2 = x1 + Wo attention(rope(Wqkv norm(x1)))
 *          result: x2 and delta = Wdown (silu(Wgate norm(x2)) Wup norm(x2)),   which the next layer adds
 *
 * A layer with experts computes the last line in moe.c.
 *
 * One kernel does the residual add and the norm that follows it. So the residual stream goes from layer to layer as a
 * pair (x, delta), and the next norm adds the two. Both terms of a sum get the sum's gradient: the backward pass
 * carries one dx.
 */
#include "base/error.h"
#include "comm/comm.h"
#include "model/model.h"

/* Pointers to one layer's weights and gradients, taken anew for each pass: a scheme may move a unit's buffers. */
typedef struct {
    const real *norm1, *norm2, *q_norm, *k_norm; /* [C], [C], [D], [D]; the last two NULL without QK-norm */
    acc *dnorm1, *dnorm2, *dq_norm, *dk_norm;
    Linear qkv, out, gate_up, down;
} Weights;

static Linear linear_at(const Unit *unit, size_t at, int in, int out)
{
    return (Linear){unit->weights + at, unit->grads ? unit->grads + at : NULL, in, out};
}

static Weights weights_of(const Model *m, int l)
{
    const ModelConfig *c = &m->config;
    const LayerLayout *at = &m->layout;
    const Unit *unit = &m->params.unit[1 + l];
    const real *w = unit->weights;
    acc *dw = unit->grads;
    int C = c->width, F = c->ff, H = c->heads, K = c->kv_heads, D = c->head_dim;
    return (Weights){
        .norm1 = w + at->norm1,
        .norm2 = w + at->norm2,
        .q_norm = c->qk_norm ? w + at->q_norm : NULL,
        .k_norm = c->qk_norm ? w + at->k_norm : NULL,
        .dnorm1 = dw ? dw + at->norm1 : NULL,
        .dnorm2 = dw ? dw + at->norm2 : NULL,
        .dq_norm = dw ? dw + at->q_norm : NULL,
        .dk_norm = dw ? dw + at->k_norm : NULL,
        .qkv = linear_at(unit, at->qkv, C, (H + 2 * K) * D),
        .out = linear_at(unit, at->o, H * D, C),
        .gate_up = linear_at(unit, at->gate_up, C, 2 * F),
        .down = linear_at(unit, at->down, F, C),
    };
}

static void attention_forward(Model *m, LayerKept *a, const Rows *rows);
static void attention_backward(Model *m, real *dqkv, LayerKept *a, const Rows *rows);

const real *layer_forward(Model *m, Activations *activations, int l, const real *x, const real *delta)
{
    const Kernels *k = &m->kernels;
    const ModelConfig *c = &m->config;
    const Rows *rows = &activations->rows;
    const Weights w = weights_of(m, l);
    LayerKept *a = &activations->layer[l];
    real *adds = m->scratch.delta;
    int N = rows->count, S = N / m->stream_parts; /* rows of the micro-step; those this rank keeps of the stream */
    int C = c->width, F = c->ff, H = c->heads, K = c->kv_heads, D = c->head_dim;

    k->residual_norm_forward(a->x1, a->n1, a->rstd1, x, delta, w.norm1, c->eps, S, C);
    model_column_forward(m, a->qkv, a->n1, w.qkv, N);
    k->qk_rope_forward(a->qkv, a->raw, a->raw_rstd, w.q_norm, w.k_norm, m->rope, rows->position, c->eps, N, H, K, D);
    attention_forward(m, a, rows);
    const real *attention_adds = model_row_forward(m, adds, a->attended, w.out, N);

    k->residual_norm_forward(a->x2, a->n2, a->rstd2, a->x1, attention_adds, w.norm2, c->eps, S, C);
    if (c->moe.experts) return moe_forward(m, activations, l);
    model_column_forward(m, a->gate_up, a->n2, w.gate_up, N);
    k->swiglu_forward(a->hidden, a->gate_up, N, F);
    return model_row_forward(m, adds, a->hidden, w.down, N);
}

/* Copies dx for the second half of a backward pass in two halves. `to` NULL: the pass is not in halves, and nothing
 * is kept. */
static void keep(const Model *m, real *to, const real *dx, int rows)
{
    if (to) m->kernels.copy(to, dx, (size_t)rows * (size_t)m->config.width * sizeof *to);
}

/* The backward pass of layer l. It writes the gradients of the four products' outputs to `g`. `gradients` chooses
 * what each product computes: the gradient of its input, of its weight, or both. */
static void backward(Model *m, Activations *activations, int l, LayerGrads *g, unsigned gradients)
{
    const Kernels *k = &m->kernels;
    const ModelConfig *c = &m->config;
    const Rows *rows = &activations->rows;
    const Weights w = weights_of(m, l);
    LayerKept *a = &activations->layer[l];
    Scratch *t = &m->scratch;
    int N = rows->count, S = N / m->stream_parts; /* as in layer_forward */
    int C = c->width, F = c->ff, H = c->heads, K = c->kv_heads, D = c->head_dim;

    /* the feed-forward; t->dx is the gradient of x2 and of the feed-forward's output alike */
    const real *dn2;
    if (c->moe.experts) {
        dn2 = moe_backward(m, activations, l);
    } else {
        keep(m, g->ddown, t->dx, S);
        model_row_backward(m, t->dhidden, t->dx, a->hidden, w.down, N, gradients);
        k->swiglu_backward(g->dgate_up, t->dhidden, a->gate_up, N, F);
        dn2 = model_column_backward(m, t->dn, g->dgate_up, a->n2, w.gate_up, N, gradients);
    }
    k->residual_norm_backward(t->dx, w.dnorm2, dn2, a->x2, a->rstd2, w.norm2, S, C);

    /* attention */
    keep(m, g->dout, t->dx, S);
    model_row_backward(m, t->dattended, t->dx, a->attended, w.out, N, gradients);
    attention_backward(m, g->dqkv, a, rows);
    comm_progress();
    k->qk_rope_backward(g->dqkv, w.dq_norm, w.dk_norm, a->raw, a->raw_rstd, w.q_norm, w.k_norm, m->rope, rows->position,
                        N, H, K, D);
    const real *dn1 = model_column_backward(m, t->dn, g->dqkv, a->n1, w.qkv, N, gradients);
    k->residual_norm_backward(t->dx, w.dnorm1, dn1, a->x1, a->rstd1, w.norm1, S, C);
}

void layer_backward(Model *m, Activations *a, int l)
{
    LayerGrads now = {.dgate_up = m->scratch.dgate_up, .dqkv = m->scratch.dqkv};
    backward(m, a, l, &now, GRADIENTS);
}

void layer_backward_inputs(Model *m, Activations *a, int l, LayerGrads *later)
{
    CHECK(!m->recompute && !m->config.moe.experts);
    backward(m, a, l, later, GRADIENT_OF_INPUT);
}

void layer_backward_weights(Model *m, Activations *activations, int l, const LayerGrads *later)
{
    const Weights w = weights_of(m, l);
    LayerKept *a = &activations->layer[l];
    int N = activations->rows.count;
    model_row_backward(m, NULL, later->ddown, a->hidden, w.down, N, GRADIENT_OF_WEIGHT);
    model_column_backward(m, NULL, later->dgate_up, a->n2, w.gate_up, N, GRADIENT_OF_WEIGHT);
    model_row_backward(m, NULL, later->dout, a->attended, w.out, N, GRADIENT_OF_WEIGHT);
    model_column_backward(m, NULL, later->dqkv, a->n1, w.qkv, N, GRADIENT_OF_WEIGHT);
}

/* --- attention: through the sequence seam; if that is empty, over this rank's own rows --- */

/* All keys are on this rank, so one call of the kernel is both the first and the last of the fold. */
static AttentionShape local_attention(const ModelConfig *c, const Rows *rows)
{
    size_t stride = (size_t)(c->heads + 2 * c->kv_heads) * c->head_dim;
    return (AttentionShape){.heads = c->heads,
                            .kv_heads = c->kv_heads,
                            .head_dim = c->head_dim,
                            .queries = rows->count,
                            .keys = rows->count,
                            .lo = rows->lo,
                            .hi = rows->hi,
                            .key_id = rows->id,
                            .q_stride = stride,
                            .kv_stride = stride,
                            .flags = ATTENTION_FIRST | ATTENTION_LAST};
}

static void attention_forward(Model *m, LayerKept *a, const Rows *rows)
{
    const ModelConfig *c = &m->config;
    SequenceSeam *s = &m->seams.sequence;
    if (s->forward) {
        s->forward(s->self, a->attended, a->lse, a->qkv, rows);
        return;
    }
    const real *q = a->qkv, *k = q + c->heads * c->head_dim, *v = k + c->kv_heads * c->head_dim;
    m->kernels.attention_forward(a->attended, NULL, a->lse, q, k, v, local_attention(c, rows));
}

static void attention_backward(Model *m, real *dqkv, LayerKept *a, const Rows *rows)
{
    const ModelConfig *c = &m->config;
    SequenceSeam *s = &m->seams.sequence;
    Scratch *t = &m->scratch;
    if (s->backward) {
        s->backward(s->self, dqkv, t->dot, t->dattended, a->attended, a->lse, a->qkv, rows);
        return;
    }
    const real *q = a->qkv, *k = q + c->heads * c->head_dim, *v = k + c->kv_heads * c->head_dim;
    real *dq = dqkv, *dk = dq + c->heads * c->head_dim, *dv = dk + c->kv_heads * c->head_dim;
    m->kernels.attention_backward(dq, NULL, dk, dv, NULL, NULL, t->dot, t->dattended, a->attended, a->lse, q, k, v,
                                  local_attention(c, rows));
}
