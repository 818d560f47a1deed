/* One decoder layer:   x1 = x + delta
 *                      x2 = x1 + Wo attention(rope(Wqkv norm(x1)))
 *          result: x2 and delta = Wdown (silu(Wgate norm(x2)) Wup norm(x2)),   to be added by whoever comes next
 *
 * The residual add is fused with the norm that follows it, so the stream travels as a pair (x, delta). The gradient of a
 * sum is the gradient of each part: the backward pass carries just one dx.
 */
#include "model/model.h"

#include "comm/comm.h"

/* --- the seam around the split matrices; an empty one is a plain product --- */

void model_column_forward(Model *m, real *y, const real *x, const real *w, int rows, int in, int out)
{
    FeatureSeam *s = &m->seams.features;
    if (s->column_forward)
        s->column_forward(s->self, y, x, w, rows, in, out);
    else
        m->kernels.linear_forward(y, x, w, rows, in, out);
}

const real *model_column_backward(Model *m, real *dx, acc *dw, const real *dy, const real *x, const real *w, int rows,
                                  int in, int out)
{
    FeatureSeam *s = &m->seams.features;
    if (s->column_backward) return s->column_backward(s->self, dx, dw, dy, x, w, rows, in, out);
    m->kernels.linear_backward_weight(dw, dy, x, rows, in, out);
    comm_progress();
    m->kernels.linear_backward_input(dx, dy, w, rows, in, out);
    comm_progress();
    return dx;
}

static const real *row_forward(Model *m, real *y, const real *x, const real *w, int rows, int in, int out)
{
    FeatureSeam *s = &m->seams.features;
    if (s->row_forward) return s->row_forward(s->self, y, x, w, rows, in, out);
    m->kernels.linear_forward(y, x, w, rows, in, out);
    return y;
}

static void row_backward(Model *m, real *dx, acc *dw, const real *dy, const real *x, const real *w, int rows, int in,
                         int out)
{
    FeatureSeam *s = &m->seams.features;
    if (s->row_backward) {
        s->row_backward(s->self, dx, dw, dy, x, w, rows, in, out);
    } else {
        m->kernels.linear_backward_weight(dw, dy, x, rows, in, out);
        m->kernels.linear_backward_input(dx, dy, w, rows, in, out);
    }
    comm_progress();
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
    int N = rows->count, S = N / m->stream_parts; /* rows in split regions, and of my part of the stream */
    int C = c->width, F = c->ff, H = c->heads, K = c->kv_heads, D = c->head_dim;
    const real *q_norm = c->qk_norm ? w + at->q_norm : NULL, *k_norm = c->qk_norm ? w + at->k_norm : NULL;

    k->residual_norm_forward(a->x1, a->n1, a->rstd1, x, delta, w + at->norm1, c->eps, S, C);
    model_column_forward(m, a->qkv, a->n1, w + at->qkv, N, C, (H + 2 * K) * D);
    k->qk_rope_forward(a->qkv, a->raw, a->raw_rstd, q_norm, k_norm, m->rope, rows->position, c->eps, N, H, K, D);
    attention(m, a, rows);
    const real *attention_adds = row_forward(m, m->delta, a->attended, w + at->o, N, H * D, C);

    k->residual_norm_forward(a->x2, a->n2, a->rstd2, a->x1, attention_adds, w + at->norm2, c->eps, S, C);
    model_column_forward(m, a->gate_up, a->n2, w + at->gate_up, N, C, 2 * F);
    k->swiglu_forward(a->hidden, a->gate_up, N, F);
    return row_forward(m, m->delta, a->hidden, w + at->down, N, F, C);
}

void layer_backward(Model *m, int l, const Rows *rows)
{
    const Kernels *k = &m->kernels;
    const ModelConfig *c = &m->config;
    const LayerLayout *at = &m->layout;
    const real *w = m->params.unit[1 + l].weights;
    acc *dw = m->params.unit[1 + l].grads;
    LayerKept *a = &m->layer[l];
    Scratch *t = &m->scratch;
    int N = rows->count, S = N / m->stream_parts; /* rows in split regions, and of my part of the stream */
    int C = c->width, F = c->ff, H = c->heads, K = c->kv_heads, D = c->head_dim;
    const real *q_norm = c->qk_norm ? w + at->q_norm : NULL, *k_norm = c->qk_norm ? w + at->k_norm : NULL;

    /* the feed-forward: t->dx is the gradient of what it added, too */
    row_backward(m, t->dhidden, dw + at->down, t->dx, a->hidden, w + at->down, N, F, C);
    k->swiglu_backward(t->dgate_up, t->dhidden, a->gate_up, N, F);
    const real *dn2 =
        model_column_backward(m, t->dn, dw + at->gate_up, t->dgate_up, a->n2, w + at->gate_up, N, C, 2 * F);
    k->residual_norm_backward(t->dx, dw + at->norm2, dn2, a->x2, a->rstd2, w + at->norm2, S, C);

    /* attention */
    row_backward(m, t->dattended, dw + at->o, t->dx, a->attended, w + at->o, N, H * D, C);
    attention_backward(m, a, rows);
    comm_progress();
    k->qk_rope_backward(t->dqkv, dw + at->q_norm, dw + at->k_norm, a->raw, a->raw_rstd, q_norm, k_norm, m->rope,
                        rows->position, N, H, K, D);
    const real *dn1 = model_column_backward(m, t->dn, dw + at->qkv, t->dqkv, a->n1, w + at->qkv, N, C, (H + 2 * K) * D);
    k->residual_norm_backward(t->dx, dw + at->norm1, dn1, a->x1, a->rstd1, w + at->norm1, S, C);
}
