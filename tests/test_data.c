/* ranks: 1  builds: fp64 fp32 fp32-san
 *
 * Which sequences a step takes from the data, and what they may see. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/batch.h"
#include "base/error.h"
#include "testing.h"

static void write_file(const char *path, const void *bytes, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(bytes, 1, size, f);
    fclose(f);
}

/* Sequence b of step s is the same on every rank that reads it, and --ignore drops about its fraction, unevenly. */
static void data_order(void **state)
{
    (void)state;
    const char *path = testing_token_file(50, 5000);
    Data *data;
    assert_null(data_open(&data, path, 50, 10, 0, 1));
    DataOrder order = {.seed = 3, .batch = 600, .seq = 10, .ignore = 0.4};
    Rows all = rows_create(6000), part = rows_create(10);
    data_read(data, order, 5, 0, 600, &all);
    int full = 0, empty = 0;
    for (int b = 0; b < 600; b++) {
        data_read(data, order, 5, b, 1, &part);
        Rows there = rows_slice(&all, b * 10, 10);
        assert_memory_equal(part.token, there.token, 10 * sizeof(int));
        assert_memory_equal(part.label, there.label, 10 * sizeof(int));
        full += rows_counted(&part) == 10;
        empty += rows_counted(&part) <= 2;
    }
    double kept = (double)rows_counted(&all) / 6000;
    assert_true(fabs(kept - 0.6) < 0.05 && full > 10 && empty > 10);
    int first = all.token[0], same = 0;
    for (int s = 0; s < 20; s++) {
        data_read(data, order, s, 0, 1, &part);
        same += part.token[0] == first;
    }
    assert_true(same < 10); /* other steps read other places */
    same = 0;
    for (int b = 0; b + 1 < 50; b++) { /* and not the places of their neighbours */
        data_read(data, order, 6, b, 1, &part);
        same += memcmp(part.token, all.token + (b + 1) * 10, 10 * sizeof(int)) == 0;
    }
    order.seed = 4;
    for (int b = 0; b < 50; b++) { /* nor does another seed */
        data_read(data, order, 5, b, 1, &part);
        same += memcmp(part.token, all.token + b * 10, 10 * sizeof(int)) == 0;
    }
    assert_true(same < 5);
    for (order.ignore = 0; order.ignore <= 1; order.ignore += 0.25) {
        data_read(data, order, 5, 0, 600, &all);
        assert_true(fabs((double)rows_counted(&all) / 6000 - (1 - order.ignore)) < 0.05);
    }
    rows_free(&all), rows_free(&part);
    data_close(data);
}

/* Every window that fits is drawn, the last one included; and the fingerprint sees every token of a small file. */
static void data_windows_and_fingerprint(void **state)
{
    (void)state;
    const char *path = "/tmp/tiny-unit-windows.txt";
    Data *data;
    write_file(path, "abcdefghijkl", 12);
    assert_null(data_open(&data, path, 256, 10, 0, 1));
    Rows rows = rows_create(10);
    bool first = false, last = false;
    for (int s = 0; s < 60; s++) {
        data_read(data, (DataOrder){.seed = 1, .batch = 1, .seq = 10}, s, 0, 1, &rows);
        first = first || rows.token[0] == 'a';
        last = last || rows.label[9] == 'l';
    }
    assert_true(first && last);
    uint64_t before = data_fingerprint(data);
    data_close(data);
    for (int i = 0; i < 12; i++) {
        char text[] = "abcdefghijkl";
        text[i] = 'z';
        write_file(path, text, 12);
        assert_null(data_open(&data, path, 256, 10, 0, 1));
        assert_true(data_fingerprint(data) != before);
        data_close(data);
    }
    rows_free(&rows);
    unlink(path);
}

/* Opens a text of n bytes, "abc...", with an x at each place of `begins`. */
static Data *open_documents(const char *path, int n, const int *begins, int count)
{
    char text[64];
    Data *data;
    for (int i = 0; i < n; i++) text[i] = (char)('a' + i % 20);
    for (int i = 0; i < count; i++) text[begins[i]] = 'x';
    write_file(path, text, (size_t)n);
    assert_null(data_open(&data, path, 256, n - 1, 0, 1));
    return data;
}

/* Two documents of four rows on two ranks: no row sees the other document, the last row of each has no label, and
 * positions begin again. A window and a prefix count inside a document. */
