/* The flags of experts, and the formulas of what expert parallelism sends and holds. Nothing here reads a running
 * ExpertParallel: --ledger compares these formulas with the counters, and the two must be independent. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "expert_parallel.h"

#define AT(member) offsetof(ExpertOptions, member)

/* clang-format off */
static const Option rows_of_table[] = {
    {"ep", OPTION_INT, AT(ep), NULL, 1, 1000000, .help = "ranks over which the experts are dealt (as many as possible)"},
    {"experts", OPTION_INT, AT(experts), NULL, 1, EXPERTS_MAX, .help = "experts of a layer (the model's; 8 for a dense model)"},
    {"top-k", OPTION_INT, AT(top_k), NULL, 1, EXPERTS_MAX, .help = "experts that a row goes to (the model's; 2)"},
    {"expert-ff", OPTION_INT, AT(expert_ff), NULL, 1, 1 << 20, .help = "feed-forward width of an expert (the model's)"},
    {"shared-ff", OPTION_INT, AT(shared_ff), "-1", -1, 1 << 20, .help = "width of an expert that all rows go through; 0: none; -1: the model's"},
    {"router", OPTION_CHOICE, AT(router), "", .choices = "softmax|sigmoid", .help = "scores of the experts (softmax)"},
    {"renormalize", OPTION_INT, AT(renormalize), "-1", -1, 1, .help = "1: the weights of a row's experts add up to 1; -1: as the model says"},
    {"balance", OPTION_CHOICE, AT(balance), "aux", .choices = "aux|seq-aux|bias|none", .help = "what gives all experts work: a loss, a loss per sequence, a bias, nothing"},
    {"aux-coef", OPTION_NUMBER, AT(aux_coef), "-1", -1, 1e6, .help = "weight of the balance loss; -1: the model's"},
    {"bias-rate", OPTION_NUMBER, AT(bias_rate), "-1", -1, 1e6, .help = "what the bias changes by in a step; -1: the model's"},
    {"z-loss", OPTION_NUMBER, AT(z_loss), "0", 0, 1e6, .help = "weight of the loss that keeps the router's logits small"},
    {"capacity", OPTION_NUMBER, AT(capacity), "0", 0, 1e6, .help = "an expert takes at most X times its share of a rank's rows and drops the others; 0: takes all"},
    {"expert-room", OPTION_NUMBER, AT(room), "0", 0, 1e6, .help = "room for rows of experts, in multiples of the balanced load; 0: the worst case on a CPU, 2 on a GPU"},
    {"expert-overlap", OPTION_INT, AT(overlap), "0", 0, 1, .help = "1: rows travel in two chunks, one while the other is computed"},
};
/* clang-format on */

OptionTable experts_options(ExpertOptions *options)
{
    return (OptionTable){"flags of experts", rows_of_table, sizeof rows_of_table / sizeof rows_of_table[0], options};
}

static BalanceKind balance_of(const char *name)
{
    return strcmp(name, "aux") == 0       ? BALANCE_AUX
           : strcmp(name, "seq-aux") == 0 ? BALANCE_SEQ_AUX
           : strcmp(name, "bias") == 0    ? BALANCE_BIAS
                                          : BALANCE_NONE;
}

/* Flags whose value is no rate, or that would have no effect. -1 stands for the model's value. */
static const char *check_balance(const ExpertOptions *o)
{
    bool coef = o->aux_coef != -1, rate = o->bias_rate != -1;
    if (coef && o->aux_coef < 0) return complain("--aux-coef %g: must be at least 0", o->aux_coef);
    if (rate && o->bias_rate < 0) return complain("--bias-rate %g: must be at least 0", o->bias_rate);
    if (coef && strcmp(o->balance, "aux") != 0 && strcmp(o->balance, "seq-aux") != 0)
        return complain("--aux-coef %g: goes with --balance aux or seq-aux", o->aux_coef);
    if (rate && strcmp(o->balance, "bias") != 0)
        return complain("--bias-rate %g: goes with --balance bias", o->bias_rate);
    return NULL;
}

