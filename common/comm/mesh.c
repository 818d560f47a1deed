#include "comm/mesh.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

int shape_ranks(Shape shape)
{
    return shape_size(shape, (1u << AXES) - 1);
}

int shape_size(Shape shape, unsigned axes)
{
    int ranks = 1;
    for (int a = 0; a < AXES; a++)
        if (axes & 1u << a) ranks *= shape.size[a];
    return ranks;
}

int shape_index(Shape shape, int rank, unsigned axes)
{
    int index = 0;
    for (int a = AXES - 1; a >= 0; a--)
        if (axes & 1u << a) index = index * shape.size[a] + shape_coordinate(shape, rank, (Axis)a);
    return index;
}

int shape_coordinate(Shape shape, int rank, Axis axis)
{
    for (int a = 0; a < (int)axis; a++) rank /= shape.size[a];
    return rank % shape.size[axis];
}

const char *axis_name(Axis axis)
{
    static const char *const name[AXES] = {"tp", "cp", "fsdp", "dp"};
    return name[axis];
}

const char *shape_check(Shape shape, int ranks)
{
    double needed = 1; /* the product of the sizes may be larger than any int */
    char axes[128] = "";
    for (int a = 0; a < AXES; a++) needed *= shape.size[a];
    if (needed == ranks) return NULL;
    for (int a = 0; a < AXES; a++)
        if (shape.size[a] > 1)
            snprintf(axes + strlen(axes), sizeof axes - strlen(axes), " --%s %d", axis_name((Axis)a), shape.size[a]);
    return complain("the mesh%s needs %.0f ranks; there are %d", *axes ? axes : " of one", needed, ranks);
}

Mesh mesh_create(Group *world, Shape shape)
{
    CHECK(shape_ranks(shape) == group_size(world));
    Mesh mesh = {.shape = shape, .world = world};
    for (int a = 0; a < AXES; a++) mesh.coordinate[a] = shape_coordinate(shape, group_rank(world), (Axis)a);
    mesh.rows_group = mesh_group(&mesh, ALONG_ROWS, "data");
    return mesh;
}

Group *mesh_group(const Mesh *mesh, unsigned axes, const char *name)
{
    /* The members of a group have equal coordinates on every axis that is not in `axes`. `color` numbers these
     * coordinates, so each group has its own color. */
    int color = shape_index(mesh->shape, group_rank(mesh->world), ~axes);
    return group_split(mesh->world, color, name);
}

/* --- experts --- */

int shape_copy(Shape shape, bool sharded)
{
    return shape_size(shape, sharded ? ALONG_TP | ALONG_SHARDS : ALONG_TP);
}

int shape_expert_copy(Shape shape, int ep, bool sharded)
{
    int copy = sharded ? shape_copy(shape, true) : 1;
    return ep > copy ? ep : copy;
}

Group *mesh_neighbours(const Mesh *mesh, int ranks, const char *name)
{
    return group_split(mesh->world, group_rank(mesh->world) / ranks, name);
}

Group *mesh_expert_shards(const Mesh *mesh, int ep, int copy, const char *name)
{
    int rank = group_rank(mesh->world);
    return group_split(mesh->world, rank / copy * ep + rank % ep, name);
}

Group *mesh_expert_replicas(const Mesh *mesh, int copy, const char *name)
{
    return group_split(mesh->world, group_rank(mesh->world) % copy, name);
}
