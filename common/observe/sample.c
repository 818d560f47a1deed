#include "observe/sample.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/comm.h"
#include "kernels/memory.h"
#include "base/rng.h"

/* Draws from softmax(logits / temperature), with u uniform in [0, 1). */
static int draw(const float *logits, int vocab, double u)
{
    const double temperature = 0.8;
    double top = -INFINITY, total = 0, sum = 0;
    for (int v = 0; v < vocab; v++) top = fmax(top, (double)logits[v]);
    for (int v = 0; v < vocab; v++) total += exp(((double)logits[v] - top) / temperature);
    for (int v = 0; v < vocab; v++) {
        sum += exp(((double)logits[v] - top) / temperature);
        if (sum > u * total) return v;
    }
    return vocab - 1;
}

static void print_token(int token, int vocab)
{
    if (vocab != 256)
        printf(" %d", token);
    else if (isprint(token) || token == '\n')
        putchar(token);
    else
        putchar('?');
}

/* Fills `host` with the last tokens, at most a sequence, of text[n]. Rows after the text attend to no key, and no row attends to
 * them. Returns the number of rows with text. */
static int fill_rows(Rows *host, const int *text, int n, DataOrder order)
{
    int seq = order.seq, window = n < seq ? n : seq;
    for (int t = 0; t < seq; t++) {
        host->token[t] = t < window ? text[n - window + t] : 0;
        host->label[t] = -1;
        host->position[t] = host->id[t] = t;
        host->lo[t] = order.window && t + 1 > order.window ? t + 1 - order.window : 0;
        host->hi[t] = t < window ? t + 1 : 0;
    }
    return window;
}

/* Finds the row at `place` of the sequence: the cut rank that has it, and its number there. */
static void find_row(Cut cut, int seq, int place, int *owner, int *row)
{
    for (cut.rank = 0; cut.rank < cut.ranks; cut.rank++)
        for (int i = 0; i < seq / cut.ranks; i++)
            if (cut_place(cut, seq, i) == place) {
                *owner = cut.rank;
                *row = i;
            }
}

void sample_print(Model *model, const char *prompt, long count, const Batch *batch, int prints)
{
    const Cut cut = batch->share.cut;
    const int V = model->whole.vocab, seq = batch->order.seq, cuts = cut.ranks;
    size_t length = strlen(prompt);
    int *text = malloc((length + (size_t)count + 1) * sizeof *text), n = 0;
    if (!text) fatal("out of memory for --sample %ld", count);
    for (size_t i = 0; i < length; i++) text[n++] = (unsigned char)prompt[i] % V;
    if (n == 0) text[n++] = 0;
    for (int i = 0; i < n && prints; i++) print_token(text[i], V);

    Rows whole = rows_create_host(seq), host = rows_create_host_team(seq / cuts, cut.sharers);
    Rows rows = rows_create_team(seq / cuts, cut.sharers);
    float *logits = malloc((size_t)V * sizeof *logits);
    real *row = malloc((size_t)V * sizeof *row);
    int tp = model->params.placement.tp; /* ranks over which the vocabulary is split, with padding at its end */
    real *joined = memory_alloc((size_t)tp * (size_t)model->config.vocab * sizeof *joined, MEMORY_ACTIVATIONS);
    if (!logits || !row) fatal("out of memory for --sample %ld", count);
    for (long s = 0; s < count; s++) {
        int owner = 0, last = 0;
        find_row(cut, seq, fill_rows(&whole, text, n, batch->order) - 1, &owner, &last);
        rows_deal(&host, &whole, seq, cut);
        rows_upload(&model->kernels, &rows, &host);
        model_forward(model, model->activations, &rows);
        const real *mine = model->activations->logits + (size_t)last * (size_t)model->config.vocab;
        FeatureSeam *f = &model->seams.features;
        if (f->whole_logits) {
            f->whole_logits(f->self, joined, mine);
            mine = joined;
        }
        model->kernels.download(row, mine, (size_t)V * sizeof *row);
        if (cuts > 1) comm_broadcast(comm_control(), row, (size_t)V * sizeof *row, COMM_BYTE, owner * tp);
        for (int i = 0; i < V; i++) logits[i] = (float)real_double(row[i]);
        double u = rng_uniform(batch->order.seed, rng_stream("sample"), (uint64_t)s);
        text[n] = draw(logits, V, u);
        if (prints) print_token(text[n], V);
        n++;
    }
    if (prints) printf("\n");
    memory_free(joined);
    rows_free(&rows);
    rows_free_host(&host);
    rows_free_host(&whole);
    free(text);
    free(row);
    free(logits);
}
