/* ranks: 8  builds: fp64 fp32 fp64-debug
 *
 * tiny-cp against a single device, on random configurations of cp and dp: ring, all-gather, all-to-all, and teams; both
 * layouts; causal rows, packed documents, windows, prefixes; fewer kv heads than ranks of a team; the shortest sequences
 * that can be cut; ranks without a label. Bytes sent and held equal the formulas. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "case.h"

/* The bound for step 1. In fp32 the results of blocks are rounded before they are merged. */
static const double FIRST = sizeof(acc) == 8 ? 1e-12 : 1e-4;

#ifdef DEBUG
enum { CASES = 42 }; /* fewer: debug builds are slow and compare every collective over its group */
#else
enum { CASES = 210 };
#endif

static void equals_single_device(void **state)
{
    (void)state;
    Random r = {.seed = 101};
    double gradient = 0, weight = 0;
    int ring = 0, teams = 0, shared = 0, window = 0, prefix = 0, pack = 0, shortest = 0, no_label = 0;
    for (int i = 0; i < CASES * testing_grid(); i++) {
        Case c = random_context_case(&r, i);
        Outcome out = check_case(&c, i, FIRST);
        gradient = fmax(gradient, out.gradient);
        weight = fmax(weight, out.weight);
        ring += c.cp > c.context.ulysses_size && strcmp(c.context.method, "allgather") != 0;
        teams += c.context.ulysses_size > 1 && c.context.ulysses_size < c.cp;
        shared += c.t.model.kv_heads < c.context.ulysses_size;
        window += c.t.window > 0;
        prefix += c.t.prefix > 0;
        pack += c.t.pack;
        shortest += c.t.seq == cut_multiple(context_cut(&c.context));
        no_label += c.t.ignore == 1;
    }
    printf("%d configurations (ring.c in %d, teams in %d, shared kv heads in %d, windows in %d, prefixes in %d, "
           "documents in %d, the "
           "shortest sequence in %d, no label in %d): gradients off by at most %.1e, weights after two steps by %.1e\n",
           CASES * testing_grid(), ring, teams, shared, window, prefix, pack, shortest, no_label, gradient, weight);
}

/* The last step of the ring, found row by row: which ranks hold the keys that a row of each rank sees? */
static int last_step_by_rows(Cut cut, int seq, Reach reach)
{
    int owner[256], n = cut.ranks / cut.sharers, last = 0;
    for (cut.rank = 0; cut.rank < cut.ranks; cut.rank++)
        for (int i = 0; i < seq / cut.ranks; i++) owner[cut_place(cut, seq, i)] = cut.rank / cut.sharers;
    for (int row = 0; row < seq; row++)
        for (int key = 0; key < seq; key++) {
            if (key < row - reach.back || key > row + reach.ahead) continue;
            int step = (owner[row] - owner[key] + n) % n;
            last = step > last ? step : last;
        }
    return last;
}

static void ring_ends_when_no_row_needs_more(void **state)
{
    (void)state;
    int shorter = 0;
    for (int ranks = 1; ranks <= 8; ranks++)
        for (int sharers = 1; sharers <= ranks; sharers++)
            for (int layout = 0; layout < 2 && ranks % sharers == 0; layout++) {
                Cut cut = {.ranks = ranks, .sharers = sharers, .layout = (Layout)layout};
                ContextOptions options = {
                    .cp = ranks, .ulysses_size = sharers, .layout = layout == LAYOUT_ZIGZAG ? "zigzag" : "contiguous"};
                int seq = 2 * cut_multiple(cut);
                for (int window = 0; window <= seq; window++)
                    for (int prefix = 0; prefix <= seq; prefix += prefix < 2 ? 1 : 3) {
                        DataOrder order = {.seq = seq, .window = window, .prefix = prefix};
                        int last = context_last_step(cut, seq, data_reach(order));
                        assert_int_equal(last, last_step_by_rows(cut, seq, data_reach(order)));
                        assert_int_equal(last, context_expected_last_step(&options, order));
                        shorter += last < ranks / sharers - 1;
                    }
            }
    assert_true(shorter > 50);
}

/* Blocks travel while a rank attends. Rank 0 sends its block only after rank 1 has begun to attend to its own; a method that
 * waits for the block first never ends. */
static Group *pair;

static void meet_rank_0(unsigned flags)
{
    if (group_rank(pair) == 1 && (flags & ATTENTION_FIRST)) comm_barrier(pair);
}

static void attend(real *out, acc *fold, acc *lse, const real *q, const real *k, const real *v, AttentionShape shape)
{
    (void)out, (void)fold, (void)lse, (void)q, (void)k, (void)v;
    meet_rank_0(shape.flags);
}

static void attend_backward(real *dq, acc *dq_fold, real *dk, real *dv, acc *dk_fold, acc *dv_fold, acc *dot,
                            const real *dout, const real *out, const acc *lse, const real *q, const real *k,
                            const real *v, AttentionShape shape)
{
    (void)dq, (void)dq_fold, (void)dk, (void)dv, (void)dk_fold, (void)dv_fold, (void)dot, (void)dout, (void)out;
    (void)lse, (void)q, (void)k, (void)v;
    meet_rank_0(shape.flags);
}

static void blocks_travel_meanwhile(void **state)
{
    (void)state;
#ifdef DEBUG
    skip(); /* a debug build waits for all ranks before a collective starts */
#endif
    enum { ROWS = 4, D = 2, BLOCK = 2 * ROWS * D };
    real qkv[ROWS * 3 * D] = {0}, out[ROWS * D] = {0}, dqkv[ROWS * 3 * D], kv[3 * BLOCK];
    acc lse[ROWS], dot[ROWS], dkv[3 * BLOCK];
    int id[2 * ROWS] = {0}, interval[ROWS] = {0};
    Queries q = {ROWS, 1, 1, D, qkv, qkv + D, qkv + 2 * D, 3 * D, interval, interval};
    pair = group_split(comm_world(), comm_world_rank() < 2 ? 0 : -1, "pair");
    ContextParallel c = {.kernels = kernels_cpu(),
                         .teams = first_ranks(2),
                         .cut = {.ranks = 2, .sharers = 1},
                         .seq = 2 * ROWS,
                         .reach = {.back = 2 * ROWS - 1},
                         .rows_max = ROWS,
                         .blocks = 1,
                         .id = id,
                         .kv = {kv, kv + 2 * BLOCK},
                         .dkv = {dkv, dkv + 2 * BLOCK}};
    c.kernels.attention_forward = attend;
    c.kernels.attention_backward = attend_backward;
    const Method methods[] = {method_ring, method_allgather};
    for (int m = 0; m < 2 && pair; m++) {
        if (group_rank(pair) == 0) comm_barrier(pair);
        methods[m].forward(&c, out, lse, &q);
        if (group_rank(pair) == 0) comm_barrier(pair);
        methods[m].backward(&c, dqkv, dot, out, out, lse, &q);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(blocks_travel_meanwhile),
    cmocka_unit_test(ring_ends_when_no_row_needs_more),
    cmocka_unit_test(equals_single_device),
};

TESTING_MAIN(tests)
