/* Context parallelism: each rank along cp holds some of the rows of every sequence. All operations but attention work
 * row by row, so only attention needs data of other ranks.
 *
 * Why: the activations of one long sequence do not fit on one device, and attention's work grows with its square.
 *
 * Invariant: after attention, a row has attended to all keys that its interval allows, whichever rank held them. The
 * model's other operations never see that a sequence is cut.
 *
 * Three ways to bring queries to keys (N rows of this rank, H heads and K kv heads of size D, as in kernels.h):
 *
 *   ring        keys and values travel round the ranks. While a rank folds one block into its result, the next block is
 *               on its way. In the backward pass the gradients of a block travel behind it, and come home at the end.
 *   allgather   each rank gathers all keys and values, and keeps its queries. The gradients of keys and values are
 *               reduce-scattered. Simple, and cheap where K is much smaller than H.
 *   ulysses     an all-to-all turns "all heads of some rows" into "some heads of all rows"; another one turns the result
 *               back. Each rank computes ordinary attention for its heads.
 *
 * Teams join them: --ulysses-size U neighbouring ranks form a team that exchanges rows for heads; ring or allgather runs
 * between the R = cp / U teams, on the group "cp": one rank of each team. --method ulysses is one team. A team has
 * M = U N rows; each of its ranks attends for h = H / U heads and k = max(K / U, 1) kv heads of all of them.
 *
 * Communication per layer and micro-step and rank; w = sizeof(real), g = sizeof(acc). The ring has the steps 0 to S, with
 * S = R - 1, or less under a sliding window with the contiguous layout. In a group of G ranks a rank sends (G-1)/G of the
 * size of an all-gather, reduce-scatter or all-to-all; a send_receive is sent whole.
 *
 *   U > 1       forward 2 all-to-alls: M (h + 2k) D w and M h D w. Backward 4: M (h + 2k) D w twice, M h D w twice.
 *   ring        forward S send_receives of 2 M k D w. Backward S of 2 M k D w and, if S > 0, S + 1 of 2 M k D g.
 *   allgather   forward an all-gather of 2 R M k D w. Backward the same, and a reduce-scatter of 2 R M k D g.
 *               --recompute: the forward pass's communication a second time.
 *
 * Communication per step: gradients are summed over cp and dp together, by tiny-ddp's module.
 *
 * Memory per rank: activations of 1 / cp of the rows; the model and its gradients whole. Buffers:
 *
 *   ring        two blocks of keys and values, 4 M k D w; two of their gradients, 4 M k D g; the fold, M h D g
 *   allgather   2 (R + 1) M k D w; 2 (R + 1) M k D g; the fold
 *   U > 1       M (h + 2k) D w to send, M (3h + 2k) D w to receive; N D g if K < U
 *   cp > 1      the ids of the rows of all ranks, cp N int
 *
 * Methods: Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023; Jacobs et al.,
 * "DeepSpeed Ulysses", 2023; Fang and Zhao, "USP: A Unified Sequence Parallelism Approach", 2024, for teams; "The Llama 3
 * Herd of Models", 2024, for all-gather.
 */
#pragma once

#include "base/options.h"
#include "comm/mesh.h"
#include "data/batch.h"
#include "model/model.h"
#include "observe/ledger.h"

typedef struct {
    long cp;            /* ranks that share each sequence; 0: all ranks */
    const char *method; /* ring, ulysses, allgather */
    const char *layout; /* zigzag, contiguous */
    long ulysses_size;  /* U; 0: cp with --method ulysses, else 1 */
} ContextOptions;

/* The groups along cp. */
typedef struct {
    Group *team;  /* this rank's team; its ranks are neighbours */
    Group *teams; /* R ranks: this one and its peers in the other teams */
} ContextGroups;

/* What this rank attends for: q | k | v side by side, of its rows and all heads, or of its team's rows and some heads. */
typedef struct {
    int rows, heads, kv_heads, head_dim; /* M, h, k, D */
    const real *q, *k, *v;
    size_t stride;      /* (h + 2k) D */
    const int *lo, *hi; /* [M] */
} Queries;

typedef struct ContextParallel ContextParallel;

/* How keys and values of other teams reach this rank. */
typedef struct {
    void (*forward)(ContextParallel *, real *out, acc *lse, const Queries *);
    /* dqkv: q | k | v side by side, rows Queries.stride apart */
    void (*backward)(ContextParallel *, real *dqkv, acc *dot, const real *dout, const real *out, const acc *lse,
                     const Queries *);
} Method;
extern const Method method_ring, method_allgather, method_local;

