/* Bytes sent and bytes held: what was measured beside what the formulas say.
 *
 * The two sides are independent: the measured one comes from the counters in comm.c and memory.c, the expected one is
 * worked out by the scheme from the configuration alone. Only the factor of each kind of collective, comm_payload_factor,
 * is the same on both.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "comm/comm.h"
#include "kernels/memory.h"
#include "model/params.h"

/* One row of the communication table, for the whole run. */
typedef struct {
    const char *group;
    CommKind kind;
    double calls, payload; /* payload in bytes, as comm_payload_factor counts it */
} ExpectedComm;

typedef struct {
    ExpectedComm comm[32];
    int comm_rows;
    size_t memory[MEMORY_CATEGORIES]; /* bytes per rank; MEMORY_TWIN is left out */
    size_t optimizer_bytes; /* of each element whose optimizer state a rank holds; the scheme knows how many */
} Expected;

/* Adds `calls` collectives that move `bytes` bytes in all, over `ranks` ranks, to the row of this group and kind. */
void expect(Expected *expected, const char *group, CommKind kind, double calls, double bytes, int ranks);

/* Adds the bytes of parameters, gradients and moments that a rank holds under this placement; whichever rank: padding
 * makes them equal. Set `optimizer_bytes` first. */
void expect_params(Expected *expected, const ModelConfig *model, Placement placement);

/* Bytes that a rank holds in all. */
size_t expected_total(const Expected *expected);

/* Prints both tables on `rank0`, and a line for every counter that no row expects. Returns whether all agree on this
 * rank: calls and memory exactly, payload to the rounding of a double. */
bool ledger_print(const Expected *expected, bool rank0);
