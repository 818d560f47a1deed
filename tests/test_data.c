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
    cmocka_unit_test(no_label_no_scale),
};
TESTING_MAIN(tests)
