/* ranks: 1  builds: fp64 fp64-debug fp32-san
 *
 * A model with experts on one device: against the plain definition, and gradients of the loss with its auxiliary losses
 * against finite differences. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/memory.h"
#include "model/model.h"
#include "testing.h"

static ModelConfig random_moe(Random *r, int seq)
{
    ModelConfig c = random_model(r, seq);
    random_experts(r, &c, 1);
    return c;
}

static Model *create(const ModelConfig *c, const Kernels *kernels, int sequences, int seq, ModelPart part)
{
    Model *m = model_create_part(c, kernels, sequences * seq, part);
    params_init(&m->params, kernels, 5);
    router_share(m, NULL, sequences, seq);
    model_zero_grads(m);
    return m;
}

/* --- the plain definition: every row through every expert, by three loops --- */

static double dot(const real *a, const real *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* y[C] adds w * down(silu(gate x) up x) */
static void add_feed_forward(double *y, double w, const real *x, const real *gate_up, const real *down, int C, int F)
{
    double *h = malloc(((size_t)F + 1) * sizeof *h);
    for (int f = 0; f < F; f++) {
        double gate = dot(gate_up + (size_t)f * C, x, C), up = dot(gate_up + (size_t)(F + f) * C, x, C);
        h[f] = gate / (1 + exp(-gate)) * up;
    }
    for (int c = 0; c < C; c++)
        for (int f = 0; f < F; f++) y[c] += w * h[f] * (double)down[(size_t)c * F + f];
    free(h);
}

/* How good expert e is for the row: the number of experts that are chosen before it. */
static int place_of(const double *value, int E, int e)
{
    int better = 0;
    for (int f = 0; f < E; f++) better += value[f] > value[e] || (value[f] == value[e] && f < e);
    return better;
}

static void plain_row(const Model *m, int l, const real *x, double *y)
{
    const ModelConfig *c = &m->config;
    int C = c->width, E = c->moe.experts, F = c->moe.ff;
    const real *w = m->params.unit[1 + l].weights, *experts = m->experts.unit[1 + l].weights;
    double score[64], value[64], total = 0, chosen = 0;
    for (int e = 0; e < E; e++) {
        double logit = dot(w + m->layout.router + (size_t)e * C, x, C);
        score[e] = c->moe.router == ROUTER_SIGMOID ? 1 / (1 + exp(-logit)) : exp(logit);
        total += score[e];
    }
    for (int e = 0; e < E; e++) {
        if (c->moe.router == ROUTER_SOFTMAX) score[e] /= total;
        value[e] = score[e] + (m->router.bias ? (double)m->router.bias[(size_t)l * E + e] : 0);
    }
    for (int e = 0; e < E; e++)
        if (place_of(value, E, e) < c->moe.top_k) chosen += score[e];
    memset(y, 0, (size_t)C * sizeof *y);
    for (int e = 0; e < E; e++)
        if (place_of(value, E, e) < c->moe.top_k)
            add_feed_forward(y, c->moe.renormalize ? score[e] / chosen : score[e], x,
                             experts + m->layout.expert_gate_up + (size_t)e * 2 * F * C,
                             experts + m->layout.expert_down + (size_t)e * C * F, C, F);
    if (c->ff) add_feed_forward(y, 1, x, w + m->layout.gate_up, w + m->layout.down, C, c->ff);
}

static void equals_the_plain_definition(void **state)
{
    (void)state;
    Random r = {.seed = 31};
    Kernels kernels = kernels_cpu();
    const double bound = sizeof(real) == 8 ? 1e-12 : 1e-4;
    int biased = 0; /* rounds in which the last layer's bias matters: some experts are not chosen */
    for (int round = 0; round < 60; round++) {
        int seq = random_int(&r, 1, 9), sequences = random_int(&r, 1, 3);
        ModelConfig c = random_model(&r, seq);
        random_experts(&r, &c, random_int(&r, 1, 4));
        Rows rows = random_rows(&r, sequences, seq, c.vocab, 0);
        ModelPart part = {.expert_chunks = random_int(&r, 1, 2), .recompute = random_int(&r, 0, 1)};
        Model *m = create(&c, &kernels, sequences, seq, part);
        for (int i = 0; m->router.bias && i < c.layers * c.moe.experts; i++)
            m->router.bias[i] = (acc)(0.1 * random_real(&r));
        biased += m->router.bias && c.moe.top_k < c.moe.experts && c.layers > 1;
        loss_of(m, &rows);
        int l = c.layers - 1;
        const real *adds = m->activations->delta; /* of the last layer */
        double y[32], worst = 0, largest = 0;
        for (int i = 0; i < rows.count; i++) {
            plain_row(m, l, m->activations->layer[l].n2 + (size_t)i * c.width, y);
            for (int k = 0; k < c.width; k++) {
                worst = fmax(worst, fabs(y[k] - (double)adds[(size_t)i * c.width + k]));
                largest = fmax(largest, fabs(y[k]));
            }
        }
        if (!(worst <= bound * largest)) fail_msg("round %d: off by %.1e of %.1e", round, worst, largest);
        model_free(m);
        rows_free_host(&rows);
    }
    assert_in_range(biased, 5, 60);
}

/* The auxiliary losses of one micro-step of `steps`, by their definitions in balance.c. */
static double plain_aux(const Model *m, int sequences, int seq, int steps)
{
    const MoeConfig *c = &m->config.moe;
    int L = m->config.layers, E = c->experts, k = c->top_k, rows = sequences * seq;
    double f[64] = {0}, P[64] = {0}, sequence_loss = 0, z = 0, aux = 0;
    for (int l = 0; l < L; l++)
        for (int s = 0; s < sequences; s++) {
            double chosen[64] = {0}, scores[64] = {0};
            for (int i = s * seq; i < (s + 1) * seq; i++) {
                const real *logit = m->activations->layer[l].moe.logits + (size_t)i * E;
                double total = 0, exponentials = 0;
                for (int e = 0; e < E; e++) {
                    double exponential = exp((double)logit[e]);
                    exponentials += exponential;
                    total += c->router == ROUTER_SIGMOID ? 1 / (1 + 1 / exponential) : exponential;
                }
                z += log(exponentials) * log(exponentials);
                for (int e = 0; e < E; e++) {
                    double exponential = exp((double)logit[e]);
                    scores[e] += (c->router == ROUTER_SIGMOID ? 1 / (1 + 1 / exponential) : exponential) / total;
                }
                for (int j = 0; j < k; j++) chosen[m->activations->layer[l].moe.choice[i * k + j]]++;
            }
            for (int e = 0; e < E; e++) {
                f[e] += chosen[e] / (L * rows);
                P[e] += scores[e] / (L * rows);
                sequence_loss += (double)E / k * (chosen[e] / seq) * (scores[e] / seq);
            }
        }
    for (int e = 0; e < E && c->balance == BALANCE_AUX; e++) aux += c->aux_coef * E * f[e] * P[e] / steps;
    if (c->balance == BALANCE_SEQ_AUX) aux = c->aux_coef * sequence_loss / sequences / steps;
    return aux + c->z_coef * z / rows / steps;
}

static void auxiliary_losses_are_those_of_their_definitions(void **state)
{
    (void)state;
    Random r = {.seed = 36};
    Kernels kernels = kernels_cpu();
    const double bound = sizeof(real) == 8 ? 1e-12 : 1e-5;
    for (int round = 0; round < 40; round++) {
        enum { STEPS = 3 };
        int seq = random_int(&r, 1, 9), sequences = random_int(&r, 1, 3);
        ModelConfig c = random_moe(&r, seq);
        c.moe.balance = (BalanceKind)(round % 4);
        c.moe.z_coef = round % 3 ? 0 : 0.03;
        Model *m = create(&c, &kernels, sequences, seq, (ModelPart){0});
        double want = 0;
        for (int step = 0; step < STEPS; step++) {
            Rows rows = random_rows(&r, sequences, seq, c.vocab, 0);
            model_begin(m, step, STEPS);
            model_forward(m, m->activations, &rows);
            model_loss(m, m->activations, 1);
            want += plain_aux(m, sequences, seq, STEPS);
            model_backward(m, m->activations);
            rows_free_host(&rows);
        }
        double got = model_read_aux(m);
        if (!(fabs(got - want) <= bound * fabs(want)))
            fail_msg("round %d, balance %d, z %g: %.15g instead of %.15g", round, round % 4, c.moe.z_coef, got, want);
        model_free(m);
    }
}

/* --- gradients --- */

static double objective(Model *m, const Rows *rows)
{
    double loss = loss_of(m, rows);
    m->kernels.fill(m->router.aux_sum, 0, sizeof *m->router.aux_sum);
    model_backward(m, m->activations); /* the auxiliary losses are computed there */
    return loss + model_read_aux(m);
}

static void check_parameters(Model *m, const Rows *rows, int round)
{
    for (const Params *p = &m->params; p; p = p->next) {
        model_zero_grads(m);
        objective(m, rows);
        acc *exact = malloc(p->count * sizeof *exact);
        memcpy(exact, p->grads, p->count * sizeof *exact);
        for (int n = 0; n < p->views; n++)
            for (size_t i = 0; i < p->view[n].size; i += 1 + p->view[n].size / 5) {
                real *w = &p->weights[p->view[n].offset + i], keep = *w;
                const double h = 1e-4, place[4] = {-2, -1, 1, 2};
                double value[4], want = (double)exact[p->view[n].offset + i];
                for (int k = 0; k < 4; k++) {
                    *w = (real)((double)keep + place[k] * h);
                    value[k] = objective(m, rows);
                }
                *w = keep;
                double numeric = (value[0] - 8 * value[1] + 8 * value[2] - value[3]) / (12 * h);
                if (fabs(numeric - want) > 1e-6 * fmax(1, fabs(want)))
                    fail_msg("round %d, %s[%zu]: backward %.12g, differences %.12g", round, p->view[n].name, i, want,
                             numeric);
            }
        free(exact);
    }
}

/* The choices of experts do not change under so small differences, unless two scores are almost equal; then another
 * seed is needed. */
static void finite_differences(void **state)
{
    (void)state;
    if (sizeof(real) != sizeof(double)) return;
    Random r = {.seed = 32};
    Kernels kernels = kernels_cpu();
    for (int round = 0; round < 16; round++) {
        int seq = random_int(&r, 2, 8), sequences = random_int(&r, 1, 3);
        ModelConfig c = random_moe(&r, seq);
        c.moe.balance = (BalanceKind)(round % 4);
        if (round % 5 == 4) c.moe.capacity = 0.8;
        Rows rows = random_rows(&r, sequences, seq, c.vocab, (unsigned)round);
        Model *m = create(&c, &kernels, sequences, seq, (ModelPart){.expert_chunks = 1 + round % 2});
        check_parameters(m, &rows, round);
        model_free(m);
        rows_free_host(&rows);
    }
}

/* Recomputing, and sending rows in two chunks, change neither loss nor gradients nor counts. */
static void recompute_and_chunks(void **state)
{
    (void)state;
    Random r = {.seed = 33};
    Kernels kernels = kernels_cpu();
    for (int round = 0; round < 20; round++) {
        int seq = random_int(&r, 1, 9), sequences = random_int(&r, 1, 3);
        ModelConfig c = random_moe(&r, seq);
        if (round % 3 == 0) c.moe.capacity = 0.7; /* of a chunk: with one chunk only */
        Rows rows = random_rows(&r, sequences, seq, c.vocab, 0);
        Model *m[2];
        for (int i = 0; i < 2; i++) {
            ModelPart part = {.recompute = i, .expert_chunks = c.moe.capacity == 0 ? 1 + i : 1};
            m[i] = create(&c, &kernels, sequences, seq, part);
            objective(m[i], &rows);
        }
        const double bound = sizeof(real) == 8 ? 1e-12 : 1e-4;
        const Params *b = &m[1]->params;
        for (const Params *a = &m[0]->params; a; a = a->next, b = b->next)
            assert_true(error_of(a->grads, b->grads, a->count) <= bound);
        assert_memory_equal(m[0]->router.total, m[1]->router.total, router_table_size(m[0]) * sizeof(int64_t));
        assert_true(fabs(model_read_aux(m[0]) - model_read_aux(m[1])) <= bound);
        model_free(m[0]);
        model_free(m[1]);
        rows_free_host(&rows);
    }
}

/* --- the router --- */

static void ties_go_to_the_lower_number(void **state)
{
    (void)state;
    const real logits[2][5] = {{1, 3, 3, 1, 3}, {0, 0, 0, 0, 0}};
    int choice[2][4];
    acc weight[2][4];
    for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
        kernels_cpu().router_forward(&choice[0][0], &weight[0][0], &logits[0][0], NULL, NULL,
                                     (RouterShape){2, 5, 4, sigmoid, true});
        const int want[2][4] = {{1, 2, 4, 0}, {0, 1, 2, 3}};
        assert_memory_equal(choice, want, sizeof want);
        for (int j = 0; j < 4; j++) assert_true(fabs((double)weight[1][j] - 0.25) < 1e-6);
    }
}

