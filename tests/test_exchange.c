/* ranks: 8  builds: fp64 fp32 fp64-debug fp64-bugs fp32-san
 *
 * all_to_all and send_receive byte by byte: every type, groups of 8, 3, 2 and 1 ranks, every kind of distance, many in
 * flight, their counts, and --bug skip. test_cuda_comm.c does the same on GPUs. */
#include <limits.h>
#include <string.h>

#include "base/bug.h"
#include "comm/comm.h"
#include "exchange.h"
#include "testing.h"

static const size_t counts[] = {0, 1, 2, 7, 100, 4099};

/* The first `ranks` of the world, and the others in groups of that size too. */
static Group *groups_of(int ranks)
{
    return group_split(comm_world(), comm_world_rank() / ranks, "some");
}

static const int group_sizes[] = {8, 1, 2, 3}; /* of 8 ranks: 3, 3 and 2 */

static void all_to_all_pieces(void **state)
{
    (void)state;
    Kernels cpu = kernels_cpu();
    for (int g = 0; g < 4; g++) {
        Group *group = groups_of(group_sizes[g]);
        for (int s = 0; s < 6; s++)
            for (int type = 0; type < EXCHANGE_TYPES; type++)
                assert_together(exchange_all_to_all(&cpu, group, counts[s], (CommType)type), "%zu of type %d, %d ranks",
                                counts[s], type, group_size(group));
        comm_all_to_all(group, NULL, NULL, 0, COMM_REAL);
    }
}

static void send_receive_along_a_ring(void **state)
{
    (void)state;
    static const int distances[] = {0, 1, -1, 2, -3, 7, 8, -8, 21, -29, INT_MAX, INT_MIN};
    Kernels cpu = kernels_cpu();
    for (int g = 0; g < 4; g++) {
        Group *group = groups_of(group_sizes[g]);
        for (int d = 0; d < 12; d++)
            for (int s = 0; s < 6; s++) {
                CommType type = (CommType)((d + s) % EXCHANGE_TYPES);
                assert_together(exchange_send_receive(&cpu, group, counts[s], type, distances[d]),
                                "%zu of type %d, distance %d, %d ranks", counts[s], (int)type, distances[d],
                                group_size(group));
            }
        comm_send_receive(group, NULL, NULL, 0, COMM_REAL, 1);
    }
}

/* `ranks` steps around the ring bring every block to every rank, and back to its owner. */
static void a_ring_passes_everything_on(void **state)
{
    (void)state;
    Group *world = comm_world();
    int n = group_size(world), me = group_rank(world);
    double held[3] = {me, 2, 3}, next[3];
    for (int step = 1; step <= n; step++) {
        comm_send_receive(world, next, held, 3, COMM_DOUBLE, 1);
        memcpy(held, next, sizeof held);
        assert_together(held[0] == (me - step + n) % n, "after step %d: the block of rank %.0f", step, held[0]);
    }
}

static void exchanges_in_flight(void **state)
{
    (void)state;
    Kernels cpu = kernels_cpu();
    for (int g = 0; g < 4; g++) {
        Group *group = groups_of(group_sizes[g]);
        for (int reverse = 0; reverse < 2; reverse++)
            assert_together(exchange_in_flight(&cpu, group, reverse), "%d ranks, reverse %d", group_size(group),
                            reverse);
    }
}

