/* The kinds of collectives, and the types and operations that they know. */
#pragma once

#include <stddef.h>

typedef enum {
    COMM_BARRIER,
    COMM_BROADCAST,
    COMM_ALL_REDUCE,
    COMM_ALL_GATHER,
    COMM_REDUCE_SCATTER,
    COMM_ALL_TO_ALL,
    COMM_ALL_TO_ALL_V,
    COMM_SEND_RECEIVE,
    COMM_KINDS
} CommKind;
typedef enum { COMM_BYTE, COMM_INT64, COMM_DOUBLE, COMM_REAL, COMM_ACC } CommType;
typedef enum { COMM_SUM, COMM_MAX, COMM_MIN } CommOp;

const char *comm_kind_name(CommKind kind);
size_t comm_type_size(CommType type);

/* The lengths of a rank's two buffers, in pieces of `count` elements: 1, or one piece for each rank of the group. */
size_t comm_in_pieces(CommKind kind, int ranks);
size_t comm_out_pieces(CommKind kind, int ranks);

/* What nccl-tests multiplies a collective's size with for its bus bandwidth, which is what each rank sends where all
 * send equally much and no more than they must: for n ranks, all-reduce 2(n-1)/n; all-gather, reduce-scatter and
 * all-to-all (n-1)/n of the whole; broadcast and send-receive 1; for one rank, 0. What MPI or NCCL really sends may
 * differ. The size of an all_to_all_v is that of `in`: its pieces differ, so the ranks' payloads differ, but their mean
 * is what equal pieces would give. A send-receive of a rank with itself (a distance that is a multiple of n) has size 0. */
double comm_payload_factor(CommKind kind, int ranks);
