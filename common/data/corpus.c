#include "data/corpus.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "data/folder.h"

/* llm.c's files of tokens: a header of 256 int32 (magic number, version, number of tokens), then the tokens. */
typedef struct {
    int32_t magic, version;
    int width;
    const char *tokens;
} Layout;
enum { HEADER_WORDS = 256, HEADER_BYTES = HEADER_WORDS * sizeof(int32_t) };
static const Layout layouts[] = {{20240520, 1, 2, "gpt-2's tokens (uint16)"},
                                 {20240801, 7, 4, "llama-3's tokens (uint32)"}};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

/* NULL: text. */
static const Layout *layout_of(int32_t magic)
{
    for (int l = 0; l < LAYOUTS; l++)
        if (layouts[l].magic == magic) return &layouts[l];
    return NULL;
}

/* --- files --- */

/* What the system's error number says about a file. Too little memory is no fault of the user's: it ends the job. */
static const char *complain_errno(const char *path)
{
    if (errno == ENOMEM) fatal("out of memory for --data %s", path);
    return complain("--data %s: %s", path, strerror(errno));
}

static void add_source(Corpus *c, Source source, const char *path, int64_t tokens)
{
    c->source = realloc(c->source, (size_t)(c->sources + 1) * sizeof *c->source);
    source.path = strdup(path);
    if (!c->source || !source.path) fatal("out of memory for the list of data files");
    source.begin = c->count;
    c->source[c->sources++] = source;
    c->count += tokens;
}

/* Is this file of another kind than those before? */
static const char *check_kind(Corpus *c, int width, const char *path)
{
    if (c->sources == 0) c->width = width;
    if (c->width == width) return NULL;
    const char *kind[] = {"text", "text"};
    for (int l = 0; l < LAYOUTS; l++) {
        if (layouts[l].width == c->width) kind[0] = layouts[l].tokens;
        if (layouts[l].width == width) kind[1] = layouts[l].tokens;
    }
    return complain("--data %s: %s, but %s is %s; a folder of data must hold one kind", path, kind[1],
                    c->source[0].path, kind[0]);
}

static const char *map(Source *source, const char *path, int file, size_t bytes)
{
    source->mapped_bytes = bytes;
    source->mapped = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    return source->mapped == MAP_FAILED ? complain_errno(path) : NULL;
}

static const char *add_tokens(Corpus *c, const char *path, int file, size_t bytes, const Layout *layout)
{
    Source source;
    if (bytes < HEADER_BYTES)
        return complain("--data %s: %zu bytes; a token file starts with a header of %d", path, bytes,
                        (int)HEADER_BYTES);
    const char *complaint = check_kind(c, layout->width, path);
    if (!complaint) complaint = map(&source, path, file, bytes);
    if (complaint) return complaint;
    const int32_t *header = source.mapped;
    int64_t count = header[2], present = (int64_t)(bytes - HEADER_BYTES) / layout->width;
    if (header[1] != layout->version)
        complaint = complain("--data %s: version %d; a file of %s, magic number %d, has version %d", path, header[1],
                             layout->tokens, layout->magic, layout->version);
    else if (count != present || bytes != HEADER_BYTES + (size_t)count * (size_t)layout->width)
        complaint =
            complain("--data %s: the header promises %lld tokens, the file holds %lld%s", path, (long long)count,
                     (long long)present, (bytes - HEADER_BYTES) % (size_t)layout->width ? " and a part of one" : "");
    if (complaint) {
        munmap(source.mapped, bytes);
        return complaint;
    }
    source.tokens = header + HEADER_WORDS;
    add_source(c, source, path, count);
    return NULL;
}

static const char *add_text(Corpus *c, const char *path, int file, size_t bytes)
{
    Source source;
    const char *complaint = map(&source, path, file, bytes);
    if (complaint) return complaint;
    c->width = 1;
    source.tokens = source.mapped;
    add_source(c, source, path, (int64_t)bytes);
    return NULL;
}

/* Appends a file of a folder, up to the first zero byte: if there is one it is no text, and is left out. A folder may
 * hold more files than a process may map. */
static const char *append_text(Corpus *c, const char *path, int file, Folder *folder)
{
    enum { BLOCK = 1 << 20 };
    bool text = true;
    int64_t end = c->count; /* of the text */
    ssize_t got;
    do {
        char *bytes = realloc(c->text, (size_t)end + BLOCK);
        if (!bytes) fatal("out of memory for --data %s", path);
        c->text = bytes;
        do got = read(file, bytes + end, BLOCK);
        while (got < 0 && errno == EINTR);
        if (got < 0) return complain_errno(path);
        text = memchr(bytes + end, 0, (size_t)got) == NULL;
        end += got;
    } while (got > 0 && text);
    if (!text || end == c->count) {
        folder_leave_out(folder, text ? LEFT_EMPTY : LEFT_BINARY, path);
        return NULL;
    }
    const char *complaint = check_kind(c, 1, path);
    if (!complaint) add_source(c, (Source){0}, path, end - c->count);
    return complaint;
}

