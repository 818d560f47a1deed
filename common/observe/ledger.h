/* The ledger: bytes sent and bytes held, as measured and as the formulas say.
 *
 * Why: a scheme states what it sends and what it holds. The ledger proves the statement in every run.
 *
 * The two sides are independent. The measured side comes from the counters in comm.c and memory.c. The scheme computes
 * the expected side from the configuration alone. Both use comm_payload_factor for each kind of collective, and nothing
 * else in common.
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
    bool at_most;          /* the payload depends on the data, and is at most this */
} ExpectedComm;

typedef struct {
    ExpectedComm comm[32];
    int comm_rows;
    size_t memory[MEMORY_CATEGORIES]; /* bytes per rank; MEMORY_TWIN is left out */
    size_t optimizer_bytes;           /* of the optimizer's state for one element that the rank holds */
} Expected;

/* Adds `calls` collectives of this kind on this group of `ranks` ranks. `bytes`: the sizes given to all these calls
 * together. Calls for the same group and kind add up in one row. */
void expect(Expected *expected, const char *group, CommKind kind, double calls, double bytes, int ranks);

/* Says that the payload of these collectives may be less than the formula's. */
void expect_at_most(Expected *expected, const char *group, CommKind kind);

/* Adds the bytes of parameters, gradients and moments that a rank holds under this placement. They are the same on
 * every rank, because shards are padded to equal sizes. Set `optimizer_bytes` first. */
void expect_params(Expected *expected, const ModelConfig *model, Placement placement);
void expect_experts(Expected *expected, const ModelConfig *model, Placement placement);

/* [all ranks of the group] The payload to compare with the formula: what this rank counted; of all_to_all_v, whose payload
 * differs from rank to rank, the mean over the group. */
double ledger_payload(Group *group, CommKind kind, double counted);

/* Bytes that a rank holds in all. */
size_t expected_total(const Expected *expected);

/* [all ranks] Prints both tables if `rank0`. A counter that no row expects gets a line, and so does a row whose group this rank
 * does not have. Returns whether all lines agree on this rank: calls and memory exactly, payload to the byte. (A double
 * loses the last byte of the payload only where the number of ranks is no power of two, and calls times payload is
 * above 2e15 bytes.) */
bool ledger_print(const Expected *expected, bool rank0);