/* Flags that would change the shape of tensors, although a folder's weights are to be loaded into them. */
static const char *check_folder(const ExpertOptions *o, const ModelConfig *model, const char *folder)
{
    const struct {
        const char *flag;
        bool given;
        long value, has;
    } shape[] = {{"experts", o->experts > 0, o->experts, model->moe.experts},
                 {"expert-ff", o->expert_ff > 0, o->expert_ff, model->moe.ff},
                 {"shared-ff", o->shared_ff >= 0, o->shared_ff, model->moe.experts ? model->ff : 0}};
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        if (shape[i].given && shape[i].value != shape[i].has)
            return complain("--%s %ld: not with a folder of weights, --model %s, which has %ld", shape[i].flag,
                            shape[i].value, folder, shape[i].has);
    if (!model->moe.experts) return complain("--model %s: the folder's weights have no experts", folder);
    return NULL;
}

const char *experts_apply(const ExpertOptions *o, ModelConfig *model, const char *folder)
{
    MoeConfig *c = &model->moe;
    const char *complaint = check_balance(o);
    if (!complaint && folder) complaint = check_folder(o, model, folder);
    if (complaint) return complaint;
    if (!c->experts) { /* a dense model becomes one of experts */
        *c = (MoeConfig){
            .experts = 8, .top_k = 2, .ff = model->ff, .renormalize = true, .aux_coef = 0.01, .bias_rate = 0.001};
        model->ff = 0;
    }
    if (c->bias_rate == 0) c->bias_rate = 0.001; /* a folder does not say */
    if (o->experts) c->experts = (int)o->experts;
    if (o->experts && o->experts < c->top_k) c->top_k = (int)o->experts; /* unless --top-k says otherwise */
    if (o->top_k) c->top_k = (int)o->top_k;
    if (o->expert_ff) c->ff = (int)o->expert_ff;
    if (o->shared_ff >= 0) model->ff = (int)o->shared_ff;
    if (*o->router) c->router = strcmp(o->router, "sigmoid") == 0 ? ROUTER_SIGMOID : ROUTER_SOFTMAX;
    if (o->renormalize >= 0) c->renormalize = o->renormalize;
    if (o->aux_coef >= 0) c->aux_coef = o->aux_coef;
    if (o->bias_rate >= 0) c->bias_rate = o->bias_rate;
    c->balance = balance_of(o->balance);
    c->z_coef = o->z_loss;
    c->capacity = o->capacity;
    if (c->top_k > c->experts)
        return complain("--top-k %d: must be at most the model's experts, %d", c->top_k, c->experts);
    double rows =
        (double)c->experts * 2 * (c->ff > model->width ? c->ff : model->width); /* of a layer's largest matrix */
    if (rows > INT_MAX)
        return complain("--experts %d: the matrices of a layer's experts have more than %d rows", c->experts, INT_MAX);
    return NULL;
}

static int gcd(int a, int b)
{
    return b ? gcd(b, a % b) : a;
}

const char *experts_check(ExpertOptions *o, const ModelConfig *model, int ranks)
{
    int E = model->moe.experts;
    if (!o->ep) o->ep = gcd(ranks, E);
    if (ranks % o->ep) return complain("--ep %ld: must divide the number of ranks, %d", o->ep, ranks);
    if (E % o->ep) return complain("--ep %ld: must divide the number of experts, %d", o->ep, E);
    if (o->room > 0 && o->room < 1) return complain("--expert-room %g: must be at least 1, the balanced load", o->room);
    if (o->overlap && o->capacity > 0)
        return complain("--expert-overlap 1: not with --capacity, which is counted over all rows of a rank");
    return NULL;
}

/* Rows of a chunk: S / chunks, rounded up. */
static int chunk_rows(int rows, int chunks)
{
    return (rows + chunks - 1) / chunks;
}

