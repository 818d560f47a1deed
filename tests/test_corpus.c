/* ranks: 1  builds: fp64 fp32 fp32-san
 *
 * What --data reads: text, files of tokens, folders and links. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/data.h"
#include "data/folder.h"
#include "base/error.h"
#include "testing.h"

static void write_file(const char *path, const void *bytes, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(bytes, 1, size, f);
    fclose(f);
}

static void text_and_folders(void **state)
{
    (void)state;
    char dir[] = "/tmp/tiny-data-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/b.txt", dir);
    write_file(path, "world", 5);
    snprintf(path, sizeof path, "%s/a.txt", dir);
    write_file(path, "hello", 5);
    snprintf(path, sizeof path, "%s/binary", dir);
    write_file(path, "x\0y", 3);
    snprintf(path, sizeof path, "%s/.hidden", dir);
    write_file(path, "secret", 6);

    Data *data;
    assert_null(data_open(&data, dir, 256, 9, 0, 1));
    assert_int_equal(data_tokens(data), 10); /* helloworld */
    Rows rows = rows_create(9);
    data_read(data, (DataOrder){.seed = 1, .batch = 1, .seq = 9}, 0, 0, 1, &rows);
    const char text[] = "helloworld"; /* one window fits, so it must be this one */
    for (int t = 0; t < 9; t++) {
        assert_int_equal(rows.token[t], text[t]);
        assert_int_equal(rows.label[t], text[t + 1]);
        assert_int_equal(rows.position[t], t);
        assert_int_equal(rows.hi[t] - rows.lo[t], t + 1);
    }
    assert_int_equal(rows_area(&rows), 45);
    rows_free(&rows);
    data_close(data);

    assert_non_null(strstr(data_open(&data, dir, 256, 10, 0, 1), "--seq 10: a sequence and its labels need 11"));
    const char *complaint = data_open(&data, dir, 119, 4, 0, 1); /* 'w' is 119, the first byte of the second file */
    assert_non_null(strstr(complaint, "b.txt: byte 119 at offset 0 is outside the vocabulary of 119"));
    assert_null(data_open(&data, dir, 119, 4, 0, 2)); /* rank 0 of 2 looks at the first half only */
    data_close(data);
    assert_non_null(data_open(&data, dir, 119, 4, 1, 2));
    snprintf(path, sizeof path, "rm -r %s", dir);
    assert_int_equal(system(path), 0);
}

/* A file of `count` tokens of `width` bytes, which count from `first`, under this header. */
static void write_tokens(const char *path, int32_t magic, int32_t version, int width, int count, int first)
{
    int32_t header[256] = {magic, version, count};
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(header, sizeof header, 1, f);
    for (int32_t token = first; token < first + count; token++) fwrite(&token, (size_t)width, 1, f);
    fclose(f);
}

static void assert_refused(const char *path, int vocab, int seq, const char *text)
{
    Data *data;
    const char *complaint = data_open(&data, path, vocab, seq, 0, 1);
    assert_non_null(complaint);
    assert_null(data);
    if (!strstr(complaint, text)) fail_msg("\"%s\" does not say \"%s\"", complaint, text);
}

/* The only window of a corpus: its tokens in order. */
static void assert_reads(const char *path, int vocab, int count, const int *tokens)
{
    Data *data;
    const char *complaint = data_open(&data, path, vocab, count - 1, 0, 1);
    if (complaint) fail_msg("%s", complaint);
    assert_int_equal(data_tokens(data), count);
    Rows rows = rows_create(count - 1);
    data_read(data, (DataOrder){.seed = 1, .batch = 1, .seq = count - 1}, 0, 0, 1, &rows);
    assert_memory_equal(rows.token, tokens, (size_t)(count - 1) * sizeof(int));
    assert_memory_equal(rows.label, tokens + 1, (size_t)(count - 1) * sizeof(int));
    rows_free(&rows);
    data_close(data);
}

