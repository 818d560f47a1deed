/* ranks: 8  builds: fp64 fp32 fp64-debug fp32-san
 *
 * Collectives against what they must give, the counters against the formulas, and the mesh's groups against the
 * shape. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "comm/mesh.h"
#include "testing.h"

/* Rank r's element i, small whole numbers, so that sums are exact in every type and order. */
static double element(int rank, size_t i)
{
    return (double)((rank + 1) * (int)(i % 13 + 1));
}

static const size_t sizes[] = {0, 1, 2, 7, 100, 4099};

static void all_reduce_sums(void **state)
{
    (void)state;
    Group *world = comm_world();
    int n = group_size(world), me = group_rank(world);
    for (int s = 0; s < 6; s++) {
        size_t count = sizes[s];
        acc *x = malloc((count + 1) * sizeof *x);
        int64_t high = me, low = me;
        bool good = true;
        for (size_t i = 0; i < count; i++) x[i] = (acc)element(me, i);
        comm_all_reduce(world, x, count, COMM_ACC, COMM_SUM);
        for (size_t i = 0; i < count; i++) good = good && (double)x[i] == n * (n + 1) / 2.0 * (double)(i % 13 + 1);
        comm_all_reduce(world, &high, 1, COMM_INT64, COMM_MAX);
        comm_all_reduce(world, &low, 1, COMM_INT64, COMM_MIN);
        assert_together(good && high == n - 1 && low == 0, "%zu elements", count);
        free(x);
    }
}

static void gather_and_scatter(void **state)
{
    (void)state;
    Group *world = comm_world();
    int n = group_size(world), me = group_rank(world);
    for (int s = 0; s < 6; s++)
        for (int in_place = 0; in_place < 2; in_place++) {
            size_t count = sizes[s];
            real *all = malloc((count * (size_t)n + 1) * sizeof *all), *mine = malloc((count + 1) * sizeof *mine);
            bool good = true;
            for (size_t i = 0; i < count; i++) {
                mine[i] = (real)element(me, i);
                if (in_place) all[(size_t)me * count + i] = mine[i];
            }
            comm_all_gather(world, all, in_place ? all + (size_t)me * count : mine, count, COMM_REAL);
            for (int r = 0; r < n; r++)
                for (size_t i = 0; i < count; i++) good = good && (double)all[(size_t)r * count + i] == element(r, i);
            /* every rank now holds the same; the sum of piece `me` over ranks is n times my piece */
            comm_reduce_scatter(world, mine, all, count, COMM_REAL, COMM_SUM);
            for (size_t i = 0; i < count; i++) good = good && (double)mine[i] == n * element(me, i);
            assert_together(good, "%zu elements, in place %d", count, in_place);
            free(all), free(mine);
        }
}

static void broadcast_from_each(void **state)
{
    (void)state;
    Group *world = comm_world();
    for (int root = 0; root < group_size(world); root++) {
        double x[3] = {group_rank(world), 2, 3};
        comm_broadcast(world, x, 3, COMM_DOUBLE, root);
        assert_together(x[0] == root, "root %d", root);
    }
}

/* Several collectives in flight, finished in another order than they were started in. */
static void work_in_flight(void **state)
{
    (void)state;
    enum { WORKS = 20, COUNT = 5000 };
    Group *world = comm_world();
    int n = group_size(world);
    acc *x = malloc(WORKS * COUNT * sizeof *x);
    Work *work[WORKS];
    for (int w = 0; w < WORKS; w++) {
        for (int i = 0; i < COUNT; i++) x[w * COUNT + i] = (acc)(w + 1);
        work[w] = comm_start_all_reduce(world, x + w * COUNT, COUNT, COMM_ACC, COMM_SUM);
        comm_progress();
    }
    bool good = true;
    for (int w = WORKS - 1; w >= 0; w--) {
        comm_wait(work[w]);
        for (int i = 0; i < COUNT; i++) good = good && x[w * COUNT + i] == (acc)(n * (w + 1));
    }
    comm_wait(NULL);
    assert_together(good, "a sum is wrong");
    free(x);
}

