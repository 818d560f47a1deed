/* ranks: 1  builds: fp64 fp32
 *
 * The test of --ledger itself. The counters are made up from the formulas of every scheme. Then a row of the formulas
 * has a call or a byte more or less, or a row is missing, or there is one more: ledger_print must say DIFFERS on that
 * row alone. For this, the file replaces the counters of comm.c and the bytes of memory.c with its own. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "capture.h"
#include "case.h"
#include "kernels/memory.h"
#include "observe/ledger.h"

typedef struct {
    char name[16];
    int size;
    bool uncounted;
    CommCount count[COMM_KINDS];
} FakeGroup;

enum { GROUPS = 8, REPORT = 8000 };
static FakeGroup fake[GROUPS + 1];
static int fakes;
static size_t fake_memory[MEMORY_CATEGORIES];

static Group *fake_group(int index)
{
    return index < fakes ? (Group *)&fake[index] : NULL;
}

static CommCount fake_count(const Group *group, CommKind kind)
{
    return ((const FakeGroup *)group)->count[kind];
}

static const char *fake_name(const Group *group)
{
    return ((const FakeGroup *)group)->name;
}

static int fake_size(const Group *group)
{
    return ((const FakeGroup *)group)->size;
}

static bool fake_is_counted(const Group *group)
{
    return !((const FakeGroup *)group)->uncounted;
}

static size_t fake_held(MemoryCategory category)
{
    return fake_memory[category];
}

/* This file's ledger looks at the fakes. It takes the place of the library's. */
#define comm_group       fake_group
#define group_count      fake_count
#define group_name       fake_name
#define group_size       fake_size
#define group_is_counted fake_is_counted
#define memory_held      fake_held
#include "observe/ledger.c" /* NOLINT */
#undef comm_group
#undef group_count
#undef group_name
#undef group_size
#undef group_is_counted
#undef memory_held

/* --- cases --- */

static int size_of(const Case *c, const char *group)
{
    const char *strategy = c->sharding.strategy;
    bool shards = c->fsdp > 1 || (strategy && strcmp(strategy, "ddp") != 0);
    if (strcmp(group, "dp") == 0) return shards ? c->dp : c->cp * c->dp;
    if (strcmp(group, "tp") == 0) return c->tp;
    if (strcmp(group, "cp") == 0) return c->cp / (int)c->context.ulysses_size;
    if (strcmp(group, "ulysses") == 0) return (int)c->context.ulysses_size;
    if (strcmp(group, "model") == 0) return shards ? c->tp * c->cp * c->fsdp : c->tp;
    if (strcmp(group, "kv") == 0) return c->tp / c->t.model.kv_heads;
    return c->cp * c->fsdp;
}

/* Each counter as the formula has it, added up call by call. */
static void count_as_expected(const Case *c, const Expected *e)
{
    fakes = 0;
    memset(fake, 0, sizeof fake);
    for (int r = 0; r < e->comm_rows; r++) {
        const ExpectedComm *row = &e->comm[r];
        int g = 0;
        while (g < fakes && strcmp(fake[g].name, row->group) != 0) g++;
        CHECK(g < GROUPS);
        if (g == fakes) snprintf(fake[fakes++].name, sizeof fake[g].name, "%s", row->group);
        fake[g].size = size_of(c, row->group);
        CommCount *count = &fake[g].count[row->kind];
        double factor = comm_payload_factor(row->kind, fake[g].size), bytes = factor > 0 ? row->payload / factor : 0;
        double each = row->calls > 0 ? floor(bytes / row->calls) : 0;
        for (count->calls = 0; (double)count->calls + 1 < row->calls; count->calls++) count->payload += each * factor;
        if (row->calls > 0) count->payload += (bytes - (row->calls - 1) * each) * factor, count->calls++;
    }
    memcpy(fake_memory, e->memory, sizeof fake_memory);
    fake_memory[MEMORY_TWIN] = 12345; /* is no part of the ledger */
}

static int ledgers;

