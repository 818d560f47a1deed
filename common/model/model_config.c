#include "model/model_config.h"

#include "base/error.h"
#include "base/precision.h"

size_t model_matmul_weights(const ModelConfig *c)
{
    size_t C = (size_t)c->width, D = (size_t)c->head_dim, H = (size_t)c->heads, K = (size_t)c->kv_heads;
    size_t layer = (H + 2 * K) * D * C + C * H * D + 3 * C * (size_t)c->ff;
    layer += C * (size_t)c->moe.experts + 3 * C * (size_t)(c->moe.top_k * c->moe.ff);
    return (size_t)c->layers * layer + (size_t)c->vocab * C;
}

double model_flops(const ModelConfig *c, int64_t rows, int64_t area)
{
    double attention = 12.0 * c->layers * c->heads * c->head_dim * (double)area;
    return 6.0 * (double)model_matmul_weights(c) * (double)rows + attention;
}

size_t model_activation_bytes(const ModelConfig *c, size_t rows, bool recompute, size_t stream_parts)
{
    size_t C = (size_t)c->width, D = (size_t)c->head_dim, H = (size_t)c->heads, K = (size_t)c->kv_heads;
    size_t F = (size_t)c->ff, V = (size_t)c->vocab, L = (size_t)c->layers, stream = rows / stream_parts;
    size_t fed = c->moe.experts ? stream : rows; /* rows of the feed-forward; with experts, of the shared expert */
    size_t qkv = (H + 2 * K) * D, raw = c->qk_norm ? (H + K) * D : 0, raw_rstd = c->qk_norm ? H + K : 0;
    /* kept for the backward pass: `input` is x1; `layer` is n1, x2, n2, rstd1, rstd2, and qkv, raw, attended,
     * gate_up, hidden, lse, raw_rstd */
    size_t input = stream * C * sizeof(real);
    size_t layer = stream * (3 * C * sizeof(real) + 2 * sizeof(acc)) +
                   rows * ((qkv + raw + H * D) * sizeof(real) + (H + raw_rstd) * sizeof(acc)) +
                   fed * 3 * F * sizeof(real);
    /* outside the layers: embedded, delta, logits, loss; x_final, n_final, rstd_final */
    size_t head = rows * ((2 * C + V) * sizeof(real) + sizeof(acc)) + stream * (2 * C * sizeof(real) + sizeof(acc));
    /* scratch that the layers' backward passes use in turn: dx; dn, dqkv, dattended, dgate_up, dhidden, dot */
    size_t backward = stream * C * sizeof(real) + rows * ((C + qkv + H * D) * sizeof(real) + H * sizeof(acc)) +
                      fed * 3 * F * sizeof(real);
    return L * input + (recompute ? 1 : L) * layer + head + backward + (size_t)c->max_seq * D * sizeof(acc) +
           sizeof(double);
}

size_t moe_activation_bytes(const ModelConfig *c, size_t rows, size_t ep, size_t expert_rows, size_t chunks,
                            bool recompute)
{
    size_t C = (size_t)c->width, F = (size_t)c->moe.ff, E = (size_t)c->moe.experts, k = (size_t)c->moe.top_k;
    size_t L = (size_t)c->layers, room = ep > 1 ? chunks * expert_rows : rows * k;
    if (E == 0) return 0;
    /* kept: logits, results; weight; choice, slot; x, gate_up, hidden; first, expert_first */
    size_t layer = rows * ((E + k * C) * sizeof(real) + k * sizeof(acc) + 2 * k * sizeof(int)) +
                   room * (C + 3 * F) * sizeof(real) + chunks * (E + 1 + E / ep + 1) * sizeof(int);
    /* scratch: slots, dlogits, dweight, aux; expert_rows if rows travel; dexpert_gate_up, dexpert_hidden; slope */
    size_t scratch = rows * ((k * C + E) * sizeof(real) + (k + 1) * sizeof(acc)) +
                     room * ((ep > 1 ? C : 0) + 3 * F) * sizeof(real) +
                     (c->moe.balance == BALANCE_SEQ_AUX ? rows : 1) * E * sizeof(acc);
    size_t bias = c->moe.balance == BALANCE_BIAS ? L * E * sizeof(acc) : 0;
    return (recompute ? 1 : L) * layer + scratch + 3 * L * (E + 1) * sizeof(int64_t) + bias + sizeof(double);
}

ModelConfig model_config_slice(const ModelConfig *whole, int tp)
{
    ModelConfig c = *whole;
    if (tp <= 1) return c;
    c.heads /= tp;
    c.kv_heads = c.kv_heads < tp ? 1 : c.kv_heads / tp;
    if (!c.moe.experts) c.ff /= tp;
    c.vocab = (c.vocab + tp - 1) / tp;
    return c;
}

const char *model_config_check_slice(const ModelConfig *c, int tp)
{
    if (c->heads % tp) return complain("--tp %d: must divide the model's heads, %d", tp, c->heads);
    if (c->kv_heads % tp && tp % c->kv_heads)
        return complain("--tp %d: must divide the model's kv heads, %d, or be a multiple of them", tp, c->kv_heads);
    if (!c->moe.experts && c->ff % tp) return complain("--tp %d: must divide the feed-forward width, %d", tp, c->ff);
    return NULL;
}
