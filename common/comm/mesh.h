/* The grid of ranks, and the groups cut from it.
 *
 * Ranks are numbered along the axes tp, cp, fsdp, dp, the first fastest: with tp = 2 and dp = 2, ranks 0 and 1 share one
 * replica. An axis that a trainer does not use has size 1. A group along some axes holds the ranks that differ along
 * those axes and along no other.
 */
#pragma once

#include "comm/comm.h"

typedef enum { AXIS_TP, AXIS_CP, AXIS_FSDP, AXIS_DP, AXES } Axis;

typedef struct {
    int size[AXES];
} Shape;

/* Sets of axes. */
enum {
    ALONG_TP = 1 << AXIS_TP,
    ALONG_CP = 1 << AXIS_CP,
    ALONG_FSDP = 1 << AXIS_FSDP,
    ALONG_DP = 1 << AXIS_DP,
    ALONG_SEQUENCES = ALONG_FSDP | ALONG_DP, /* along these axes ranks read different sequences */
    ALONG_ROWS = ALONG_SEQUENCES | ALONG_CP, /* along these they have different rows: counts and losses are summed */
};

typedef struct {
    Shape shape;
    Group *world;         /* the ranks of this mesh */
    Group *rows_group;    /* those that have different rows, over which counts and losses are summed */
    int coordinate[AXES]; /* of this rank */
} Mesh;

int shape_ranks(Shape shape);

/* Ranks that differ along `axes` only; and the number of `rank` among them, the first axis fastest. */
int shape_size(Shape shape, unsigned axes);
int shape_index(Shape shape, int rank, unsigned axes);

/* Where `rank` stands along `axis`. */
int shape_coordinate(Shape shape, int rank, Axis axis);

const char *axis_name(Axis axis);

/* NULL if the mesh needs just `ranks` ranks, else a complaint. */
const char *shape_check(Shape shape, int ranks);

/* [all ranks of world] Cuts the groups. The mesh needs shape_ranks(shape) == group_size(world). */
Mesh mesh_create(Group *world, Shape shape);

/* [all ranks of the mesh] The ranks that differ from this one along `axes` only. */
Group *mesh_group(const Mesh *mesh, unsigned axes, const char *name);
