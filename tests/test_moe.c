/* ranks: 8  builds: fp64 fp32 fp64-debug fp32-san
 *
 * Experts on 1 to 8 ranks against the same model on a single device: losses, every gradient, weights, rows of each
 * expert and the router's bias; the bytes that ranks send and hold; and more rows than a rank has room for. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "capture.h"
#include "case.h"
#include "testing.h"

#if defined(PRECISION_FP64) && !defined(DEBUG)
enum { CASES = 216 };
#else
enum { CASES = 18 };              /* fewer: debug builds are slow, and the proof is that of fp64 */
#endif
#if defined(PRECISION_FP64)
static const double FIRST = 1e-12;
#else
static const double FIRST = 1e-4; /* near ties flip in fp32; the seeds below have none */
#endif

static void random_configurations(void **state)
{
    (void)state;
    Random r = {.seed = 91};
    double gradient = 0, weight = 0;
    int routers[2] = {0}, balances[4] = {0}, shared = 0, all_chosen = 0, single = 0, one = 0;
    for (int i = 0; i < CASES * testing_grid(); i++) {
        Case c = random_expert_case(&r, i);
        const MoeConfig *m = &c.t.model.moe;
        Outcome out = check_case(&c, i, FIRST);
        gradient = fmax(gradient, out.gradient);
        weight = fmax(weight, out.weight);
        routers[m->router]++;
        balances[m->balance]++;
        shared += c.t.model.ff > 0;
        all_chosen += m->top_k == m->experts;
        single += m->experts == 1;
        one += c.one_expert;
    }
    printf(
        "%d configurations (softmax %d, sigmoid %d; balance none %d, aux %d, seq-aux %d, bias %d; shared expert %d, k "
        "= experts %d, one expert %d, all rows to one %d): gradients off by at most %.1e, weights after two steps by "
        "%.1e\n",
        CASES * testing_grid(), routers[0], routers[1], balances[0], balances[1], balances[2], balances[3], shared,
        all_chosen, single, one, gradient, weight);
}

/* Each kind of case at least once, on the largest number of ranks. */
static Case corner(Random *r, int experts, int top_k, bool one_expert)
{
    Case c = random_expert_case(r, 2); /* ep 8 */
    c.t.model.moe.experts = experts;
    c.t.model.moe.top_k = top_k;
    c.experts.ep = experts < 8 ? experts : 8;
    c.dp = 8;
    c.t.ignore = 0.3;
    if (one_expert) c.t.model.moe.balance = BALANCE_BIAS;
    c.one_expert = one_expert;
    return c;
}

static void corners(void **state)
{
    (void)state;
    Random r = {.seed = 92};
    for (int round = 0; round < 3; round++) {
        Case cases[] = {corner(&r, 8, 1, true),    /* all rows to one expert, and seven experts without rows */
                        corner(&r, 16, 16, false), /* k = experts */
                        corner(&r, 1, 1, false),   /* one expert */
                        corner(&r, 2, 1, true),    /* two experts on eight ranks: four copies of each */
                        corner(&r, 16, 3, true)};
        for (int i = 0; i < 5; i++) check_case(&cases[i], 10 * round + i, FIRST);
    }
}

/* The same run twice, a rank that is slow, and gradients that are waited for at once: the same bits. */
static void same_bits(void **state)
{
    (void)state;
    Random r = {.seed = 93};
    for (int round = 0; round < 4; round++) {
        Case c = random_expert_case(&r, 1);
        Outcome first = run_case(&c, training_tokens()), again = run_case(&c, training_tokens());
        assert_together(first.bits == again.bits, "the same run twice");
        c.slow_rank = round % case_ranks(&c);
        again = run_case(&c, training_tokens());
        assert_together(first.bits == again.bits, "with a slow rank");
        c.slow_rank = -1;
        c.ddp.overlap = !c.ddp.overlap;
        again = run_case(&c, training_tokens());
        assert_together(first.bits == again.bits, "with overlap the other way");
    }
}