/* The bias moves by the rate, towards experts with fewer rows than the mean, and stays for those that have the mean. */
static void bias_follows_the_counts(void **state)
{
    (void)state;
    Random r = {.seed = 34};
    Kernels kernels = kernels_cpu();
    ModelConfig c = random_model(&r, 4);
    c.ff = 0;
    c.moe = (MoeConfig){.experts = 4, .top_k = 1, .ff = 3, .balance = BALANCE_BIAS, .bias_rate = 0.25};
    Model *m = create(&c, &kernels, 1, 4, (ModelPart){0});
    const int64_t counts[5] = {7, 4, 5, 4, 2}; /* the mean is 5; 2 were dropped */
    for (int l = 0; l < c.layers; l++) {
        memcpy(m->router.total + l * 5, counts, sizeof counts);
    }
    router_end_step(m);
    for (int l = 0; l < c.layers; l++) {
        const acc want[4] = {(acc)-0.25, (acc)0.25, 0, (acc)0.25};
        assert_memory_equal(m->router.bias + l * 4, want, sizeof want);
        assert_memory_equal(m->router.load + l * 5, counts, sizeof counts);
    }
    model_free(m);
}

/* Choices past an expert's capacity are dropped: the first rows stay, and the dropped ones add nothing. */
static void capacity_drops_the_last_rows(void **state)
{
    (void)state;
    const int choice[4][2] = {{0, 1}, {0, 2}, {0, 1}, {2, 0}};
    int slot[4][2], first[4];
    int64_t count[4] = {0};
    kernels_cpu().expert_slots(&slot[0][0], first, count, &choice[0][0], 4, 2, 3, 2);
    const int want[4][2] = {{0, 2}, {1, 4}, {-1, 3}, {5, -1}}, want_first[4] = {0, 2, 4, 6};
    const int64_t want_count[4] = {4, 2, 2, 2};
    assert_memory_equal(slot, want, sizeof want);
    assert_memory_equal(first, want_first, sizeof want_first);
    assert_memory_equal(count, want_count, sizeof want_count);
}

