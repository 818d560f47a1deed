#include "data/data.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"
#include "data/corpus.h"

struct Data {
    Corpus corpus;
    const char *path;
    int vocab;
};

const char *data_open(Data **out, const char *path, int vocab, int seq, int rank, int ranks)
{
    Data *data = calloc(1, sizeof *data);
    if (!data) fatal("out of memory for --data %s", path);
    data->vocab = vocab;
    data->path = path;
    const char *complaint = corpus_open(&data->corpus, path);
    if (!complaint && data_tokens(data) < (int64_t)seq + 1)
        complaint = complain("--seq %d: a sequence and its labels need %d tokens; --data %s has %lld", seq, seq + 1,
                             path, (long long)data_tokens(data));
    if (!complaint) complaint = corpus_check(&data->corpus, vocab, rank, ranks);
    if (complaint) {
        data_close(data);
        data = NULL;
    }
    *out = data;
    return complaint;
}

void data_close(Data *data)
{
    if (!data) return;
    corpus_close(&data->corpus);
    free(data);
}

int64_t data_tokens(const Data *data)
{
    return data->corpus.count;
}

void data_print_notes(const Data *data)
{
    enum { BYTES = 256 };
    if (data->corpus.note) printf("%s\n", data->corpus.note);
    if (data->corpus.width == 1 && data->vocab != BYTES)
        printf("note: --data %s is text, read as bytes: tokens from 0 to %d, in a vocabulary of %d\n", data->path,
               BYTES - 1, data->vocab);
}

uint64_t data_fingerprint(const Data *data)
{
    enum { LOOKED_AT = 1000000 };
    int64_t count = data_tokens(data), stride = 1 + count / LOOKED_AT;
    uint64_t hash = HASH_START ^ (uint64_t)count;
    int source = 0;
    for (int64_t i = 0; i < count; i += stride) hash = hash_step(hash, corpus_token(&data->corpus, i, &source));
    return hash;
}

/* --- sequences --- */

/* A file that is mapped may have changed since it was checked. */
static int checked_token(const Data *data, int64_t i, int *source)
{
    uint32_t token = corpus_token(&data->corpus, i, source);
    const Source *s = &data->corpus.source[*source];
    if (token >= (uint32_t)data->vocab)
        fatal("--data %s: it has changed; token %u at offset %lld is outside the vocabulary of %d", s->path, token,
              (long long)(i - s->begin), data->vocab);
    return (int)token;
}

void data_read(const Data *data, DataOrder order, long step, int first, int count, int id_zero, Rows *rows)
{
    const int T = order.seq;
    const uint64_t windows = rng_stream("data"), unevenness = rng_stream("ignore.sequence"),
                   lots = rng_stream("ignore");
    for (int b = 0; b < count; b++) {
        uint64_t sequence = (uint64_t)step * (uint64_t)order.batch + (uint64_t)(first + b);
        int64_t begin = (int64_t)rng_below(order.seed, windows, sequence, (uint64_t)(data_tokens(data) - T));
        int source = corpus_source(&data->corpus, begin), label_source = source;
        /* this sequence's share of ignored labels: uniform around order.ignore, as far as 0 and 1 allow */
        double spread = order.ignore < 0.5 ? order.ignore : 1 - order.ignore;
        double drop = order.ignore + spread * (2 * rng_uniform(order.seed, unevenness, sequence) - 1);
        for (int t = 0; t < T; t++) {
            int i = b * T + t, zero = id_zero + b * T;
            rows->token[i] = checked_token(data, begin + t, &source);
            rows->label[i] = checked_token(data, begin + t + 1, &label_source);
            rows->position[i] = t;
            rows->id[i] = zero + t;
            rows->lo[i] = zero;
            rows->hi[i] = zero + t + 1;
            uint64_t lot = sequence * (uint64_t)T + (uint64_t)t;
            if (drop > 0 && rng_uniform(order.seed, lots, lot) < drop) rows->label[i] = -1;
        }
    }
}