/* `folder`: the folder that the file lies in; NULL: the user named the file. */
static const char *add_file(Corpus *c, const char *path, Folder *folder)
{
    struct stat info;
    int32_t magic = 0;
    int file = open(path, O_RDONLY | O_NONBLOCK); /* a pipe may have taken the file's place; it would keep us waiting */
    if (file < 0 && folder && (errno == EACCES || errno == EPERM || errno == ENOENT)) {
        folder_leave_out(folder, LEFT_UNREADABLE, path);
        return NULL;
    }
    if (file < 0) return complain_errno(path);
    const char *complaint = NULL;
    ssize_t got = fstat(file, &info) == 0 ? pread(file, &magic, sizeof magic, 0) : -1;
    const Layout *layout = got == sizeof magic ? layout_of(magic) : NULL;
    if (got < 0)
        complaint = complain_errno(path);
    else if (layout)
        complaint = add_tokens(c, path, file, (size_t)info.st_size, layout);
    else if (folder)
        complaint = append_text(c, path, file, folder);
    else if (info.st_size == 0)
        complaint = complain("--data %s: the file is empty", path);
    else
        complaint = add_text(c, path, file, (size_t)info.st_size);
    close(file);
    return complaint;
}

/* --- the corpus --- */

static const char *add_folder(Corpus *c, const char *path)
{
    Folder folder;
    const char *complaint = folder_list(&folder, path);
    for (int f = 0; f < folder.files && !complaint; f++) complaint = add_file(c, folder.path[f], &folder);
    if (!complaint && c->count == 0) complaint = complain("--data %s: no text and no tokens in this folder", path);
    for (int s = 0; s < c->sources && c->width == 1; s++) c->source[s].tokens = c->text + c->source[s].begin;
    c->note = folder_note(&folder);
    folder_free(&folder);
    return complaint;
}

const char *corpus_open(Corpus *c, const char *path)
{
    struct stat info;
    *c = (Corpus){.width = 1};
    if (stat(path, &info) != 0) return complain_errno(path);
    if (S_ISREG(info.st_mode)) return add_file(c, path, NULL);
    if (S_ISDIR(info.st_mode)) return add_folder(c, path);
    return complain("--data %s: neither a file nor a folder", path);
}

void corpus_close(Corpus *c)
{
    for (int s = 0; s < c->sources; s++) {
        if (c->source[s].mapped) munmap(c->source[s].mapped, c->source[s].mapped_bytes);
        free(c->source[s].path);
    }
    free(c->source);
    free(c->text);
    free(c->note);
}

int corpus_source(const Corpus *c, int64_t i)
{
    int low = 0, high = c->sources; /* it is in [low, high) */
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (c->source[middle].begin <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}

uint32_t corpus_token(const Corpus *c, int64_t i, int *source)
{
    while (*source + 1 < c->sources && c->source[*source + 1].begin <= i) ++*source;
    const Source *s = &c->source[*source];
    int64_t at = i - s->begin;
    switch (c->width) {
    case 1: return ((const uint8_t *)s->tokens)[at];
    case 2: return ((const uint16_t *)s->tokens)[at];
    default: return ((const uint32_t *)s->tokens)[at];
    }
}

/* Tokens outside the vocabulary would index past the embedding. Zero bytes come from a file of tokens or numbers in a
 * layout that is not known here. */
const char *corpus_check(const Corpus *c, int vocab, int rank, int ranks)
{
    int64_t begin = c->count * rank / ranks, end = c->count * (rank + 1) / ranks;
    int source = corpus_source(c, begin);
    for (int64_t i = begin; i < end; i++) {
        uint32_t token = corpus_token(c, i, &source);
        bool zero = c->width == 1 && token == 0;
        if (token < (uint32_t)vocab && !zero) continue;
        const char *path = c->source[source].path;
        long long at = (long long)(i - c->source[source].begin);
        if (!zero)
            return complain("--data %s: %s %u at offset %lld is outside the vocabulary of %d", path,
                            c->width == 1 ? "byte" : "token", token, at, vocab);
        int32_t magic = 0;
        memcpy(&magic, c->source[source].tokens, c->count < 4 ? (size_t)c->count : sizeof magic);
        return complain("--data %s: a zero byte at offset %lld, so it is no text; and its magic number is %d, where a "
                        "token file has %d (uint16) or %d (uint32)",
                        path, at, magic, layouts[0].magic, layouts[1].magic);
    }
    return NULL;
}
