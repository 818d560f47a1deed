/* ranks: 1  builds: fp64 fp32-san
 *
 * The numbering of ranks along the axes of a mesh, and meshes that need more ranks than there are. */
#include <stdio.h>
#include <string.h>

#include "comm/mesh.h"
#include "testing.h"

enum { TP = 2, CP = 3, FSDP = 5, DP = 7 };
static const Shape shape = {{[AXIS_TP] = TP, [AXIS_CP] = CP, [AXIS_FSDP] = FSDP, [AXIS_DP] = DP}};

/* Every rank by its coordinates: the first axis of a set changes fastest, the last one slowest. */
static void first_axis_is_fastest(void **state)
{
    (void)state;
    int rank = 0;
    for (int dp = 0; dp < DP; dp++)
        for (int fsdp = 0; fsdp < FSDP; fsdp++)
            for (int cp = 0; cp < CP; cp++)
                for (int tp = 0; tp < TP; tp++, rank++) {
                    assert_int_equal(shape_coordinate(shape, rank, AXIS_TP), tp);
                    assert_int_equal(shape_coordinate(shape, rank, AXIS_CP), cp);
                    assert_int_equal(shape_coordinate(shape, rank, AXIS_FSDP), fsdp);
                    assert_int_equal(shape_coordinate(shape, rank, AXIS_DP), dp);
                    assert_int_equal(shape_index(shape, rank, (1u << AXES) - 1), rank);
                    assert_int_equal(shape_index(shape, rank, ALONG_SEQUENCES), fsdp + FSDP * dp);
                    assert_int_equal(shape_index(shape, rank, ALONG_ROWS), cp + CP * (fsdp + FSDP * dp));
                    assert_int_equal(shape_index(shape, rank, ALONG_TP | ALONG_FSDP), tp + TP * fsdp);
                    assert_int_equal(shape_index(shape, rank, ALONG_CP), cp);
                    assert_int_equal(shape_index(shape, rank, 0), 0);
                }
    assert_int_equal(rank, shape_ranks(shape));
    assert_int_equal(shape_size(shape, ALONG_SEQUENCES), FSDP * DP);
    assert_int_equal(shape_size(shape, ALONG_TP | ALONG_CP), TP * CP);
}

static void expect(Shape mesh, int ranks, const char *want)
{
    const char *complaint = shape_check(mesh, ranks);
    if (!complaint || strcmp(complaint, want) != 0) fail_msg("got %s, want %s", complaint ? complaint : "none", want);
}

static void wrong_number_of_ranks(void **state)
{
    (void)state;
    assert_null(shape_check(shape, TP * CP * FSDP * DP));
    expect(shape, 4, "the mesh --tp 2 --cp 3 --fsdp 5 --dp 7 needs 210 ranks; there are 4");
    expect((Shape){{1, 1, 1, 1}}, 2, "the mesh of one needs 1 ranks; there are 2");
    /* more ranks than an int can hold; the second product is 65536 modulo 2^32 */
    expect((Shape){{1000000, 1, 1, 1000000}}, 1000000,
           "the mesh --tp 1000000 --dp 1000000 needs 1000000000000 ranks; there are 1000000");
    expect((Shape){{65536, 1, 1, 65537}}, 65536,
           "the mesh --tp 65536 --dp 65537 needs 4295032832 ranks; there are 65536");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(first_axis_is_fastest),
    cmocka_unit_test(wrong_number_of_ranks),
};

TESTING_MAIN(tests)