/* An expert takes at most F S k / E rows, rounded up. What the model counts as dropped is what more rows chose. */
static void capacity_is_a_share_of_the_rows(void **state)
{
    (void)state;
    Random r = {.seed = 37};
    Kernels kernels = kernels_cpu();
    const double factors[] = {0.25, 0.5, 1, 1.5}; /* exact in binary: F S k / E is rounded once */
    for (int round = 0; round < 20; round++) {
        int seq = random_int(&r, 1, 9), sequences = random_int(&r, 1, 3);
        ModelConfig c = random_model(&r, seq);
        random_experts(&r, &c, random_int(&r, 1, 4));
        c.moe.capacity = factors[round % 4];
        Rows rows = random_rows(&r, sequences, seq, c.vocab, 0);
        Model *m = create(&c, &kernels, sequences, seq, (ModelPart){0});
        loss_of(m, &rows);
        int E = c.moe.experts;
        int64_t most = (int64_t)ceil(c.moe.capacity * rows.count * c.moe.top_k / E);
        for (int l = 0; l < c.layers; l++) {
            const int64_t *chosen = m->router.total + (size_t)l * (size_t)(E + 1);
            int64_t dropped = 0;
            for (int e = 0; e < E; e++) dropped += chosen[e] > most ? chosen[e] - most : 0;
            assert_int_equal(chosen[E], dropped);
        }
        model_free(m);
        rows_free_host(&rows);
    }
}

