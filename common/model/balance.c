/* Balance of experts. A router that is left alone sends most rows to few experts. Three remedies:
 *
 *   aux       the loss adds  coef E sum_e f_e P_e / A.  f_e: choices of expert e for each row, P_e: the mean of its score
 *             divided by the sum of the row's scores; both over the rows of a micro-step on all ranks, and over all layers
 *             together: experts number e of all layers count as one (Fedus et al., "Switch Transformers", 2021; this form
 *             is that of Mixtral's code). f_e is a constant in the gradient.
 *   seq-aux   the same in each layer and sequence, f_e divided by k; the sum over layers, the mean over the sequences of
 *             the step (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024)
 *   bias      no loss: a bias is added to an expert's score when experts are chosen. After each step it rises by bias_rate
 *             if fewer rows chose the expert than the mean, and falls if more did (Wang et al., "Auxiliary-Loss-Free Load
 *             Balancing Strategy for Mixture-of-Experts", 2024).
 *
 * The z-loss keeps logits small: the mean over the step's rows of (log sum exp)^2, summed over layers (Zoph et al.,
 * "ST-MoE", 2022).
 *
 * Counts are integers, summed over the ranks once in each micro-step, after its forward pass. A recomputed forward pass
 * counts this rank's rows again, but leaves the sums as they are.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/error.h"
#include "comm/comm.h"
#include "model/model.h"

size_t router_table_size(const Model *m)
{
    return (size_t)m->config.layers * (size_t)(m->config.moe.experts + 1);
}

void router_share(Model *m, Group *group, double sequences, int seq)
{
    m->router.group = group;
    m->router.sequences = sequences;
    m->router.seq = seq;
    m->router.rows = sequences * seq;
}

void router_count(Model *m)
{
    Router *r = &m->router;
    size_t size = router_table_size(m);
    if (!m->config.moe.experts) return;
    m->kernels.copy(r->summed, r->count, size * sizeof *r->count);
    if (r->group && !BUG(balance_of_my_rows)) comm_all_reduce(r->group, r->summed, size, COMM_INT64, COMM_SUM);
    m->kernels.add_counts(r->total, r->summed, (int)size);
}

const acc *router_slope(Model *m, const MoeKept *kept, int rows, int *group_rows)
{
    const MoeConfig *c = &m->config.moe;
    const Router *r = &m->router;
    double E = c->experts, A = m->micro_step.count, L = m->config.layers;
    acc *slope = m->scratch.slope;
    *group_rows = rows;
    if (c->balance == BALANCE_AUX) {
        double means = 1 / (L * r->rows); /* f and P are means over so many rows */
        double here = r->group && BUG(balance_of_my_rows) ? group_size(r->group) : 1;
        m->kernels.count_slope(slope, r->summed, m->config.layers, c->experts,
                               c->aux_coef * E / A * means * means * here);
        return slope;
    }
    if (c->balance == BALANCE_SEQ_AUX) {
        *group_rows = r->seq;
        double factor = c->aux_coef * E / (c->top_k * (double)r->seq) / r->seq / (A * r->sequences);
        m->kernels.sequence_slope(slope, kept->choice, rows, c->top_k, c->experts, r->seq, factor);
        return slope;
    }
    return NULL;
}

void router_end_step(Model *m)
{
    const MoeConfig *c = &m->config.moe;
    Router *r = &m->router;
    size_t size = router_table_size(m), E = (size_t)c->experts;
    if (!E) return;
    int64_t *total = malloc(size * sizeof *total);
    if (!total) fatal("out of memory");
    m->kernels.download(total, r->total, size * sizeof *total);
    for (size_t i = 0; i < size; i++) r->load[i] += total[i];
    if (r->bias) {
        size_t count = (size_t)m->config.layers * E;
        acc *bias = malloc(count * sizeof *bias);
        if (!bias) fatal("out of memory");
        m->kernels.download(bias, r->bias, count * sizeof *bias);
        for (size_t l = 0; l < (size_t)m->config.layers; l++) {
            const int64_t *chosen = total + l * (E + 1);
            int64_t all = 0;
            for (size_t e = 0; e < E; e++) all += chosen[e];
            for (size_t e = 0; e < E; e++) { /* chosen by fewer rows than the mean, all / E? */
                int64_t below = all - chosen[e] * (int64_t)E;
                bias[l * E + e] += (acc)(c->bias_rate * (double)((below > 0) - (below < 0)));
            }
        }
        m->kernels.upload(r->bias, bias, count * sizeof *bias);
        free(bias);
    }
    free(total);
}

double model_read_aux(Model *m)
{
    double aux = 0;
    if (!m->config.moe.experts) return 0;
    m->kernels.download(&aux, m->router.aux_sum, sizeof aux);
    if (m->router.group) comm_all_reduce(m->router.group, &aux, 1, COMM_DOUBLE, COMM_SUM);
    return aux;
}
