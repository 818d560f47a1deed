/* attention_rate T: measures attention on this GPU over one causal sequence of T rows, 32 query heads and 8 kv heads of size
 * 64: in one call, folded from 2, 4 and 8 blocks of keys as the ring does, and with the rows of one of 4 ranks under the
 * two layouts of context parallelism.
 *
 * It prints lines "attention WHAT FORWARD BACKWARD", in TFLOP/s. A pair of a query and a key costs 4 D operations
 * forward and 10 D backward for each head; only pairs that the mask allows count. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "data/cut.h"
#include "kernels/kernels.h"

enum { H = 32, K = 8, D = 64, RANKS = 4, ROUNDS = 5 };

static Kernels kernels;
static real *qkv, *dqkv, *out, *dout;
static acc *fold, *lse, *dot, *dkv, *stage;
static int *id, *lo, *hi, *host;
static const size_t STRIDE = (H + 2 * K) * D;

static double now(void)
{
    struct timespec t;
    double ignored;
    kernels.download(&ignored, lse, sizeof ignored); /* waits for the GPU */
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *take(size_t bytes)
{
    void *memory = kernels.alloc(bytes);
    if (!memory) fatal("out of memory on the GPU: %zu bytes", bytes);
    return memory;
}

static real *random_rows(size_t n, uint64_t stream)
{
    real *x = take(n * sizeof *x);
    kernels.draw(stage, 0, n, 1, stream, 1);
    kernels.cast(x, stage, n);
    return x;
}

/* One pass over `queries` rows and `blocks` equal blocks of `keys` keys in all. */
static void pass(int backward, int queries, int keys, int blocks)
{
    const real *k = qkv + H * D, *v = k + K * D;
    int each = keys / blocks;
    for (int b = 0; b < blocks; b++) {
        size_t row = (size_t)b * (size_t)each, at = row * STRIDE;
        AttentionShape shape = {.heads = H,
                                .kv_heads = K,
                                .head_dim = D,
                                .queries = queries,
                                .keys = each,
                                .lo = lo,
                                .hi = hi,
                                .key_id = id + row,
                                .q_stride = STRIDE,
                                .kv_stride = STRIDE};
        shape.flags = (b == 0 ? ATTENTION_FIRST : 0u) | (b == blocks - 1 ? ATTENTION_LAST : 0u);
        if (!backward) {
            kernels.attention_forward(out, fold, lse, qkv, k + at, v + at, shape);
            continue;
        }
        acc *dk = blocks > 1 ? dkv + row * 2 * K * D : NULL, *dv = dk ? dk + (size_t)each * K * D : NULL;
        kernels.attention_backward(dqkv, fold, dqkv + H * D, dqkv + (H + K) * D, dk, dv, dot, dout, out, lse, qkv,
                                   k + at, v + at, shape);
    }
}

/* TFLOP/s of the best of some rounds. */
static double rate(int backward, int queries, int keys, int blocks, double pairs)
{
    double best = 1e30;
    for (int r = 0; r < ROUNDS; r++) {
        double start = now();
        pass(backward, queries, keys, blocks);
        double time = now() - start;
        best = time < best ? time : best;
    }
    return (backward ? 10.0 : 4.0) * D * H * pairs / best * 1e-12;
}

static void measure(const char *what, int queries, int keys, int blocks, double pairs)
{
    double forward = rate(0, queries, keys, blocks, pairs), backward = rate(1, queries, keys, blocks, pairs);
    printf("attention %s %.0f %.0f\n", what, forward, backward);
}

/* The queries are the rows of one rank of a cut; the keys are the whole sequence. Returns the pairs. */
static double use_rows(Cut cut, int T)
{
    int n = T / cut.ranks;
    double pairs = 0;
    for (int i = 0; i < n; i++) {
        host[i] = cut_place(cut, T, i) + 1;
        pairs += host[i];
    }
    kernels.upload(hi, host, (size_t)n * sizeof *host);
    return pairs;
}

int main(int argc, char **argv)
{
    int T = argc > 1 ? atoi(argv[1]) : 0;
    const char *no_gpu = kernels_cuda(&kernels, 0);
    if (no_gpu || T <= 0 || T % 8) {
        fprintf(stderr, "attention_rate T: %s\n", no_gpu ? no_gpu : "T must be a multiple of 8");
        return 2;
    }
    size_t n = (size_t)T;
    stage = take(n * STRIDE * sizeof *stage);
    qkv = random_rows(n * STRIDE, 0);
    dout = random_rows(n * H * D, 1);
    dqkv = take(n * STRIDE * sizeof *dqkv);
    out = take(n * H * D * sizeof *out);
    fold = take(n * H * D * sizeof *fold);
    lse = take(n * H * sizeof *lse);
    dot = take(n * H * sizeof *dot);
    dkv = take(n * 2 * K * D * sizeof *dkv);
    id = take(n * sizeof *id);
    lo = take(n * sizeof *lo);
    hi = take(n * sizeof *hi);
    host = malloc(n * sizeof *host);
    if (!host) fatal("out of memory");
    size_t bytes = kernels.workspace_bytes ? kernels.workspace_bytes(H * D, D, T) : 0;
    if (bytes) kernels.use_workspace(take(bytes), bytes);
    for (int i = 0; i < T; i++) host[i] = i;
    kernels.upload(id, host, n * sizeof *host);
    kernels.fill(lo, 0, n * sizeof *lo);
    kernels.fill(dkv, 0, n * 2 * K * D * sizeof *dkv);

    double pairs = use_rows((Cut){.ranks = 1}, T);
    char what[32];
    for (int blocks = 1; blocks <= 8; blocks *= 2) {
        snprintf(what, sizeof what, "%d-block%s", blocks, blocks > 1 ? "s" : "");
        measure(what, T, T, blocks, pairs);
    }
    for (int layout = 0; layout < 2; layout++)
        for (int rank = 0; rank < RANKS; rank++) {
            pairs = use_rows((Cut){.ranks = RANKS, .rank = rank, .layout = (Layout)layout}, T);
            snprintf(what, sizeof what, "%s-rank-%d-of-%d", layout == LAYOUT_ZIGZAG ? "zigzag" : "contiguous", rank,
                     RANKS);
            measure(what, T / RANKS, T, 1, pairs);
        }
    return 0;
}
