/* tiny-megatron's flags, the formulas of what it sends and holds, and the schedule of a layer. Nothing here reads a
 * running TensorParallel: --ledger compares these formulas with the counters, and the two must be independent. */
#include <limits.h>
#include <stdio.h>

#include "base/error.h"
#include "tensor_parallel.h"

#define AT(member) offsetof(TensorOptions, member)

/* clang-format off */
static const Option rows_of_flags[] = {
    {"tp", OPTION_INT, AT(tp), NULL, 1, 1000000, .help = "ranks that share each layer (all); the rest is data parallel"},
    {"sp", OPTION_INT, AT(sp), "1", 0, 1, .help = "1: sequence parallelism: the rows between split regions are split, too"},
    {"overlap-chunks", OPTION_INT, AT(overlap_chunks), "1", 1, CHUNKS_MAX, .help = "with --sp 1: rows travel in so many parts, while others are multiplied"},
};
/* clang-format on */

OptionTable tensor_options(TensorOptions *options)
{
    return (OptionTable){"flags of tiny-megatron", rows_of_flags, sizeof rows_of_flags / sizeof rows_of_flags[0],
                         options};
}

const char *tensor_check(TensorOptions *o, int ranks)
{
    if (o->tp && ranks % o->tp) return complain("--tp %ld: must divide the number of ranks, %d", o->tp, ranks);
    if (!o->tp) o->tp = ranks;
    if (o->tp == 1) o->sp = 0; /* nothing to split */
    if (!o->sp && o->overlap_chunks > 1)
        return complain("--overlap-chunks %ld: goes with --sp 1 and --tp 2 or more", o->overlap_chunks);
    return NULL;
}

const char *tensor_check_model(const TensorOptions *o, const ModelConfig *model, long batch, long seq, long rows)
{
    const char *complaint = model_config_check_slice(model, (int)o->tp);
    if (complaint) return complaint;
    if (o->tp > 1 && !o->sp && model->moe.experts)
        return complain("--sp 0: not with experts: with --tp %ld each rank sends its own rows to them", o->tp);
    if (o->tp > 1 && rows > INT_MAX / model->width)
        return complain("--batch %ld: %ld rows in a micro-step times width %d are more than one collective takes; "
                        "--accumulate cuts "
                        "them",
                        batch, rows, model->width);
    if (o->sp && seq % (o->tp * o->overlap_chunks))
        return complain("--seq %ld: with --sp 1 must be a multiple of --tp x --overlap-chunks = %ld x %ld", seq, o->tp,
                        o->overlap_chunks);
    return NULL;
}

/* --- what is sent and held --- */

void tensor_expect(Expected *e, const ModelConfig *model, const TensorOptions *o, int rows, bool recompute, int A,
                   int reduces, long steps)
{
    int tp = (int)o->tp, L = model->layers;
    if (tp == 1) return;
    bool experts = model->moe.experts > 0;
    int pairs = experts ? L : 2 * L; /* split pairs of matrices in the layers: attention's; the dense feed-forward's */
    int again = recompute ? pairs : 0; /* collectives of the layers' second forward pass */
    double micro = (double)steps * A, N = rows, stream = N * model->width * sizeof(real),
           chunks = (double)o->overlap_chunks;
    double sharers = model->kv_heads < tp ? tp / model->kv_heads : 1, C = model->width, D = model->head_dim;
    e->memory[MEMORY_BUFFERS] += 3 * (size_t)rows * sizeof(acc);
    if (o->sp) e->memory[MEMORY_BUFFERS] += (size_t)(stream + 2 * stream / tp);

    /* all-reduces of acc: the loss, and the gradients that are partial over tp: of norms, router and shared expert */
    double calls = 2 * micro, bytes = micro * 3 * N * sizeof(acc), passes = (double)steps * reduces;
    double partial = (o->sp ? 2 * C : 0) + (model->qk_norm ? 2 * D : 0);
    if (experts) partial += C * model->moe.experts + 3 * C * model->ff;
    if (partial > 0) calls += passes * L, bytes += passes * L * partial * sizeof(acc);
    if (o->sp) calls += passes, bytes += passes * C * sizeof(acc); /* the final norm */
    int gathers = 3 * (pairs + 1) + again,
        sums = 2 * (pairs + 1) + again; /* the embedding and the head are one more pair */
    if (!o->sp) calls += micro * sums, bytes += micro * sums * stream;
    expect(e, "tp", COMM_ALL_REDUCE, calls, bytes, tp);
    if (o->sp) {
        expect(e, "tp", COMM_ALL_GATHER, micro * chunks * gathers, micro * gathers * stream, tp);
        expect(e, "tp", COMM_REDUCE_SCATTER, micro * chunks * sums, micro * sums * stream, tp);
    }
    if (sharers > 1) expect(e, "kv", COMM_ALL_REDUCE, passes * L, passes * L * 2 * D * C * sizeof(acc), (int)sharers);
}

