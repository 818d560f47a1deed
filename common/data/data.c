#include "data/data.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/comm.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"

/* --- files --- */

typedef struct {
    char *path;
    int64_t begin; /* its first token in the stream */
} Source;

struct Data {
    const void *tokens; /* [count], each `width` bytes */
    int64_t count;
    int width; /* 1, 2 or 4 */
    int vocab;
    Source *sources;
    int source_count;
    void *owned;  /* the bytes of a folder */
    void *mapped; /* or the mapping of one file */
    size_t mapped_bytes;
};

static uint32_t token_at(const Data *data, int64_t i)
{
    switch (data->width) {
    case 1: return ((const uint8_t *)data->tokens)[i];
    case 2: return ((const uint16_t *)data->tokens)[i];
    default: return ((const uint32_t *)data->tokens)[i];
    }
}

static void add_source(Data *data, const char *path, int64_t begin)
{
    data->sources = realloc(data->sources, (size_t)(data->source_count + 1) * sizeof *data->sources);
    if (!data->sources) fatal("out of memory for the list of data files");
    data->sources[data->source_count++] = (Source){strdup(path), begin};
}

/* Appends a file's bytes, up to the first zero byte: if there is one it is no text, and is left out. */
static const char *append_text(Data *data, const char *path)
{
    enum { BLOCK = 1 << 20 };
    FILE *f = fopen(path, "rb");
    if (!f) return complain("--data %s: %s", path, strerror(errno));
    int64_t begin = data->count;
    bool text = true;
    size_t got;
    do {
        char *bytes = realloc(data->owned, (size_t)data->count + BLOCK);
        if (!bytes) fatal("out of memory for %s", path);
        data->owned = bytes;
        got = fread(bytes + data->count, 1, BLOCK, f);
        text = memchr(bytes + data->count, 0, got) == NULL;
        data->count += (int64_t)got;
        comm_progress(); /* a sign of life: a disk may be slow */
    } while (got == BLOCK && text);
    bool failed = ferror(f);
    fclose(f);
    if (failed) return complain("--data %s: it cannot be read", path);
    if (!text) data->count = begin;
    if (data->count > begin) add_source(data, path, begin);
    return NULL;
}

bool data_leaves_out(const char *name)
{
    return name[0] == '.' || strcmp(name, "build") == 0;
}

/* Every text file below `path`, in order of names. */
static const char *append_folder(Data *data, const char *path)
{
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, alphasort);
    if (n < 0) return complain("--data %s: %s", path, strerror(errno));
    const char *complaint = NULL;
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        char child[PATH_MAX];
        struct stat info;
        bool fits = snprintf(child, sizeof child, "%s/%s", path, name) < (int)sizeof child;
        if (!complaint && fits && !data_leaves_out(name) && lstat(child, &info) == 0) {
            if (S_ISDIR(info.st_mode)) complaint = append_folder(data, child);
            if (S_ISREG(info.st_mode)) complaint = append_text(data, child);
        }
        free(entries[i]);
    }
    free(entries);
    return complaint;
}

/* llm.c's layout: 256 int32 of header (magic, version 1, number of tokens), then the tokens. */
static const char *use_token_file(Data *data, const char *path)
{
    enum { HEADER_WORDS = 256, MAGIC_16 = 20240520, MAGIC_32 = 20240801 };
    const int32_t *header = data->mapped;
    size_t header_bytes = HEADER_WORDS * sizeof *header;
    if (data->mapped_bytes < header_bytes)
        return complain("--data %s: %zu bytes; a token file starts with a header of %zu", path, data->mapped_bytes,
                        header_bytes);
    if (header[0] != MAGIC_16 && header[0] != MAGIC_32)
        return complain("--data %s: magic number %d; a token file has %d (uint16) or %d (uint32)", path, header[0],
                        MAGIC_16, MAGIC_32);
    if (header[1] != 1) return complain("--data %s: version %d; only version 1 is known", path, header[1]);
    data->width = header[0] == MAGIC_16 ? 2 : 4;
    data->tokens = header + HEADER_WORDS;
    data->count = header[2];
    int64_t present = (int64_t)(data->mapped_bytes - header_bytes) / data->width;
    if (data->count < 0 || data->count > present)
        return complain("--data %s: the header promises %d tokens, the file holds %lld", path, header[2],
                        (long long)present);
    return NULL;
}

static const char *map_file(Data *data, const char *path, size_t size)
{
    int file = open(path, O_RDONLY);
    if (file < 0) return complain("--data %s: %s", path, strerror(errno));
    void *mapped = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (mapped == MAP_FAILED) return complain("--data %s: %s", path, strerror(errno));
    data->mapped = mapped;
    data->mapped_bytes = size;
    add_source(data, path, 0);

    size_t length = strlen(path);
    if (length > 4 && strcmp(path + length - 4, ".bin") == 0) return use_token_file(data, path);
    data->width = 1;
    data->tokens = mapped;
    data->count = (int64_t)size;
    return NULL;
}

