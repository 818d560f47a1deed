/* The tokens of --data as one long row: of one file, or of all files of a folder, one after the other.
 *
 * A file that begins with a magic number of llm.c is a file of tokens under any name; any other file is text, and each
 * byte of it is a token. A corpus holds one kind only, so that no sequence mixes vocabularies:
 *
 *   magic number  version  a token is
 *   20240520      1        uint16, of gpt-2
 *   20240801      7        uint32, of llama-3
 *   none                   a byte; a text has no zero byte
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One file. */
typedef struct {
    char *path;
    int64_t begin;       /* its first token in the corpus */
    const void *tokens;  /* NULL while a folder of text is still read: the text may move */
    void *mapped;        /* the file in memory; NULL: a file of a folder of text */
    size_t mapped_bytes; /* with the header */
} Source;

typedef struct {
    Source *source; /* [sources], by begin */
    int sources;
    int64_t count; /* tokens */
    int width;     /* bytes of a token: 1, 2 or 4 */
    char *text;    /* of a folder of text */
    char *note;    /* one line about what was left out of a folder; NULL: nothing */
} Corpus;

/* Opens the file or folder `path`. Returns NULL or a complaint. A rank that has too little memory ends the job.
 * corpus_close in either case. */
const char *corpus_open(Corpus *corpus, const char *path);
void corpus_close(Corpus *corpus);

/* Checks the share of rank `rank` of `ranks`: a token must be below `vocab`, a byte of text must not be zero. Returns
 * NULL or a complaint. */
const char *corpus_check(const Corpus *corpus, int vocab, int rank, int ranks);

/* The file that holds token i. */
int corpus_source(const Corpus *corpus, int64_t i);

/* Token i. *source is the file that holds it, or one before that; it is moved on to the one that does. */
uint32_t corpus_token(const Corpus *corpus, int64_t i, int *source);
