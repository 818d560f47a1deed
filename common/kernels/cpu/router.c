/* The router of a mixture of experts: scores, the k best of them, and the losses that keep the experts balanced. */
#include <math.h>
#include <string.h>

#include "cpu.h"

/* The scores of one row, and log sum exp of its logits. */
static double scores(double *score, const real *logits, RouterShape s)
{
    double top = (double)logits[0], total = 0;
    for (int e = 1; e < s.experts; e++) top = fmax(top, (double)logits[e]);
    for (int e = 0; e < s.experts; e++) total += score[e] = exp((double)logits[e] - top);
    for (int e = 0; e < s.experts; e++) score[e] = s.sigmoid ? 1 / (1 + exp(-(double)logits[e])) : score[e] / total;
    return top + log(total);
}

void router_forward(int *choice, acc *weight, const real *logits, const acc *bias, const int *forced, RouterShape s)
{
#pragma omp parallel for
    for (int i = 0; i < s.rows; i++) {
        double score[EXPERTS_MAX], value[EXPERTS_MAX], total = 0;
        bool chosen[EXPERTS_MAX] = {false};
        scores(score, logits + (size_t)i * s.experts, s);
        for (int e = 0; e < s.experts; e++) value[e] = (double)(acc)score[e] + (bias ? (double)bias[e] : 0);
        for (int j = 0; j < s.top_k; j++) {
            int best = 0; /* as k <= E, one of the rest is better than an expert that is chosen */
            for (int e = 1; e < s.experts; e++)
                if (!chosen[e] && (chosen[best] || value[e] > value[best])) best = e;
            if (forced) best = forced[(size_t)i * s.top_k + j];
            chosen[best] = true;
            choice[(size_t)i * s.top_k + j] = best;
            total += score[best];
        }
        for (int j = 0; j < s.top_k; j++) {
            size_t at = (size_t)i * s.top_k + j;
            weight[at] = (acc)(score[choice[at]] / (s.renormalize ? total : 1));
        }
    }
}

/* With weights w_j = s_j / Z, Z the sum over the chosen experts:  ds_j = (dw_j - sum_l w_l dw_l) / Z.  The same rule turns the
 * gradient of p = s / (sum of all s) into that of s. */
void router_backward(real *dlogits, acc *aux, const acc *dweight, const real *logits, const int *choice,
                     const acc *weight, const acc *slope, int group_rows, double z, RouterShape s)
{
    int E = s.experts, k = s.top_k;
#pragma omp parallel for
    for (int i = 0; i < s.rows; i++) {
        const real *row = logits + (size_t)i * E;
        const acc *dw = dweight + (size_t)i * k, *w = weight + (size_t)i * k;
        const int *chosen = choice + (size_t)i * k;
        const acc *slope_of_row = slope ? slope + (size_t)(i / group_rows) * E : NULL;
        double score[EXPERTS_MAX], dscore[EXPERTS_MAX] = {0}, all = 0, lse = scores(score, row, s),
                                   loss = z * lse * lse;
        for (int e = 0; e < E; e++) all += score[e];
        if (slope_of_row) {
            double mean = 0; /* sum_e slope_e p_e */
            for (int e = 0; e < E; e++) mean += (double)slope_of_row[e] * score[e] / all;
            for (int e = 0; e < E; e++) dscore[e] = ((double)slope_of_row[e] - mean) / all;
            loss += mean;
        }
        double total = 0, mean = 0;
        for (int j = 0; j < k; j++) {
            total += score[chosen[j]];
            mean += (double)w[j] * (double)dw[j];
        }
        for (int j = 0; j < k; j++) dscore[chosen[j]] += s.renormalize ? ((double)dw[j] - mean) / total : (double)dw[j];

        double sum = 0; /* of the softmax's gradient: dlogit_e = s_e (ds_e - sum_f s_f ds_f) */
        for (int e = 0; e < E; e++) sum += score[e] * dscore[e];
        for (int e = 0; e < E; e++) {
            double d = s.sigmoid ? score[e] * (1 - score[e]) * dscore[e] : score[e] * (dscore[e] - sum);
            dlogits[(size_t)i * E + e] = (real)(d + 2 * z * lse * exp((double)row[e] - lse));
        }
        aux[i] = (acc)loss;
    }
}

void count_slope(acc *slope, const int64_t *count, int layers, int experts, double factor)
{
    for (int e = 0; e < experts; e++) {
        int64_t total = 0;
        for (int l = 0; l < layers; l++) total += count[l * (experts + 1) + e];
        slope[e] = (acc)(factor * (double)total);
    }
}

void sequence_slope(acc *slope, const int *choice, int n, int k, int experts, int seq, double factor)
{
#pragma omp parallel for
    for (int s = 0; s < n / seq; s++) {
        int count[EXPERTS_MAX] = {0};
        for (int c = 0; c < seq * k; c++) count[choice[(size_t)s * seq * k + c]]++;
        for (int e = 0; e < experts; e++) slope[(size_t)s * experts + e] = (acc)(factor * count[e]);
    }
}

void add_counts(int64_t *sum, const int64_t *x, int n)
{
    for (int i = 0; i < n; i++) sum[i] += x[i];
}