static void exchanges_are_counted(void **state)
{
    (void)state;
    for (int g = 0; g < 4; g++) {
        Group *group = groups_of(group_sizes[g]);
        double n = group_size(group), in[24] = {0}, out[24], before = comm_sent();
        comm_all_to_all(group, out, in, 3, COMM_DOUBLE);
        comm_all_to_all(group, out, in, 1, COMM_DOUBLE);
        comm_send_receive(group, out, in, 5, COMM_DOUBLE, 1); /* one rank: to itself */
        comm_send_receive(group, out, in, 6, COMM_BYTE, -1);
        comm_send_receive(group, out, in, 7, COMM_DOUBLE, 0); /* these copy: calls without payload */
        comm_send_receive(group, out, in, 7, COMM_DOUBLE, -2 * (int)n);
        comm_uncounted(1);
        comm_all_to_all(group, out, in, 3, COMM_DOUBLE);
        comm_send_receive(group, out, in, 3, COMM_DOUBLE, 1);
        comm_uncounted(0);
        CommCount all = group_count(group, COMM_ALL_TO_ALL), ring = group_count(group, COMM_SEND_RECEIVE);
        bool good = all.calls == 2 && ring.calls == 4 && ring.payload == (n > 1 ? 46 : 0) &&
                    all.payload == (n - 1) / n * (24 * n) + (n - 1) / n * (8 * n) &&
                    comm_sent() - before == all.payload + ring.payload;
        assert_together(good, "%d ranks: %ld and %ld calls, payload %f and %f", (int)n, all.calls, ring.calls,
                        all.payload, ring.payload);
    }
}

/* --bug skip=GROUP.KIND.N: the second call leaves `out` as it was, the others do not. */
static void skipped_exchanges(void **state)
{
    (void)state;
    static const char *const bugs[] = {"skip=some.all_to_all.2", "skip=some.send_receive.2"};
    for (int b = 0; b < 2; b++) {
        if (bug_set(bugs[b])) skip(); /* this build has no bugs */
        Group *group = groups_of(4);
        double in[4], out[4];
        for (int call = 1; call <= 3; call++) {
            for (int i = 0; i < 4; i++) in[i] = group_rank(group), out[i] = -1;
            if (b == 0)
                comm_all_to_all(group, out, in, 1, COMM_DOUBLE);
            else
                comm_send_receive(group, out, in, 4, COMM_DOUBLE, 3);
            double want = call == 2 ? -1 : b == 0 ? 2 : (group_rank(group) + 1) % 4;
            assert_together(out[2] == want, "%s, call %d: got %f", bugs[b], call, out[2]);
        }
    }
    bug_set(NULL);
}

/* Elements that rank `from` sends to rank `to`: unequal, and none for some pairs. */
static int uneven(int from, int to)
{
    int n = (3 * from + 5 * to) % 7;
    return n < 3 ? 0 : n;
}

static void uneven_pieces(void **state)
{
    (void)state;
    for (int g = 0; g < 4; g++) {
        Group *group = groups_of(group_sizes[g]);
        int n = group_size(group), me = group_rank(group), in_counts[8], out_counts[8], at = 0;
        double in[64], out[64];
        for (int r = 0; r < n; r++) {
            in_counts[r] = uneven(me, r);
            out_counts[r] = uneven(r, me);
            for (int i = 0; i < in_counts[r]; i++) in[at++] = 100 * me + 10 * r + i;
        }
        CommCount before = group_count(group, COMM_ALL_TO_ALL_V);
        double size = 8.0 * at, factor = (n - 1.0) / n;
        for (int i = 0; i < 64; i++) out[i] = -1;
        Work *work = comm_start_all_to_all_v(group, out, out_counts, in, in_counts, COMM_DOUBLE);
        memset(in_counts, 0, sizeof in_counts); /* the call has copied them */
        comm_wait(work);
        at = 0;
        bool right = true;
        for (int r = 0; r < n; r++)
            for (int i = 0; i < out_counts[r]; i++) right = out[at++] == 100 * r + 10 * me + i && right;
        CommCount count = group_count(group, COMM_ALL_TO_ALL_V);
        assert_together(right && out[at] == -1, "%d ranks", n);
        assert_together(count.calls == before.calls + 1 && count.payload == factor * size, "payload %f", count.payload);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(uneven_pieces),
    cmocka_unit_test(all_to_all_pieces),
    cmocka_unit_test(send_receive_along_a_ring),
    cmocka_unit_test(a_ring_passes_everything_on),
    cmocka_unit_test(exchanges_in_flight),
    cmocka_unit_test(exchanges_are_counted),
    cmocka_unit_test(skipped_exchanges),
};
TESTING_MAIN(tests)
