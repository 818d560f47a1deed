#include "comm/kinds.h"

#include <stdint.h>

#include "base/precision.h"

const char *comm_kind_name(CommKind kind)
{
    static const char *const name[COMM_KINDS] = {"barrier", "broadcast", "all_reduce", "all_gather", "reduce_scatter"};
    return name[kind];
}

size_t comm_type_size(CommType type)
{
    static const size_t size[] = {1, sizeof(int64_t), sizeof(double), sizeof(real), sizeof(acc)};
    return size[type];
}
