#include "observe/sample.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
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

void sample_print(Model *model, const char *prompt, long count, int seq, uint64_t seed, int prints)
{
    const int V = model->whole.vocab;
    size_t length = strlen(prompt);
    int *text = malloc((length + (size_t)count + 1) * sizeof *text), n = 0;
    if (!text) fatal("out of memory for --sample %ld", count);
    for (size_t i = 0; i < length; i++) text[n++] = (unsigned char)prompt[i] % V;
    if (n == 0) text[n++] = 0;
    for (int i = 0; i < n && prints; i++) print_token(text[i], V);

    Rows host = rows_create_host(seq), rows = rows_create(seq);
    float *logits = malloc((size_t)V * sizeof *logits);
    real *row = malloc((size_t)V * sizeof *row);
    int parts = model->params.placement.tp; /* ranks over which the vocabulary is split, with padding at its end */
    real *whole = memory_alloc((size_t)parts * (size_t)model->config.vocab * sizeof *whole, MEMORY_ACTIVATIONS);
    if (!logits || !row) fatal("out of memory for --sample %ld", count);
    for (long s = 0; s < count; s++) {
        int window = n < seq ? n : seq;
        for (int t = 0; t < seq; t++) { /* rows after the text attend to no key, and no row attends to them */
            host.token[t] = t < window ? text[n - window + t] : 0;
            host.label[t] = -1;
            host.position[t] = host.id[t] = t;
            host.lo[t] = 0;
            host.hi[t] = t < window ? t + 1 : 0;
        }
        rows_upload(&model->kernels, &rows, &host);
        model_forward(model, model->activations, &rows);
        const real *mine = model->activations->logits + (size_t)(window - 1) * (size_t)model->config.vocab;
        FeatureSeam *f = &model->seams.features;
        if (f->whole_logits) {
            f->whole_logits(f->self, whole, mine);
            mine = whole;
        }
        model->kernels.download(row, mine, (size_t)V * sizeof *row);
        for (int i = 0; i < V; i++) logits[i] = (float)real_double(row[i]);
        double u = rng_uniform(seed, rng_stream("sample"), (uint64_t)s);
        text[n] = draw(logits, V, u);
        if (prints) print_token(text[n], V);
        n++;
    }
    if (prints) printf("\n");
    memory_free(whole);
    rows_free(&rows);
    rows_free_host(&host);
    free(text);
    free(row);
    free(logits);
}