/* Replicas of experts along edp are compared, and a difference is named; so are dense parameters. */
static void replicas_are_compared(void **state)
{
    (void)state;
    static const char *const names[] = {"model.layers.0.mlp.experts.down_proj", "model.layers.0.mlp.gate.weight"};
    for (int i = 0; i < 2; i++)
        for (int copies = 1; copies <= 2; copies++) {
            Random r = {.seed = 94};
            Case c = random_expert_case(&r, 0); /* ep 2 */
            c.dp = 2 * copies;
            c.tampered = names[i];
            Outcome out = run_case(&c, training_tokens());
            bool seen = i == 1 || copies > 1; /* with ep 2 on two ranks nobody else has these experts */
            assert_together(out.replicas_equal == !seen && strcmp(out.unequal, seen ? names[i] : "") == 0,
                            "%d ranks, tampered %s: \"%s\" differs", c.dp, names[i], out.unequal);
        }
}

/* --- more rows than a rank has room for --- */

static jmp_buf before_plan;
static int job_ended; /* the status with which plan ended the job; -1: it returned */

static void end_job(int status)
{
    job_ended = status;
    longjmp(before_plan, 1);
}

/* Calls plan, and writes what it prints into text[size]. A plan that ends the job comes back here. */
static void call_plan(const ExpertSeam *seam, int layer, int *expert_first, const int *first, char *text, size_t size)
{
    capture_begin();
    int terminal = dup(STDERR_FILENO);
    CHECK(terminal >= 0 && dup2(STDOUT_FILENO, STDERR_FILENO) >= 0);
    error_join_job(comm_world_rank(), end_job);
    job_ended = -1;
    if (setjmp(before_plan) == 0) seam->plan(seam->self, layer, 0, expert_first, first);
    error_join_job(comm_world_rank(), comm_abort);
    CHECK(dup2(terminal, STDERR_FILENO) >= 0);
    close(terminal);
    capture_end(text, size);
}

/* Two ranks send all their 6 rows to an expert of rank 0, which has room for 9. Its plan must end the job, and say why. */
static void too_many_rows_are_refused(void **state)
{
    (void)state;
    enum { ROWS = 6 };
    Random r = {.seed = 95};
    Case c = random_expert_case(&r, 0); /* ep 2 */
    c.dp = 2;
    c.t.model.layers = 3; /* a plan without the check writes too many numbers for layer 1: into the memory of layer 2 */
    c.t.model.moe.experts = 4;
    c.t.model.moe.top_k = 1;
    c.experts.overlap = 0;
    c.experts.room = 1.5;
    const CaseGroups *g = case_groups(&c);
    int rank = g ? group_rank(g->of.ep) : 2, first[] = {0, 0, ROWS, ROWS, ROWS},
        expert_first[3]; /* all go to expert 1 */
    char text[400] = "";
    job_ended = -1;
    if (g) {
        Kernels kernels = kernels_cpu();
        ModelPart part = {.placement = {.by = SHARD_NOTHING, .ranks = 1, .tp = 1}};
        CHECK(!experts_place(&c.experts, &c.t.model, false, ROWS, &part));
        part.experts.ep_rank = rank;
        Model *model = model_create_part(&c.t.model, &kernels, ROWS, part);
        ExpertParallel parallel = experts_parallel(model, g->of.ep, ROWS);
        ExpertSeam seam = experts_seam(&parallel);
        call_plan(&seam, 1, expert_first, first, text, sizeof text);
        experts_free(&parallel);
        model_free(model);
    }
    const char *want = "--expert-room: layer 1: 12 rows arrive at this rank, and it has room for 9",
               *end = strchr(text, '\n');
    assert_together(rank != 0 || job_ended == 1,
                    "12 rows arrive, there is room for 9, and plan does not end the job with fatal()");
    assert_together(rank != 0 || (strstr(text, want) && end && !end[1]), "got \"%s\", want one line with \"%s\"", text,
                    want);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(random_configurations),
    cmocka_unit_test(corners),
    cmocka_unit_test(same_bits),
    cmocka_unit_test(replicas_are_compared),
    cmocka_unit_test(too_many_rows_are_refused),
};
TESTING_MAIN(tests)
