/* The mesh: the grid of ranks, and the groups of ranks along its axes.
 *
 * Ranks are numbered along the axes tp, cp, fsdp, dp; the coordinate on tp changes fastest. With tp = 2 and dp = 2,
 * ranks 0 and 1 form one replica of the model, ranks 2 and 3 the other. An axis that a trainer does not use has size 1.
 * The members of a group along some axes have different coordinates on those axes, and equal coordinates on all other
 * axes.
 */
#pragma once

#include "comm/comm.h"

typedef enum { AXIS_TP, AXIS_CP, AXIS_FSDP, AXIS_DP, AXES } Axis;

typedef struct {
    int size[AXES];
} Shape;

/* Sets of axes. `axes` below is such a set: bit (1 << axis) is set for each of its axes. */
enum {
    ALONG_TP = 1 << AXIS_TP,
    ALONG_CP = 1 << AXIS_CP,
    ALONG_FSDP = 1 << AXIS_FSDP,
    ALONG_DP = 1 << AXIS_DP,
    ALL_AXES = (1 << AXES) - 1,
    ALONG_SEQUENCES = ALONG_FSDP | ALONG_DP, /* along these axes, ranks read different sequences */
    ALONG_SHARDS = ALONG_FSDP | ALONG_CP,    /* along these axes, sharding trainers split the model */
    ALONG_ROWS = ALONG_SEQUENCES | ALONG_CP, /* along these axes, ranks compute different rows */
};

typedef struct {
    Shape shape;
    Group *world;         /* all ranks of the mesh */
    Group *rows_group;    /* ALONG_ROWS: ranks with different rows; counts and losses are summed over it */
    int coordinate[AXES]; /* this rank's coordinate on each axis */
} Mesh;

/* The number of ranks that the mesh needs. */
int shape_ranks(Shape shape);

/* The number of ranks in a group along `axes`. */
int shape_size(Shape shape, unsigned axes);

/* The number of `rank` in its group along `axes`; the coordinate on the first axis changes fastest. */
int shape_index(Shape shape, int rank, unsigned axes);

/* The coordinate of `rank` on `axis`. */
int shape_coordinate(Shape shape, int rank, Axis axis);

const char *axis_name(Axis axis);

/* Returns NULL if the mesh needs exactly `ranks` ranks, else a complaint. */
const char *shape_check(Shape shape, int ranks);

/* [all ranks of world] Creates the mesh and its rows_group. Ends the job unless shape_ranks(shape) ==
 * group_size(world). */
Mesh mesh_create(Group *world, Shape shape);

/* --- experts ---
 *
 * Experts are dealt over `ep` ranks, which is not an axis: a rank's coordinate is rank mod ep. So ep neighbours have all
 * experts. Where weights are sharded, `copy` neighbours hold one copy of all experts: copy / ep of them have shards of
 * the same experts. Where they are not, copy = ep. */

/* The ranks that hold one copy of all weights but the experts, and of all experts. `sharded`: split ALONG_SHARDS. */
int shape_copy(Shape shape, bool sharded);
int shape_expert_copy(Shape shape, int ep, bool sharded);

/* [all ranks of the mesh] Creates this rank's group of `ranks` neighbours; `ranks` divides the mesh. */
Group *mesh_neighbours(const Mesh *mesh, int ranks, const char *name);

/* [all ranks of the mesh] Of one copy, the ranks with shards of this rank's experts. */
Group *mesh_expert_shards(const Mesh *mesh, int ep, int copy, const char *name);

/* [all ranks of the mesh] The ranks, one of each copy, that hold the same of the experts as this one. */
Group *mesh_expert_replicas(const Mesh *mesh, int copy, const char *name);

/* [all ranks of the mesh] Creates this rank's group along `axes`. */
Group *mesh_group(const Mesh *mesh, unsigned axes, const char *name);