static void payload_is_counted(void **state)
{
    (void)state;
    assert_true(comm_payload_factor(COMM_ALL_REDUCE, 4) == 1.5);
    assert_true(comm_payload_factor(COMM_ALL_GATHER, 4) == 0.75);
    assert_true(comm_payload_factor(COMM_REDUCE_SCATTER, 4) == 0.75);
    assert_true(comm_payload_factor(COMM_BROADCAST, 4) == 1);
    assert_true(comm_payload_factor(COMM_ALL_TO_ALL, 4) == 0.75);
    assert_true(comm_payload_factor(COMM_SEND_RECEIVE, 4) == 1);
    for (int k = 0; k < COMM_KINDS; k++) assert_true(comm_payload_factor((CommKind)k, 1) == 0);

    Group *group = group_split(comm_world(), 0, "counted");
    int n = group_size(group);
    double x[64] = {0}, before = comm_sent();
    comm_all_reduce(group, x, 8, COMM_DOUBLE, COMM_SUM);
    comm_all_reduce(group, x, 2, COMM_DOUBLE, COMM_SUM);
    comm_all_gather(group, x, x + group_rank(group), 1, COMM_DOUBLE);
    comm_uncounted(1);
    comm_all_reduce(group, x, 8, COMM_DOUBLE, COMM_SUM);
    comm_uncounted(0);
    assert_true(comm_same_bits(group, "same", 4));
    CommCount reduced = group_count(group, COMM_ALL_REDUCE), gathered = group_count(group, COMM_ALL_GATHER);
    assert_int_equal(reduced.calls, 2);
    assert_int_equal(gathered.calls, 1);
    assert_true(reduced.payload == 2.0 * (n - 1) / n * 80);
    assert_true(gathered.payload == (n - 1.0) / n * 8 * n);
    assert_true(comm_sent() - before == reduced.payload + gathered.payload);
    assert_int_equal(group_count(comm_control(), COMM_ALL_REDUCE).calls, 0);
}

static void same_bits(void **state)
{
    (void)state;
    float x[5] = {1, 2, 3, 4, 5};
    for (int length = 0; length <= 20; length++)
        assert_together(comm_same_bits(comm_world(), x, (size_t)length), "same");
    for (int i = 0; i < 5; i++) { /* one bit, in each word in turn, on one rank */
        if (comm_world_rank() == 3) x[i] = -x[i];
        assert_together(!comm_same_bits(comm_world(), x, sizeof x), "one bit of word %d differs and nobody noticed", i);
        assert_together(comm_same_bits(comm_world(), x, (size_t)i * 4), "those before it are the same");
        if (comm_world_rank() == 3) x[i] = -x[i];
    }
}

/* Ranks that differ along the axes of a group and along no other: not the transpose. */
static void mesh_groups(void **state)
{
    (void)state;
    int n = group_size(comm_world()), me = comm_world_rank();
    assert_int_equal(n, 8);
    const Shape shapes[] = {{{2, 1, 2, 2}}, {{1, 1, 1, 8}}, {{4, 2, 1, 1}}, {{2, 2, 2, 1}}};
    for (int s = 0; s < 4; s++) {
        Shape shape = shapes[s];
        assert_int_equal(shape_ranks(shape), n);
        Mesh mesh = mesh_create(comm_world(), shape);
        for (unsigned axes = 1; axes < 1u << AXES; axes += 3) {
            Group *group = mesh_group(&mesh, axes, "axes");
            int64_t members[8], mine = me;
            comm_all_gather(group, members, &mine, 1, COMM_INT64);
            int at = 0;
            bool good = true;
            for (int r = 0; r < n; r++) {
                bool belongs = true;
                for (int a = 0; a < AXES; a++)
                    if (!(axes & 1u << a) &&
                        shape_coordinate(shape, r, (Axis)a) != shape_coordinate(shape, me, (Axis)a))
                        belongs = false;
                if (belongs) good = good && at < group_size(group) && members[at++] == r;
            }
            assert_together(good && at == group_size(group), "shape %d, axes %u: %d members", s, axes, at);
        }
        int rows = shape.size[AXIS_CP] * shape.size[AXIS_FSDP] * shape.size[AXIS_DP];
        assert_int_equal(group_size(mesh.rows_group), rows);
        assert_int_equal(shape_size(shape, ALONG_SEQUENCES), shape.size[AXIS_FSDP] * shape.size[AXIS_DP]);
    }
    assert_int_equal(shape_coordinate((Shape){{2, 1, 2, 2}}, 1, AXIS_TP), 1); /* tp varies fastest */
    assert_int_equal(shape_coordinate((Shape){{2, 1, 2, 2}}, 4, AXIS_DP), 1);
    assert_null(shape_check((Shape){{2, 1, 2, 2}}, 8));
    assert_non_null(strstr(shape_check((Shape){{2, 1, 2, 2}}, 7), "--tp 2 --fsdp 2 --dp 2 needs 8 ranks; there are 7"));
}

static void split_without_me(void **state)
{
    (void)state;
    bool even = comm_world_rank() % 2 == 0;
    Group *group = group_split(comm_world(), even ? 0 : -1, "even");
    assert_together((group != NULL) == even, "membership");
    double x = 1;
    if (group) comm_all_reduce(group, &x, 1, COMM_DOUBLE, COMM_SUM);
    assert_together(!even || x == 4, "the sum over four ranks is %f", x);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(all_reduce_sums), cmocka_unit_test(gather_and_scatter), cmocka_unit_test(broadcast_from_each),
    cmocka_unit_test(work_in_flight),  cmocka_unit_test(payload_is_counted), cmocka_unit_test(same_bits),
    cmocka_unit_test(mesh_groups),     cmocka_unit_test(split_without_me),
};
TESTING_MAIN(tests)