/* --- the schedule --- */

static void show_row(const char *computes, const char *sends)
{
    if (*sends)
        printf("  %-12s  %s\n", computes, sends);
    else
        printf("  %s\n", computes);
}

void tensor_show_plan(const ModelConfig *model, const TensorOptions *o, Shape shape)
{
    int tp = shape.size[AXIS_TP], sharers = model->kv_heads < tp ? tp / model->kv_heads : 1;
    ModelConfig c = model_config_slice(model, tp);
    bool split = tp > 1, sp = o->sp;
    const char *before = sp ? "all-gather of rows, before" : "";
    const char *after = !split ? ""
                        : sp   ? "reduce-scatter of partial sums, after"
                               : "all-reduce of partial sums, after";
    const char *row_back = sp ? "all-gather of gradients, before" : "";
    const char *column_back = !split ? ""
                              : sp   ? "all-gather of rows again, for the weights; reduce-scatter of gradients, after"
                                     : "all-reduce of gradients, while those of the weights are computed";
    if (split) {
        printf("each of %d ranks that share the layers: %d of %d heads, %d of %d kv heads, ", tp, c.heads, model->heads,
               c.kv_heads, model->kv_heads);
        if (!model->moe.experts) printf("%d of %d ff features, ", c.ff, model->ff);
        printf("and %s of the stream's rows\n", sp ? "its part" : "all");
    } else
        printf("each rank has whole layers\n");
    printf("forward\n");
    show_row("embedding", after);
    printf(" in each layer\n");
    show_row("norm", "");
    show_row("qkv", before);
    show_row("attention", "");
    show_row("output", after);
    show_row("add, norm", "");
    if (model->moe.experts) {
        show_row("experts", "of this rank's rows; not split along tp");
    } else {
        show_row("gate, up", before);
        show_row("swiglu", "");
        show_row("down", after);
    }
    printf(" then\n");
    show_row("add, norm", "");
    show_row("head", before);
    show_row("loss", split ? "all-reduce of each row's largest logit, then of two sums" : "");
    printf("backward\n");
    show_row("head", column_back);
    show_row("norm, add", "");
    printf(" in each layer\n");
    if (model->moe.experts) {
        show_row("experts", "");
    } else {
        show_row("down", row_back);
        show_row("swiglu", "");
        show_row("gate, up", column_back);
    }
    show_row("norm", "");
    show_row("output", row_back);
    show_row("attention", "");
    show_row("qkv", column_back);
    show_row("norm, add", "");
    printf(" then\n");
    show_row("embedding", row_back);
    if (sp && o->overlap_chunks > 1)
        printf("rows and gradients travel in %ld chunks: one travels while another is multiplied\n", o->overlap_chunks);
    if (split && (sp || model->qk_norm || sharers > 1)) printf("once a step, of gradients\n");
    if (split && (sp || model->qk_norm))
        show_row(!sp ? "QK-norms" : model->moe.experts ? "norms, router" : "norms", "all-reduce over tp");
    if (sharers > 1) printf("  %-12s  all-reduce over the %d ranks that share a kv head\n", "K, V", sharers);
    if (shape.size[AXIS_DP] > 1)
        printf("gradients are then reduced over %d replicas, as in tiny-ddp\n", shape.size[AXIS_DP]);
}
