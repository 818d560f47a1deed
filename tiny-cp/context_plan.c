/* The flags of context parallelism, and the formulas of what it sends and holds. --ledger compares them with the counters,
 * so they come from the configuration alone, and share nothing with the run but comm_payload_factor. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "context_parallel.h"

#define AT(member) offsetof(ContextOptions, member)

/* clang-format off */
static const Option rows_of_table[] = {
    {"cp", OPTION_INT, AT(cp), NULL, 1, 1000000, .help = "ranks that share each sequence (all)"},
    {"method", OPTION_CHOICE, AT(method), "ring", .choices = "ring|ulysses|allgather", .help = "how queries meet keys of other ranks"},
    {"layout", OPTION_CHOICE, AT(layout), "zigzag", .choices = "zigzag|contiguous", .help = "which rows a rank holds: an early and a late chunk, or one run"},
    {"ulysses-size", OPTION_INT, AT(ulysses_size), NULL, 1, 1000000, .help = "neighbouring ranks that exchange rows for heads; ring or allgather runs between such teams (ulysses: cp; else 1)"},
};
/* clang-format on */

OptionTable context_options(ContextOptions *options)
{
    return (OptionTable){"flags of context parallelism", rows_of_table, sizeof rows_of_table / sizeof rows_of_table[0],
                         options};
}

const char *context_check(ContextOptions *o, int ranks)
{
    bool ulysses = strcmp(o->method, "ulysses") == 0;
    if (!o->cp) o->cp = ranks;
    if (ulysses && o->ulysses_size && o->ulysses_size != o->cp)
        return complain(
            "--ulysses-size %ld: with --method ulysses it is --cp, %ld; use ring or allgather between teams",
            o->ulysses_size, o->cp);
    if (!o->ulysses_size) o->ulysses_size = ulysses ? o->cp : 1;
    if (o->cp % o->ulysses_size) return complain("--ulysses-size %ld: must divide --cp %ld", o->ulysses_size, o->cp);
    if (ranks % o->cp) return complain("--cp %ld: must divide the number of ranks, %d", o->cp, ranks);
    return NULL;
}

const char *context_check_model(const ContextOptions *o, const ModelConfig *slice, long seq, long rows)
{
    const double most = 2147483647; /* elements of one collective */
    int multiple = cut_multiple(context_cut(o)), U = (int)o->ulysses_size, heads = slice->heads, kv = slice->kv_heads;
    if (seq % multiple)
        return complain("--seq %ld: must be a multiple of %d, so that %s can cut it for --cp %ld", seq, multiple,
                        o->layout, o->cp);
    if (heads % U) return complain("--ulysses-size %d: must divide the %d heads", U, heads);
    if (kv % U && U % kv) return complain("--ulysses-size %d: must divide the %d kv heads, or be a multiple", U, kv);
    double k = kv < U ? 1 : kv / U, row = slice->head_dim; /* elements of a row of one head */
    double block = 2.0 * (double)rows * U * k * row, piece = (double)rows * (heads / U + 2 * k) * row;
    if (block > most || (U > 1 && piece > most))
        return complain("--batch: %ld rows of a micro-step on each rank are more than one message takes; use a larger "
                        "--accumulate",
                        rows);
    return NULL;
}

int context_expected_last_step(const ContextOptions *o, DataOrder order)
{
    int R = (int)(o->cp / o->ulysses_size), team_rows = order.seq / R;
    /* Does a team see keys of the next team? That block comes last. */
    bool sees_next = order.prefix > 1 || (strcmp(o->layout, "zigzag") == 0 && order.window != 1);
    if (sees_next || !order.window) return R - 1;
    int blocks = (order.window - 1 + team_rows - 1) / team_rows; /* that the first row of a team sees before its own */
    return blocks < R - 1 ? blocks : R - 1;
}