static void memory_is_the_formula(void **state)
{
    (void)state;
    Random r = {.seed = 35};
    Kernels kernels = kernels_cpu();
    for (int round = 0; round < 20; round++) {
        ModelConfig c = random_moe(&r, random_int(&r, 1, 40));
        size_t n = (size_t)random_int(&r, 1, 60), chunks = (size_t)random_int(&r, 1, 2);
        bool recompute = round % 2;
        Model *m =
            model_create_part(&c, &kernels, (int)n, (ModelPart){.recompute = recompute, .expert_chunks = (int)chunks});
        assert_int_equal(memory_held(MEMORY_ACTIVATIONS), model_activation_bytes(&c, n, recompute, 1) +
                                                              moe_activation_bytes(&c, n, 1, 0, chunks, recompute));
        assert_int_equal(memory_held(MEMORY_PARAMETERS), (m->params.count + m->experts.count) * sizeof(real));
        model_free(m);
        assert_int_equal(memory_total(), 0);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(equals_the_plain_definition),  cmocka_unit_test(auxiliary_losses_are_those_of_their_definitions),
    cmocka_unit_test(finite_differences),           cmocka_unit_test(recompute_and_chunks),
    cmocka_unit_test(ties_go_to_the_lower_number),  cmocka_unit_test(bias_follows_the_counts),
    cmocka_unit_test(capacity_drops_the_last_rows), cmocka_unit_test(capacity_is_a_share_of_the_rows),
    cmocka_unit_test(memory_is_the_formula),
};
TESTING_MAIN(tests)