static void token_files(void **state)
{
    (void)state;
    const char *path = "/tmp/tiny-unit-tokens"; /* the magic number says what it is, not the name */
    int32_t file[256 + 4] = {20240520, 1, 4};   /* four tokens of two bytes, and as many bytes again */
    Data *data;
    write_tokens(path, 20240801, 7, 4, 4, 70000);
    assert_reads(path, 70004, 4, (int[]){70000, 70001, 70002, 70003});
    assert_refused(path, 70000, 3, "token 70000 at offset 0 is outside the vocabulary of 70000");
    write_tokens(path, 20240801, 1, 4, 4, 0);
    assert_refused(path, 70001, 3,
                   "version 1; a file of llama-3's tokens (uint32), magic number 20240801, has version 7");
    write_tokens(path, 20240520, 7, 2, 4, 0);
    assert_refused(path, 70001, 3,
                   "version 7; a file of gpt-2's tokens (uint16), magic number 20240520, has version 1");

    file[2] = 8;
    write_file(path, file, sizeof file);
    assert_null(data_open(&data, path, 65536, 3, 0, 1));
    assert_int_equal(data_tokens(data), 8);
    data_close(data);
    write_file(path, file, sizeof file - 1);
    assert_refused(path, 65536, 3, "promises 8 tokens, the file holds 7 and a part of one");
    file[2] = 4;
    write_file(path, file, sizeof file);
    assert_refused(path, 65536, 3, "promises 4 tokens, the file holds 8");
    file[2] = 9;
    write_file(path, file, sizeof file);
    assert_refused(path, 65536, 3, "promises 9 tokens, the file holds 8");
    file[0] = 7;
    write_file(path, file, sizeof file);
    assert_refused(path, 65536, 3, "a zero byte at offset 1, so it is no text; and its magic number is 7");
    write_file(path, (int32_t[]){20240520, 1}, 8);
    assert_refused(path, 65536, 3, "8 bytes; a token file starts with a header of 1024");
    write_file(path, file, 0);
    assert_refused(path, 65536, 3, "empty");
    unlink(path);
    assert_refused(path, 65536, 3, "No such file");
    path = "/tmp/tiny-unit-text.bin";
    write_file(path, "text", 4);
    assert_reads(path, 256, 4, (int[]){'t', 'e', 'x', 't'});
    unlink(path);
}