void context_expect(Expected *e, const ModelConfig *slice, const ContextOptions *o, DataOrder order, int rows,
                    bool recompute, int accumulate, long steps)
{
    int U = (int)o->ulysses_size, R = (int)o->cp / U;
    double N = rows, M = N * U, D = slice->head_dim, H = slice->heads, K = slice->kv_heads, h = H / U;
    double k = K < U ? 1 : K / U, w = sizeof(real), g = sizeof(acc);
    double forwards = (double)steps * accumulate * slice->layers * (recompute ? 2 : 1);
    double backwards = (double)steps * accumulate * slice->layers;
    bool ring = strcmp(o->method, "allgather") != 0;
    if (U > 1) {
        expect(e, "ulysses", COMM_ALL_TO_ALL, 2 * forwards, forwards * M * (2 * h + 2 * k) * D * w, U);
        expect(e, "ulysses", COMM_ALL_TO_ALL, 4 * backwards, backwards * M * (4 * h + 4 * k) * D * w, U);
    }
    double block = 2 * M * k * D; /* elements */
    if (R > 1 && ring) {
        double S = context_expected_last_step(o, order), home = S > 0 ? S + 1 : 0;
        if (S > 0) {
            expect(e, "cp", COMM_SEND_RECEIVE, forwards * S, forwards * S * block * w, R);
            expect(e, "cp", COMM_SEND_RECEIVE, backwards * (S + home), backwards * block * (S * w + home * g), R);
        }
    }
    if (R > 1 && !ring) {
        expect(e, "cp", COMM_ALL_GATHER, forwards + backwards, (forwards + backwards) * R * block * w, R);
        expect(e, "cp", COMM_REDUCE_SCATTER, backwards, backwards * R * block * g, R);
    }

    bool several = U > 1 && (double)rows * (double)o->cp > order.seq; /* sequences in a micro-step */
    double bytes = o->cp > 1 ? (double)o->cp * N * sizeof(int) : 0;
    if (U > 1) bytes += M * (h + 2 * k) * D * w + M * (3 * h + 2 * k) * D * w;
    if (K < U) bytes += N * D * g;
    if (R > 1 || several) bytes += M * h * D * g;
    if (R > 1) bytes += (ring ? 2 : R + 1) * block * (w + g);
    e->memory[MEMORY_BUFFERS] += (size_t)bytes;
}

static void compute_line(const char *when, const char *what)
{
    printf("  %-10s%s\n", when, what);
}

static void comm_line(const char *when, const char *what, const char *group, CommKind kind, double bytes, int ranks)
{
    printf("  %-10s%-46s%-9s%10.1f KiB\n", when, what, group, bytes * comm_payload_factor(kind, ranks) / 1024);
}

void context_show_plan(const ModelConfig *m, const ContextOptions *o, DataOrder order)
{
    int U = (int)o->ulysses_size, R = (int)o->cp / U, kv = m->kv_heads < U ? 1 : m->kv_heads / U;
    double M = (double)order.seq / R, D = m->head_dim, h = (double)m->heads / U, w = sizeof(real), g = sizeof(acc);
    double block = 2 * M * kv * D, qkv = M * (h + 2 * kv) * D * w;
    int last = context_expected_last_step(o, order);
    bool ring = strcmp(o->method, "allgather") != 0;
    char text[80];
    printf("plan of attention in one layer, with what a rank sends for one sequence of %d rows; ", order.seq);
    if (U > 1)
        printf("%d team%s of %d ranks\n", R, R > 1 ? "s" : "", U);
    else
        printf("%d rank%s\n", R, R > 1 ? "s" : "");
    for (int back = 0; back < 2; back++) {
        const char *when = back ? "backward" : "forward";
        if (U > 1) comm_line(when, "all_to_all: rows for heads", "ulysses", COMM_ALL_TO_ALL, qkv, U);
        if (U > 1 && back)
            comm_line(when, "all_to_all of the output and its gradient", "ulysses", COMM_ALL_TO_ALL, 2 * M * h * D * w,
                      U);
        if (R > 1 && !ring) comm_line(when, "all_gather of keys and values", "cp", COMM_ALL_GATHER, R * block * w, R);
        for (int s = 0; R > 1 && ring && s <= last; s++) {
            snprintf(text, sizeof text, "step %d: attend to the block of %s - %d", s, U > 1 ? "team t" : "rank r", s);
            if (s < last)
                comm_line(when, "send_receive of the next block, meanwhile", "cp", COMM_SEND_RECEIVE, block * w, R);
            compute_line(when, s ? text : "step 0: attend to the own block");
            if (back && last)
                comm_line(when, "send_receive of the block's gradients", "cp", COMM_SEND_RECEIVE, block * g, R);
        }
        if (R == 1 || !ring) compute_line(when, "attend to all keys");
        if (R > 1 && !ring && back)
            comm_line(when, "reduce_scatter of their gradients", "cp", COMM_REDUCE_SCATTER, R * block * g, R);
        if (U > 1)
            comm_line(when, "all_to_all: heads for rows", "ulysses", COMM_ALL_TO_ALL, back ? qkv : M * h * D * w, U);
    }
}

void context_print_work(double pairs)
{
    Group *control = comm_control();
    int n = group_size(control);
    double *all = malloc((size_t)n * sizeof *all), sum = 0, most = 0;
    if (!all) fatal("out of memory");
    comm_all_gather(control, all, &pairs, 1, COMM_DOUBLE);
    for (int r = 0; r < n; r++) {
        sum += all[r];
        most = all[r] > most ? all[r] : most;
    }
    if (group_rank(control) == 0) {
        printf("attention: pairs of a query and a key in each layer, all steps; the busiest rank has %.2f times the "
               "mean\n",
               sum > 0 ? most * n / sum : 1);
        for (int r = 0; r < n && sum > 0; r++) printf("  rank %d: %.0f, %.1f %%\n", r, all[r], 100 * all[r] / sum);
    }
    free(all);
}