const char *experts_place(const ExpertOptions *o, const ModelConfig *model, bool on_gpu, int rows, ModelPart *part)
{
    int ep = (int)o->ep, E = model->moe.experts, k = model->moe.top_k, chunks = 1 + (int)o->overlap;
    double balanced = (double)chunk_rows(rows, chunks) * k; /* rows that arrive at a rank, on average */
    int local = E / ep, most = k < local ? k : local;       /* a row has so many copies on one rank at most */
    double worst = (double)chunk_rows(rows, chunks) * most * ep;
    if (model->moe.capacity > 0) /* each rank sends at most so many rows to each expert */
        worst = fmin(worst, (double)ep * local * ceil(model->moe.capacity * rows * k / E));
    double room = fmin(worst, o->room > 0 ? ceil(o->room * balanced) : on_gpu ? 2 * balanced : worst);
    if (room * model->width > INT_MAX)
        return complain("--expert-room: room for %.0f rows of width %d at a rank is more than one collective takes; "
                        "--accumulate cuts them",
                        room, model->width);
    part->experts = (Placement){.by = SHARD_NOTHING, .ep = ep};
    part->expert_chunks = chunks;
    part->expert_rows = (int)room;
    return NULL;
}

void experts_expect(Expected *e, const ModelConfig *model, const ModelPart *part, int rows, int accumulate, long steps)
{
    const MoeConfig *c = &model->moe;
    int ep = part->experts.ep, chunks = part->expert_chunks;
    double layers = (double)model->layers * accumulate * (double)steps, forwards = part->recompute ? 2 : 1;
    double copies = (double)rows * c->top_k * model->width * sizeof(real);
    if (ep == 1) return;
    expect(e, "ep", COMM_ALL_GATHER, layers * chunks * forwards,
           layers * chunks * forwards * ep * c->experts * (double)sizeof(int), ep);
    double ways = 2 * forwards + 2; /* there and back, in each pass */
    expect(e, "ep", COMM_ALL_TO_ALL_V, layers * chunks * ways, layers * ways * copies, ep);
    if (c->capacity > 0) expect_at_most(e, "ep", COMM_ALL_TO_ALL_V);
    size_t room = (size_t)chunks * (size_t)part->expert_rows;
    e->memory[MEMORY_BUFFERS] +=
        room * (size_t)model->width * sizeof(real) + (size_t)model->layers * room * sizeof(int);
}

void experts_show_plan(const ModelConfig *model, const ExpertOptions *o, const char *gradients)
{
    const MoeConfig *c = &model->moe;
    int ep = (int)o->ep;
    printf("each of %d ranks: %d of %d experts of width %d; a row goes to %d\n", ep, c->experts / ep, c->experts, c->ff,
           c->top_k);
    printf("the feed-forward of a layer\n");
    printf("  router        logits of %d experts, the %d best, their weights\n", c->experts, c->top_k);
    printf("  sort          copies of rows into the order of their experts\n");
    if (ep > 1) {
        printf("  counts        all_gather on ep: how many rows go to each expert\n");
        printf("  there         all_to_all_v on ep starts%s\n", o->overlap ? ", in two chunks" : "");
    }
    if (model->ff) printf("  shared expert width %d%s\n", model->ff, ep > 1 ? ", while the rows travel" : "");
    printf("  experts       gate, up, swiglu, down: one grouped product each\n");
    if (ep > 1) printf("  back          all_to_all_v on ep\n");
    printf("  sum           of each row's results, times their weights\n");
    printf("backward: the same way, for gradients; the counts are known\n");
    printf("after the last layer: all_reduce over all ranks of the choices of each expert%s\n",
           c->balance == BALANCE_AUX    ? ", for the balance loss"
           : c->balance == BALANCE_BIAS ? ", for the bias, which each step changes"
                                        : ", for the ledger");
    printf("once a step: %s\n", gradients);
}

void experts_print_load(const Model *model)
{
    int E = model->config.moe.experts;
    printf("ledger: choices of experts  least       mean       most   most / mean    dropped\n");
    for (int l = 0; l < model->config.layers; l++) {
        const int64_t *load = model->router.load + (size_t)l * (size_t)(E + 1);
        int64_t least = load[0], most = load[0], all = 0;
        for (int e = 0; e < E; e++) {
            least = load[e] < least ? load[e] : least;
            most = load[e] > most ? load[e] : most;
            all += load[e];
        }
        double mean = (double)all / E;
        printf("ledger: layer %-12d %10lld %10.1f %10lld %13.2f %10lld\n", l, (long long)least, mean, (long long)most,
               mean > 0 ? (double)most / mean : 1, (long long)load[E]);
    }
}