/* Files of tokens are one corpus, in order of their names; a corpus holds one kind. */
static void token_folders(void **state)
{
    (void)state;
    char dir[] = "/tmp/tiny-data-XXXXXX", a[64], b[64], c[64], command[64];
    assert_non_null(mkdtemp(dir));
    snprintf(a, sizeof a, "%s/a", dir), snprintf(b, sizeof b, "%s/b.bin", dir), snprintf(c, sizeof c, "%s/c", dir);
    write_tokens(b, 20240520, 1, 2, 3, 300);
    write_tokens(a, 20240520, 1, 2, 2, 10);
    write_tokens(c, 20240520, 1, 2, 1, 7);
    assert_reads(dir, 400, 6, (int[]){10, 11, 300, 301, 302, 7});
    assert_refused(dir, 302, 3, "b.bin: token 302 at offset 2 is outside");
    write_tokens(b, 20240520, 1, 2, 0, 0);
    assert_reads(dir, 400, 3, (int[]){10, 11, 7});

    Data *data; /* the window that spans two files is one of several */
    write_tokens(b, 20240520, 1, 2, 3, 12);
    write_tokens(c, 20240520, 1, 2, 2, 15);
    assert_null(data_open(&data, dir, 17, 4, 0, 1));
    Rows rows = rows_create(4);
    bool seen[3] = {false};
    for (int step = 0; step < 60; step++) {
        data_read(data, (DataOrder){.seed = 1, .batch = 1, .seq = 4}, step, 0, 1, &rows);
        for (int t = 0; t < 4; t++)
            assert_true(rows.token[t] == rows.token[0] + t && rows.label[t] == rows.token[t] + 1);
        assert_true(rows.token[0] >= 10 && rows.token[0] <= 12);
        seen[rows.token[0] - 10] = true;
    }
    assert_true(seen[0] && seen[1] && seen[2]);
    rows_free(&rows);
    data_close(data);

    write_tokens(c, 20240801, 7, 4, 2, 15);
    assert_refused(dir, 400, 3, "a folder of data must hold one kind");
    write_file(c, "text", 4);
    assert_refused(dir, 400, 3, "/c: text, but");
    write_file(c, "x\0y", 3); /* neither: left out */
    assert_reads(dir, 400, 5, (int[]){10, 11, 12, 13, 14});
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

/* Links are followed, once; what is left out is counted. */
static void links_and_what_is_left_out(void **state)
{
    (void)state;
    char dir[] = "/tmp/tiny-data-XXXXXX", command[1000];
    assert_non_null(mkdtemp(dir));
    snprintf(command, sizeof command,
             "cd %s && mkdir d e build .h && echo -n there > e/f && ln -s . d/loop && ln -s ../e d/link && ln -s none "
             "gone && "
             "ln e/f d/same && echo -n hello > d/a && : > empty && printf 'x\\0' > binary && mkfifo pipe && echo -n x "
             "> build/x",
             dir);
    assert_int_equal(system(command), 0);
    assert_reads(dir, 256, 10, (int[]){'h', 'e', 'l', 'l', 'o', 't', 'h', 'e', 'r', 'e'});
    Folder folder;
    assert_null(folder_list(&folder, dir));
    char *note = folder_note(&folder), expected[300];
    snprintf(
        expected, sizeof expected,
        "data %s: 7 files or folders left out: 1 hidden (.h), 1 named build (build), 1 unreadable (gone), 1 no file "
        "(pipe), 3 read under another name (d/loop, ...)",
        dir);
    assert_string_equal(note, expected);
    free(note);
    const struct {
        const char *path;
        bool takes;
    } paths[] = {{"new", true}, {"e/f", true}, {"e/new", true}, {".h/new", false}, {"build/x", false}, {".new", false}};
    for (size_t p = 0; p < sizeof paths / sizeof paths[0]; p++) {
        char path[100];
        snprintf(path, sizeof path, "%s/%s", dir, paths[p].path);
        assert_int_equal(folder_takes(&folder, path), paths[p].takes);
    }
    folder_free(&folder);
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

/* `depth` folders, one in the other, and a file in the last. */
static void make_deep(const char *dir, int depth)
{
    char cwd[1000];
    assert_non_null(getcwd(cwd, sizeof cwd));
    assert_int_equal(chdir(dir), 0);
    for (int d = 0; d < depth; d++) assert_true(mkdir("d", 0700) == 0 && chdir("d") == 0);
    write_file("f", "deep", 4);
    assert_int_equal(chdir(cwd), 0);
}

static void deep_folders(void **state)
{
    (void)state;
    char dir[] = "/tmp/tiny-data-XXXXXX", command[64];
    assert_non_null(mkdtemp(dir));
    make_deep(dir, 2000);
    assert_reads(dir, 256, 4, (int[]){'d', 'e', 'e', 'p'});
    snprintf(command, sizeof command, "rm -r %s/d", dir);
    assert_int_equal(system(command), 0);
    make_deep(dir, 2100);
    assert_refused(dir, 256, 3, "a path in it is longer than 4095 bytes: /d/d/");
    assert_int_equal(system(command), 0);
    assert_int_equal(rmdir(dir), 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(text_and_folders),           cmocka_unit_test(token_files),  cmocka_unit_test(token_folders),
    cmocka_unit_test(links_and_what_is_left_out), cmocka_unit_test(deep_folders),
};
TESTING_MAIN(tests)