static void documents_windows_prefixes(void **state)
{
    (void)state;
    const int begins[] = {4, 8};
    Data *data = open_documents("/tmp/tiny-unit-documents.txt", 9, begins, 2);
    DataOrder order = {.seed = 1, .batch = 1, .seq = 8, .pack = 1, .document = 'x'};
    Rows rows = rows_create_host(8);
    data_read(data, order, 0, 0, 1, &rows);
    for (int t = 0; t < 8; t++) {
        assert_int_equal(rows.position[t], t % 4);
        assert_int_equal(rows.lo[t], t / 4 * 4);
        assert_int_equal(rows.hi[t], t + 1);
        assert_int_equal(rows.label[t], t % 4 == 3 ? -1 : rows.token[t + 1]);
    }
    order.window = 2;
    order.prefix = 3;
    data_read(data, order, 0, 0, 1, &rows);
    for (int t = 0; t < 8; t++) {
        int begin = t / 4 * 4, lo = t - 1 > begin ? t - 1 : begin, hi = begin + 3 > t + 1 ? begin + 3 : t + 1;
        assert_int_equal(rows.lo[t], lo);
        assert_int_equal(rows.hi[t], hi);
        assert_int_equal(rows.label[t], t % 4 == 2 ? rows.token[t + 1] : -1); /* the others see it, or have none */
    }
    order = (DataOrder){.seed = 1, .batch = 1, .seq = 8, .document = 'x'}; /* not packed: one document */
    data_read(data, order, 0, 0, 1, &rows);
    for (int t = 0; t < 8; t++) assert_true(rows.lo[t] == 0 && rows.position[t] == t && rows.label[t] >= 0);
    rows_free_host(&rows);
    data_close(data);
    unlink("/tmp/tiny-unit-documents.txt");
}

/* Every row of a sequence is on one rank, in ascending order; the layouts are those of cut.h; and dealing a sequence
 * takes each row's label, position and interval along. */
static void cuts_deal_every_row(void **state)
{
    (void)state;
    const int zigzag[2][4] = {{0, 1, 6, 7}, {2, 3, 4, 5}}, contiguous[2][4] = {{0, 1, 2, 3}, {4, 5, 6, 7}};
    for (int rank = 0; rank < 2; rank++)
        for (int i = 0; i < 4; i++) {
            assert_int_equal(cut_place((Cut){.ranks = 2, .rank = rank}, 8, i), zigzag[rank][i]);
            assert_int_equal(cut_place((Cut){.ranks = 2, .rank = rank, .layout = LAYOUT_CONTIGUOUS}, 8, i),
                             contiguous[rank][i]);
        }
    for (int ranks = 1; ranks <= 12; ranks++)
        for (int sharers = 1; sharers <= ranks; sharers++)
            for (int layout = 0; layout < 2 && ranks % sharers == 0; layout++) {
                Cut cut = {.ranks = ranks, .sharers = sharers, .layout = (Layout)layout};
                int seq = 2 * cut_multiple(cut), seen[1000] = {0};
                for (cut.rank = 0; cut.rank < ranks; cut.rank++)
                    for (int i = 0, before = -1; i < seq / ranks; i++) {
                        int place = cut_place(cut, seq, i);
                        assert_true(place > before && place < seq && !seen[place]++);
                        before = place;
                    }
            }
    Random r = {.seed = 5};
    Rows whole = random_rows(&r, 2, 12, 50, ROWS_DOCUMENTS | ROWS_WINDOW), mine = rows_create_host_team(6, 2);
    Cut cut = {.ranks = 4, .rank = 2, .sharers = 2};
    rows_deal(&mine, &whole, 12, cut);
    for (int i = 0; i < 6; i++) {
        int from = i / 3 * 12 + cut_place(cut, 12, i % 3);
        assert_true(mine.id[i] == from && mine.token[i] == whole.token[from] && mine.label[i] == whole.label[from]);
        assert_true(mine.position[i] == whole.position[from] && mine.lo[i] == whole.lo[from]);
        assert_true(mine.team_lo[i] == mine.lo[i] && mine.team_hi[i] == mine.hi[i]); /* rank 2 is first in its team */
    }
    rows_free_host(&whole), rows_free_host(&mine);
}

static void no_label_no_scale(void **state)
{
    (void)state;
    Batch batch = {.counted = 0};
    assert_true(batch_scale(&batch) == 0);
    batch.counted = 4;
    assert_true(batch_scale(&batch) == 0.25);
}

static const struct CMUnitTest tests[] = {

    cmocka_unit_test(data_order),
    cmocka_unit_test(data_windows_and_fingerprint),
    cmocka_unit_test(documents_windows_prefixes),
    cmocka_unit_test(cuts_deal_every_row),
    cmocka_unit_test(no_label_no_scale),
};
TESTING_MAIN(tests)