static const char *open_any(Data *data, const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0) return complain("--data %s: %s", path, strerror(errno));
    if (S_ISREG(info.st_mode)) {
        if (info.st_size == 0) return complain("--data %s: the file is empty", path);
        return map_file(data, path, (size_t)info.st_size);
    }
    if (!S_ISDIR(info.st_mode)) return complain("--data %s: neither a file nor a folder", path);
    const char *complaint = append_folder(data, path);
    if (complaint) return complaint;
    if (data->count == 0) return complain("--data %s: no text file in this folder", path);
    data->width = 1;
    data->tokens = data->owned;
    return NULL;
}

enum { SIGN_OF_LIFE = 1 << 16 }; /* tokens */

/* Tokens outside the vocabulary would index past the embedding. */
static const char *check_tokens(const Data *data, int vocab, int rank, int ranks)
{
    int64_t begin = data->count * rank / ranks, end = data->count * (rank + 1) / ranks;
    for (int64_t i = begin; i < end; i++) {
        if (i % SIGN_OF_LIFE == 0) comm_progress();
        if (token_at(data, i) < (uint32_t)vocab) continue;
        int s = 0;
        while (s + 1 < data->source_count && data->sources[s + 1].begin <= i) s++;
        return complain("--data %s: token %u at offset %lld is outside the vocabulary of %d", data->sources[s].path,
                        token_at(data, i), (long long)(i - data->sources[s].begin), vocab);
    }
    return NULL;
}

const char *data_open(Data **out, const char *path, int vocab, int seq, int rank, int ranks)
{
    Data *data = calloc(1, sizeof *data);
    if (!data) fatal("out of memory");
    data->vocab = vocab;
    const char *complaint = open_any(data, path);
    if (!complaint && data->count < (int64_t)seq + 1)
        complaint = complain("--seq %d: a sequence and its labels need %d tokens; --data %s has %lld", seq, seq + 1,
                             path, (long long)data->count);
    if (!complaint) complaint = check_tokens(data, vocab, rank, ranks);
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
    if (data->mapped) munmap(data->mapped, data->mapped_bytes);
    for (int s = 0; s < data->source_count; s++) free(data->sources[s].path);
    free(data->sources);
    free(data->owned);
    free(data);
}

int64_t data_tokens(const Data *data)
{
    return data->count;
}

uint64_t data_fingerprint(const Data *data)
{
    enum { LOOKED_AT = 1000000 };
    int64_t stride = 1 + data->count / LOOKED_AT;
    uint64_t hash = HASH_START ^ (uint64_t)data->count;
    for (int64_t i = 0, n = 0; i < data->count; i += stride, n++) {
        if (n % (SIGN_OF_LIFE / 64) == 0) comm_progress(); /* each may be a page of its own */
        hash = hash_step(hash, token_at(data, i));
    }
    return hash;
}

/* --- sequences --- */

/* A file that is mapped may have changed since it was checked. */
static int checked_token_at(const Data *data, int64_t i)
{
    uint32_t token = token_at(data, i);
    if (token >= (uint32_t)data->vocab)
        fatal("--data %s: it has changed; token %u at %lld is outside the vocabulary of %d", data->sources[0].path,
              token, (long long)i, data->vocab);
    return (int)token;
}

void data_read(const Data *data, DataOrder order, long step, int first, int count, int id_zero, Rows *rows)
{
    const int T = order.seq;
    const uint64_t windows = rng_stream("data"), unevenness = rng_stream("ignore.sequence"),
                   lots = rng_stream("ignore");
    for (int b = 0; b < count; b++) {
        uint64_t sequence = (uint64_t)step * (uint64_t)order.batch + (uint64_t)(first + b);
        int64_t begin = (int64_t)rng_below(order.seed, windows, sequence, (uint64_t)(data->count - T));
        /* this sequence's share of ignored labels: uniform around order.ignore, as far as 0 and 1 allow */
        double spread = order.ignore < 0.5 ? order.ignore : 1 - order.ignore;
        double drop = order.ignore + spread * (2 * rng_uniform(order.seed, unevenness, sequence) - 1);
        for (int t = 0; t < T; t++) {
            int i = b * T + t, zero = id_zero + b * T;
            rows->token[i] = checked_token_at(data, begin + t);
            rows->label[i] = checked_token_at(data, begin + t + 1);
            rows->position[i] = t;
            rows->id[i] = zero + t;
            rows->lo[i] = zero;
            rows->hi[i] = zero + t + 1;
            uint64_t lot = sequence * (uint64_t)T + (uint64_t)t;
            if (drop > 0 && rng_uniform(order.seed, lots, lot) < drop) rows->label[i] = -1;
        }
    }
}
