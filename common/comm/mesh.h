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

typedef struct {
    Shape shape;
    Group *world;         /* the ranks of this mesh */
    Group *data_group;    /* those that hold different sequences: along fsdp and dp; for counts and losses */
    int coordinate[AXES]; /* of this rank */
} Mesh;

int shape_ranks(Shape shape);

/* Where `rank` stands along `axis`. */
int shape_coordinate(Shape shape, int rank, Axis axis);

const char *axis_name(Axis axis);

/* NULL if the mesh needs just `ranks` ranks, else a complaint. */
const char *shape_check(Shape shape, int ranks);

/* [all ranks of world] Cuts the groups. The mesh needs shape_ranks(shape) == group_size(world). */
Mesh mesh_create(Group *world, Shape shape);

/* [all ranks of the mesh] The ranks that differ from this one only along the axes in `axes`, a sum of (1 << axis). */
Group *mesh_group(const Mesh *mesh, unsigned axes, const char *name);
