/* Hopper's instructions for grouped_tensor.cu: barriers, copies by the tensor memory accelerator (TMA), and products of
 * operands in shared memory. Source: NVIDIA's PTX ISA, sections on mbarrier, cp.async.bulk and wgmma. */
#pragma once

#include <cuda.h>

#include "cuda.h"

#define DEVICE static __device__ __forceinline__

enum {
    TILE_COLUMNS = 256, /* of a product's right operand */
    PANEL = 64 * 64 * 2 /* bytes of 64 rows of 64 elements, as the TMA writes them and wgmma reads them */
};

/* --- barriers and copies --- */

DEVICE void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

DEVICE void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* The barrier also waits for so many bytes of copies. */
DEVICE void barrier_expect(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/* Waits until the phase of this parity is over. */
DEVICE void barrier_wait(uint32_t barrier, int parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Waits for the other threads that call it with this number. */
DEVICE void meet(int number, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* Starts a copy of the map's box at (column, row) to shared memory. */
DEVICE void copy_box(uint32_t to, const CUtensorMap *map, int column, int row, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
                     "r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}

/* Starts a copy of `bytes` bytes from shared memory; if ADDS, adds floats to what is there. */
template <bool ADDS> DEVICE void copy_out(void *to, uint32_t from, int bytes)
{
    if (ADDS)
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from),
                     "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
                     : "memory");
}

/* --- tensor cores --- */

/* The descriptor of an operand in shared memory: its address, the distance to the next 64 columns where it is read
 * transposed, the distance to the next 8 rows, and the swizzle of rows of 128 bytes. */
DEVICE uint64_t describe(uint32_t address)
{
    return address >> 4 | (uint64_t)(PANEL >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* C[64, 256] += A[64, 16] B[16, 256], both operands in shared memory. A lane holds c[n][e]: row g + 8 (e / 2), column 8 n + 2 t
 * + e % 2 of its warp's 16 rows, with lane = 4 g + t. TA, TB: whether the operand's rows in memory run along the inner
 * dimension, so that wgmma transposes it. */
#define RESULT(c) "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
template <int TA, int TB> DEVICE void wgmma(float c[TILE_COLUMNS / 8][4], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 " %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 " %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 " %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 " %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
                 "%128, %129, 1, 1, 1, %130, %131;"
                 : RESULT(c[0]), RESULT(c[1]), RESULT(c[2]), RESULT(c[3]), RESULT(c[4]), RESULT(c[5]),
                   RESULT(c[6]), RESULT(c[7]), RESULT(c[8]), RESULT(c[9]), RESULT(c[10]), RESULT(c[11]),
                   RESULT(c[12]), RESULT(c[13]), RESULT(c[14]), RESULT(c[15]), RESULT(c[16]), RESULT(c[17]),
                   RESULT(c[18]), RESULT(c[19]), RESULT(c[20]), RESULT(c[21]), RESULT(c[22]), RESULT(c[23]),
                   RESULT(c[24]), RESULT(c[25]), RESULT(c[26]), RESULT(c[27]), RESULT(c[28]), RESULT(c[29]),
                   RESULT(c[30]), RESULT(c[31])
                 : "l"(a), "l"(b), "n"(TA), "n"(TB));
}

/* The compiler does not know that wgmma still writes c: it must not move uses of c across this line. */
DEVICE void tie(float c[TILE_COLUMNS / 8][4])
{
    for (int n = 0; n < TILE_COLUMNS / 8; n++) asm volatile("" : RESULT(c[n])::"memory");
}
