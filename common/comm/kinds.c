#include "comm/kinds.h"

#include <stdbool.h>
#include <stdint.h>

#include "base/precision.h"

static const struct {
    const char *name;
    bool in_per_rank, out_per_rank; /* does the buffer hold a piece for each rank? */
} kinds[COMM_KINDS] = {
    [COMM_BARRIER] = {"barrier", false, false},
    [COMM_BROADCAST] = {"broadcast", false, false},
    [COMM_ALL_REDUCE] = {"all_reduce", false, false},
    [COMM_ALL_GATHER] = {"all_gather", false, true},
    [COMM_REDUCE_SCATTER] = {"reduce_scatter", true, false},
    [COMM_ALL_TO_ALL] = {"all_to_all", true, true},
    [COMM_ALL_TO_ALL_V] = {"all_to_all_v", false, false},
    [COMM_SEND_RECEIVE] = {"send_receive", false, false},
};

const char *comm_kind_name(CommKind kind)
{
    return kinds[kind].name;
}

size_t comm_type_size(CommType type)
{
    static const size_t size[] = {1, sizeof(int64_t), sizeof(double), sizeof(real), sizeof(acc)};
    return size[type];
}

size_t comm_in_pieces(CommKind kind, int ranks)
{
    return kinds[kind].in_per_rank ? (size_t)ranks : 1;
}

size_t comm_out_pieces(CommKind kind, int ranks)
{
    return kinds[kind].out_per_rank ? (size_t)ranks : 1;
}

double comm_payload_factor(CommKind kind, int ranks)
{
    double n = ranks;
    if (ranks == 1) return 0;
    switch (kind) {
    case COMM_ALL_REDUCE: return 2 * (n - 1) / n;
    case COMM_ALL_GATHER:
    case COMM_REDUCE_SCATTER:
    case COMM_ALL_TO_ALL:
    case COMM_ALL_TO_ALL_V: return (n - 1) / n;
    case COMM_BROADCAST:
    case COMM_SEND_RECEIVE: return 1;
    default: return 0;
    }
}