/* Asserts that all lines agree, if `row` is NULL. Else asserts that one line differs, and that it begins with `row`. */
static void expect_verdict(const Expected *e, const char *row, const char *what)
{
    char text[REPORT], kept[REPORT];
    capture_begin();
    bool agrees = ledger_print(e, true);
    capture_end(text, sizeof text);
    capture_begin();
    bool silent = ledger_print(e, false) == agrees;
    capture_end(kept, sizeof kept);
    silent = silent && !*kept;
    memcpy(kept, text, sizeof kept);
    int differing = 0;
    bool named = false;
    for (char *l = strtok(text, "\n"); l; l = strtok(NULL, "\n")) {
        bool differs = strstr(l, "DIFFERS") != NULL;
        differing += differs;
        named |= differs && row && strncmp(l + strlen("ledger: "), row, strlen(row)) == 0;
    }
    ledgers++;
    bool good = silent && agrees == !row && differing == (row != NULL) && named == (row != NULL);
    assert_together(good, "%s: %s %s:\n%s", what, row ? row : "all rows", row ? "should differ" : "should agree", kept);
}

static const char *row_name(const char *group, CommKind kind)
{
    static char name[40];
    snprintf(name, sizeof name, "%-8s %-15s", group, comm_kind_name(kind));
    return name;
}

static void check_comm_row(const Case *c, const Expected *e, int r)
{
    const ExpectedComm *row = &e->comm[r];
    double byte = comm_payload_factor(row->kind, size_of(c, row->group));
    const char *name = row_name(row->group, row->kind), *what = describe_case(c);
    for (int sign = -1; sign <= 1; sign += 2) {
        Expected other = *e;
        other.comm[r].calls += sign;
        expect_verdict(&other, name, what);
        other = *e;
        other.comm[r].payload += sign * byte;
        if (byte > 0) expect_verdict(&other, name, what);
    }
    Expected missing = *e; /* its counter is one that no row expects */
    missing.comm[r] = missing.comm[--missing.comm_rows];
    if (row->calls > 0) expect_verdict(&missing, name, what);
}

static void check_other_rows(const Case *c, const Expected *e)
{
    Expected more = *e;
    expect(&more, "data", COMM_BROADCAST, 1, 8, 2); /* of a group that is not there */
    expect_verdict(&more, row_name("data", COMM_BROADCAST), describe_case(c));
    more = *e;
    expect(&more, fake[0].name, COMM_BARRIER, 1, 0, 2); /* a kind that its group never called */
    expect_verdict(&more, row_name(fake[0].name, COMM_BARRIER), describe_case(c));
    more = *e;
    expect(&more, fake[0].name, COMM_BROADCAST, 0, 1, 2); /* no call, but a byte */
    expect_verdict(&more, row_name(fake[0].name, COMM_BROADCAST), describe_case(c));

    FakeGroup *extra = &fake[fakes++];
    *extra = (FakeGroup){.name = "extra", .size = 2};
    expect_verdict(e, NULL, describe_case(c));
    extra->count[COMM_ALL_GATHER] = (CommCount){1, 0};
    expect_verdict(e, row_name("extra", COMM_ALL_GATHER), describe_case(c));
    extra->uncounted = true;
    expect_verdict(e, NULL, describe_case(c));
    more = *e;
    expect(&more, "extra", COMM_ALL_GATHER, 1, 0, 2); /* equal, but not counted */
    expect_verdict(&more, row_name("extra", COMM_ALL_GATHER), describe_case(c));
    fakes--;
}

static void check_memory_rows(const Case *c, const Expected *e)
{
    for (int m = 0; m < MEMORY_CATEGORIES; m++)
        for (int sign = -1; sign <= 1; sign += 2) {
            if (e->memory[m] == 0 && sign < 0) continue;
            Expected other = *e;
            other.memory[m] += (size_t)sign;
            expect_verdict(&other, m == MEMORY_TWIN ? NULL : memory_category_name((MemoryCategory)m), describe_case(c));
            if (m != MEMORY_TWIN)
                assert_true(expected_total(&other) == expected_total(e) + (size_t)sign);
            else
                assert_true(expected_total(&other) == expected_total(e));
        }
}

/* Every strategy, tiny-ddp, and the schemes together, on random models. */
static void every_row_is_exact(void **state)
{
    (void)state;
    Random r = {.seed = 71};
    int rows = 0, cases = 35 + 35 + 70;
    for (int i = 0; i < cases; i++) {
        Case c = i < 35 ? random_shard_case(&r, i) : i < 70 ? random_tensor_case(&r, i) : random_composed_case(&r, i);
        Expected e = case_expected(&c);
        count_as_expected(&c, &e);
        expect_verdict(&e, NULL, describe_case(&c));
        for (int n = 0; n < e.comm_rows; n++) check_comm_row(&c, &e, n);
        check_other_rows(&c, &e);
        check_memory_rows(&c, &e);
        rows += e.comm_rows;
    }
    printf("%d cases with %d rows of communication, %d ledgers\n", cases, rows, ledgers);
}

