/* The kinds of collectives, and the types and operations that they know. */
#pragma once

#include <stddef.h>

typedef enum {
    COMM_BARRIER,
    COMM_BROADCAST,
    COMM_ALL_REDUCE,
    COMM_ALL_GATHER,
    COMM_REDUCE_SCATTER,
    COMM_KINDS
} CommKind;
typedef enum { COMM_BYTE, COMM_INT64, COMM_DOUBLE, COMM_REAL, COMM_ACC } CommType;
typedef enum { COMM_SUM, COMM_MAX, COMM_MIN } CommOp;

const char *comm_kind_name(CommKind kind);
size_t comm_type_size(CommType type);
