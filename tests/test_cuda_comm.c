/* ranks: 4  builds: fp64 fp32 bf16
 *
 * all_to_all and send_receive on buffers of a GPU: over NCCL where each rank has a GPU of its own, and through host
 * memory where ranks share one. A group of one rank always uses NCCL. Without a GPU the tests are skipped and say so. */
#include <stdio.h>

#include "comm/comm.h"
#include "exchange.h"
#include "testing.h"

static Kernels gpu;

static void open_gpu(void)
{
    static const char *complaint;
    if (!gpu.backend && !complaint) {
        complaint = kernels_cuda(&gpu, comm_local_rank());
        printf("%s\n", complaint ? complaint : gpu.describe());
    }
    if (complaint) skip();
}

static const size_t counts[] = {0, 1, 7, 4099, 100003};

static void exchanges(Group *group)
{
    for (int c = 0; c < 5; c++)
        for (int type = 0; type < EXCHANGE_TYPES; type++) {
            assert_together(exchange_all_to_all(&gpu, group, counts[c], (CommType)type), "all_to_all of %zu, type %d",
                            counts[c], type);
            for (int distance = -3; distance <= 5; distance++)
                assert_together(exchange_send_receive(&gpu, group, counts[c], (CommType)type, distance),
                                "send_receive of %zu, type %d, distance %d", counts[c], type, distance);
        }
    for (int reverse = 0; reverse < 2; reverse++)
        assert_together(exchange_in_flight(&gpu, group, reverse), "in flight, reverse %d", reverse);
}

static void all_ranks(void **state)
{
    (void)state;
    open_gpu();
    exchanges(comm_world());
}

static void pairs(void **state)
{
    (void)state;
    open_gpu();
    exchanges(group_split(comm_world(), comm_world_rank() / 2, "pair"));
}

static void one_rank(void **state)
{
    (void)state;
    open_gpu();
    exchanges(group_split(comm_world(), comm_world_rank(), "alone"));
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(all_ranks), cmocka_unit_test(pairs),
                                          cmocka_unit_test(one_rank)};
TESTING_MAIN(tests)