struct ContextParallel {
    Kernels kernels;
    Method method;
    Group *team, *teams; /* as in ContextGroups */
    Cut cut;
    int seq;
    Reach reach;
    int rows_max;                  /* N at most */
    int blocks;                    /* calls of the kernel for the keys of one team: their ids ascend within a block */
    int heads, kv_heads, head_dim; /* H, K, D of this rank's slice of the model */
    int *id;                       /* [cp, rows_max]  the ids of each rank's rows */
    real *sent, *received;         /* all-to-all, if U > 1 */
    acc *shared;                   /* [N, D]  gradients of a kv head that several ranks of the team share; if K < U */
    acc *fold;                     /* [M, h D]  attention's running result between blocks */
    real *kv[2];                   /* ring: blocks [M, 2 k D]; allgather: [R, M, 2 k D] and one block */
    acc *dkv[2];                   /* their gradients, each block dk [M, k D], then dv [M, k D] */
};

/* Which rows this rank holds, for Trainer.cut. `rank` is filled in later. */
Cut context_cut(const ContextOptions *options);

/* [all ranks of the mesh] Makes the groups "ulysses", of this rank's team, and "cp", of the ring. */
ContextGroups context_groups(const Mesh *mesh, const ContextOptions *options);

/* [all ranks along cp] Allocates buffers for micro-steps of at most `rows` rows on this rank. */
ContextParallel context_create(Model *model, ContextGroups groups, const ContextOptions *options, DataOrder order,
                               int rows);
void context_free(ContextParallel *c);

/* For model->seams.sequence. `c` must not move while the seam is used. */
SequenceSeam context_seam(ContextParallel *c);

/* --- what the methods share --- */

/* Elements of a block: the keys and values of one team, [M, 2 k D]. */
size_t context_block_size(const Queries *q);

/* The team whose block is attended at step s: this rank's own at step 0, then that of the team before it, and so on. */
int context_owner(const ContextParallel *c, int step);

/* The last step at which any rank needs a block: R - 1, or less. The same on all ranks. */
int context_last_step(Cut cut, int seq, Reach reach);

/* Folds the block of step `step` into the running result, or does nothing if no query sees a key of it. The last step that
 * this rank needs writes `out`. Call for steps 0, 1, ... in order, at least to context_last_step. */
void context_attend(ContextParallel *c, real *out, acc *lse, const Queries *q, int step, const real *block);

/* The gradient through that block, with the same order of calls: dkv adds the block's own, dqkv gets the queries'. */
void context_attend_backward(ContextParallel *c, real *dqkv, acc *dkv, acc *dot, const real *dout, const real *out,
                             const acc *lse, const Queries *q, int step, const real *block);

/* Copies k | v of this rank's queries into a block [M, 2 k D]. */
void context_pack(ContextParallel *c, real *block, const Queries *q);

/* Writes dkv, rounded to real, to the k and v columns of dqkv. `block` is scratch. */
void context_unpack(ContextParallel *c, real *dqkv, real *block, const acc *dkv, const Queries *q);

/* --- ulysses.c: rows for heads, inside a team --- */

/* The heads of this rank for all rows of the team, in c->received. */
Queries ulysses_enter(ContextParallel *c, const real *qkv, const Rows *rows);
/* attended[N, H D] from the rows of this rank and all heads, of out[M, h D] = c->sent. */
void ulysses_leave(ContextParallel *c, real *attended, int rows);
/* Exchanges out and dout like queries: pointers to [M, h D] each. */
void ulysses_enter_outputs(ContextParallel *c, const real **out, const real **dout, const real *attended,
                           const real *dattended, int rows);
/* dqkv[N, (H + 2K) D] from c->sent[M, (h + 2k) D]. */
void ulysses_leave_gradients(ContextParallel *c, real *dqkv, int rows);

/* --- context_plan.c: the flags, the formulas, and the schedule --- */

OptionTable context_options(ContextOptions *options);

/* Fills in --cp and --ulysses-size if they are not given. Returns NULL or a complaint. */
const char *context_check(ContextOptions *options, int ranks);

/* Call when the model is known. `slice`: the model's constants on one rank along tp. NULL, or a complaint if the sequence
 * or the heads cannot be cut so, or if a micro-step has too many rows for one collective. */
const char *context_check_model(const ContextOptions *options, const ModelConfig *slice, long seq, long rows);

/* The ring's last step by formula. The tests compare it with context_last_step, which looks at every pair of teams. */
int context_expected_last_step(const ContextOptions *options, DataOrder order);

/* Adds this scheme's communication and buffers to what --ledger expects: `steps` steps of `accumulate` micro-steps of
 * `rows` rows on this rank. `slice`: the model's constants on one rank along tp. */
void context_expect(Expected *expected, const ModelConfig *slice, const ContextOptions *options, DataOrder order,
                    int rows, bool recompute, int accumulate, long steps);

/* Prints one layer's compute and collectives, with the bytes that --ledger counts (--show plan). */
void context_show_plan(const ModelConfig *model, const ContextOptions *options, DataOrder order);

/* [all ranks] Prints each rank's share of attention's work: the `pairs` of a query and a key that it has counted. */
void context_print_work(double pairs);