/* Sums that round, of many calls and many bytes: no false alarm, and one byte is still seen. */
static void a_byte_among_many(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 9; ranks++)
        for (int kind = COMM_ALL_REDUCE; kind < COMM_KINDS; kind++) {
            if (kind == COMM_ALL_TO_ALL_V) continue; /* the mean of real ranks; test_moe compares it */
            Case c = {.tp = 1, .cp = 1, .context = {.ulysses_size = 1}, .fsdp = ranks, .dp = 1};
            Expected e = {0};
            expect(&e, "gather", (CommKind)kind, 10007, 10007 * 12345679.0, ranks);
            count_as_expected(&c, &e);
            expect_verdict(&e, NULL, "many bytes");
            check_comm_row(&c, &e, 0);
        }
}

static void equal_keys_add_up(void **state)
{
    (void)state;
    Expected e = {0};
    expect(&e, "dp", COMM_ALL_REDUCE, 1, 100, 4);
    expect(&e, "dp", COMM_ALL_GATHER, 2, 40, 4);
    expect(&e, "tp", COMM_ALL_REDUCE, 3, 7, 2);
    expect(&e, "dp", COMM_ALL_REDUCE, 10, 200, 4);
    assert_true(e.comm_rows == 3);
    assert_true(e.comm[0].calls == 11 && e.comm[0].payload == 450);
    assert_true(e.comm[1].calls == 2 && e.comm[1].payload == 30);
    assert_true(e.comm[2].calls == 3 && e.comm[2].payload == 7);
    e = (Expected){0};
    char name[32][8];
    for (int r = 0; r < 32; r++) { /* all rows that there are */
        snprintf(name[r], sizeof name[r], "g%d", r);
        expect(&e, name[r], COMM_ALL_REDUCE, 1, 1, 2);
    }
    assert_true(e.comm_rows == 32);
}

/* --- what is held --- */

static void expect_held(const ModelConfig *model, Placement placement, const char *name)
{
    enum { MOMENTS = 2 * sizeof(acc) };
    Kernels kernels = kernels_cpu();
    Expected e = {.optimizer_bytes = MOMENTS};
    expect_params(&e, model, placement);
    size_t weights = memory_held(MEMORY_PARAMETERS), grads = memory_held(MEMORY_GRADIENTS);
    Params p = params_create(model, placement, &kernels);
    weights = memory_held(MEMORY_PARAMETERS) - weights;
    grads = memory_held(MEMORY_GRADIENTS) - grads;
    bool same = weights == e.memory[MEMORY_PARAMETERS] && grads == e.memory[MEMORY_GRADIENTS] &&
                p.held * MOMENTS == e.memory[MEMORY_OPTIMIZER];
    params_free(&p);
    assert_together(same, "%s, rank %d of %d, tp rank %d of %d: weights %zu, formula %zu; gradients %zu, formula %zu",
                    name, placement.rank, placement.ranks, placement.tp_rank, placement.tp, weights,
                    e.memory[MEMORY_PARAMETERS], grads, e.memory[MEMORY_GRADIENTS]);
}

static void formulas_are_what_is_held(void **state)
{
    (void)state;
    static const char *const names[] = {"ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp"};
    Random r = {.seed = 72};
    const int sizes[] = {1, 2, 3, 4, 7, 16};
    for (int i = 0; i < 6 * 6 * 3; i++) {
        const char *name = names[i % 6];
        Placement placement = strategy_find(name)->placement;
        Case c = random_tensor_case(&r, i / 36); /* split along 1, 2 or 4 */
        placement.tp = c.tp;
        placement.ranks = placement.by == SHARD_NOTHING ? 1 : sizes[i / 6 % 6];
        for (placement.tp_rank = 0; placement.tp_rank < placement.tp; placement.tp_rank++)
            for (placement.rank = 0; placement.rank < placement.ranks; placement.rank++)
                expect_held(&c.t.model, placement, name);
        expect_held(&c.t.model, (Placement){0}, "everything");
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_row_is_exact),
    cmocka_unit_test(a_byte_among_many),
    cmocka_unit_test(equal_keys_add_up),
    cmocka_unit_test(formulas_are_what_is_held),
};
TESTING_MAIN(tests)
