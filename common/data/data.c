#include "data/data.h"

#include <stdbool.h>
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

Reach data_reach(DataOrder order)
{
    Reach reach = {order.seq - 1, order.prefix ? order.prefix - 1 : 0};
    if (order.window && order.window - 1 < reach.back) reach.back = order.window - 1;
    return reach;
}

int data_document_token(const Data *data)
{
    switch (data->corpus.width) {
    case 2: return 50256;  /* gpt-2: <|endoftext|> */
    case 4: return 128000; /* llama-3: <|begin_of_text|> */
    default: return -1;
    }
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

/* Does token i begin a document? `source` is the file that holds it. */
static bool begins_document(const Data *data, DataOrder order, int64_t i, int source, int token)
{
    return token == order.document || data->corpus.source[source].begin == i;
}

/* Fills in position, lo and hi of rows [begin, end) of a sequence: one document, or the part of it that the sequence
 * has. `rows` is the sequence, and `zero` the id of its first row. */
static void mask_document(DataOrder order, int begin, int end, int zero, Rows *rows)
{
    for (int t = begin; t < end; t++) {
        int first = order.window && t + 1 - order.window > begin ? t + 1 - order.window : begin;
        int prefix = order.prefix < end - begin ? begin + order.prefix : end; /* where the prefix ends */
        rows->position[t] = t - begin;
        rows->id[t] = zero + t;
        rows->lo[t] = zero + first;
        rows->hi[t] = zero + (prefix > t + 1 ? prefix : t + 1);
        if (prefix > t + 1) rows->label[t] = -1; /* the row sees the token that it would predict */
    }
}

/* Sequence `rows` begins at token `begin` of the data. */
static void read_sequence(const Data *data, DataOrder order, int64_t begin, int zero, Rows *rows)
{
    int source = corpus_source(&data->corpus, begin), document = 0; /* where the current document begins */
    int token = checked_token(data, begin, &source);
    for (int t = 0; t < rows->count; t++) {
        int next = checked_token(data, begin + t + 1, &source);
        bool ends = order.pack && begins_document(data, order, begin + t + 1, source, next);
        rows->token[t] = token;
        rows->label[t] = ends ? -1 : next;
        if (ends || t + 1 == rows->count) {
            mask_document(order, document, t + 1, zero, rows);
            document = t + 1;
        }
        token = next;
    }
}

void data_read(const Data *data, DataOrder order, long step, int first, int count, Rows *rows)
{
    const int T = order.seq;
    const uint64_t windows = rng_stream("data"), unevenness = rng_stream("ignore.sequence"),
                   lots = rng_stream("ignore");
    for (int b = 0; b < count; b++) {
        uint64_t sequence = (uint64_t)step * (uint64_t)order.batch + (uint64_t)(first + b);
        int64_t begin = (int64_t)rng_below(order.seed, windows, sequence, (uint64_t)(data_tokens(data) - T));
        Rows part = rows_slice(rows, b * T, T);
        read_sequence(data, order, begin, b * T, &part);
        /* this sequence's share of ignored labels: uniform around order.ignore, as far as 0 and 1 allow */
        double spread = order.ignore < 0.5 ? order.ignore : 1 - order.ignore;
        double drop = order.ignore + spread * (2 * rng_uniform(order.seed, unevenness, sequence) - 1);
        for (int t = 0; t < T; t++) {
            uint64_t lot = sequence * (uint64_t)T + (uint64_t)t;
            if (drop > 0 && rng_uniform(order.seed, lots, lot) < drop) part.label[t] = -1;
        }
    }
}
