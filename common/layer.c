/* One decoder layer:   x1 = x + delta
 *                      x2 = x1 + Wo attention(rope(Wqkv norm(x1)))
 *          result: x2 and delta = Wdown (silu(Wgate norm(x2)) Wup norm(x2)),   to be added by whoever comes next
 *
 * The residual add is fused with the norm that follows it, so the stream travels as a pair (x, delta). The gradient of a
 * sum is the gradient of each part: the backward pass carries just one dx.
 */
#include "model.h"

#include "comm.h"

/* --- the seams: an empty one hands its argument back --- */

static const real *enter(Model *m, const real *mine, int rows)
{
    FeatureSeam *s = &m->seams.features;
    return s->enter ? s->enter(s->self, mine, rows, m->config.width) : mine;
}

static const real *leave(Model *m, const real *partial, int rows)
{
    FeatureSeam *s = &m->seams.features;
    return s->leave ? s->leave(s->self, partial, rows, m->config.width) : partial;
}

static const real *enter_backward(Model *m, const real *dfull, int rows)
{
    FeatureSeam *s = &m->seams.features;
    return s->enter_backward ? s->enter_backward(s->self, dfull, rows, m->config.width) : dfull;
}

static const real *leave_backward(Model *m, const real *dmine, int rows)
{
    FeatureSeam *s = &m->seams.features;
    return s->leave_backward ? s->leave_backward(s->self, dmine, rows, m->config.width) : dmine;
}

/* All keys are local: one call folds them all. */
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

static void attention(Model *m, LayerKept *a, const Rows *rows)
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

static void attention_backward(Model *m, LayerKept *a, const Rows *rows)
{
    const ModelConfig *c = &m->config;
    SequenceSeam *s = &m->seams.sequence;
    Scratch *t = &m->scratch;
    if (s->backward) {
        s->backward(s->self, t->dqkv, t->dot, t->dattended, a->attended, a->lse, a->qkv, rows);
        return;
    }
    const real *q = a->qkv, *k = q + c->heads * c->head_dim, *v = k + c->kv_heads * c->head_dim;
    real *dq = t->dqkv, *dk = dq + c->heads * c->head_dim, *dv = dk + c->kv_heads * c->head_dim;
    m->kernels.attention_backward(dq, NULL, dk, dv, NULL, NULL, t->dot, t->dattended, a->attended, a->lse, q, k, v,
                                  local_attention(c, rows));
}

/* --- the layer --- */

const real *layer_forward(Model *m, int l, const real *x, const real *delta, const Rows *rows)
{
    const Kernels *k = &m->kernels;
    const ModelConfig *c = &m->config;
    const LayerLayout *at = &m->layout;
    const real *w = m->params.unit[1 + l].weights;
    LayerKept *a = &m->layer[l];
    int N = rows->count, C = c->width, F = c->ff, H = c->heads, K = c->kv_heads, D = c->head_dim;
    const real *q_norm = c->qk_norm ? w + at->q_norm : NULL, *k_norm = c->qk_norm ? w + at->k_norm : NULL;

    k->residual_norm_forward(a->x1, a->n1, a->rstd1, x, delta, w + at->norm1, c->eps, N, C);
    const real *n1 = enter(m, a->n1, N);
    k->linear_forward(a->qkv, n1, w + at->qkv, N, C, (H + 2 * K) * D);
    k->qk_rope_forward(a->qkv, a->raw, a->raw_rstd, q_norm, k_norm, m->rope, rows->position, c->eps, N, H, K, D);
    attention(m, a, rows);
    k->linear_forward(m->delta, a->attended, w + at->o, N, H * D, C);
    const real *attention_adds = leave(m, m->delta, N);

    k->residual_norm_forward(a->x2, a->n2, a->rstd2, a->x1, attention_adds, w + at->norm2, c->eps, N, C);
    const real *n2 = enter(m, a->n2, N);
    k->linear_forward(a->gate_up, n2, w + at->gate_up, N, C, 2 * F);
    k->swiglu_forward(a->hidden, a->gate_up, N, F);
    k->linear_forward(m->delta, a->hidden, w + at->down, N, F, C);
    return leave(m, m->delta, N);
}

/* enter() is called again for the inputs of the split matrices: a scheme that gathers them does not keep them, but gathers
 * them a second time. */
void layer_backward(Model *m, int l, const Rows *rows)
{
    const Kernels *k = &m->kernels;
    const ModelConfig *c = &m->config;
    const LayerLayout *at = &m->layout;
    const real *w = m->params.unit[1 + l].weights;
    acc *dw = m->params.unit[1 + l].grads;
    LayerKept *a = &m->layer[l];
    Scratch *t = &m->scratch;
    int N = rows->count, C = c->width, F = c->ff, H = c->heads, K = c->kv_heads, D = c->head_dim;
    const real *q_norm = c->qk_norm ? w + at->q_norm : NULL, *k_norm = c->qk_norm ? w + at->k_norm : NULL;

    /* the feed-forward: t->dx is the gradient of what it added, too */
    const real *dadded = leave_backward(m, t->dx, N);
    k->linear_backward_weight(dw + at->down, dadded, a->hidden, N, F, C);
    k->linear_backward_input(t->dhidden, dadded, w + at->down, N, F, C);
    comm_progress();
    k->swiglu_backward(t->dgate_up, t->dhidden, a->gate_up, N, F);
    k->linear_backward_weight(dw + at->gate_up, t->dgate_up, enter(m, a->n2, N), N, C, 2 * F);
    comm_progress();
    k->linear_backward_input(t->dn, t->dgate_up, w + at->gate_up, N, C, 2 * F);
    comm_progress();
    const real *dn2 = enter_backward(m, t->dn, N);
    k->residual_norm_backward(t->dx, dw + at->norm2, dn2, a->x2, a->rstd2, w + at->norm2, N, C);

    /* attention */
    dadded = leave_backward(m, t->dx, N);
    k->linear_backward_weight(dw + at->o, dadded, a->attended, N, H * D, C);
    k->linear_backward_input(t->dattended, dadded, w + at->o, N, H * D, C);
    comm_progress();
    attention_backward(m, a, rows);
    comm_progress();
    k->qk_rope_backward(t->dqkv, dw + at->q_norm, dw + at->k_norm, a->raw, a->raw_rstd, q_norm, k_norm, m->rope,
                        rows->position, N, H, K, D);
    k->linear_backward_weight(dw + at->qkv, t->dqkv, enter(m, a->n1, N), N, C, (H + 2 * K) * D);
    comm_progress();
    k->linear_backward_input(t->dn, t->dqkv, w + at->qkv, N, C, (H + 2 * K) * D);
    const real *dn1 = enter_backward(m, t->dn, N);
    k->residual_norm_backward(t->dx, dw + at->norm1, dn1, a->x1, a->rstd1, w + at->norm1, N, C);
}
