/* The groups of ranks: their table, and what comm.h tells about them. */
#include <string.h>

#include "comm/comm_internal.h"
#include "base/error.h"
#include "comm/recorder.h"

static Group groups[GROUPS_MAX];
static int group_total;

Group *group_new(const char *name)
{
    if (group_total == GROUPS_MAX) fatal("more than %d groups", GROUPS_MAX);
    Group *group = &groups[group_total];
    memset(group, 0, sizeof *group);
    strncpy(group->name, name, sizeof group->name - 1);
    group->index = group_total++;
    group->counted = true;
    return group;
}

void groups_forget(void)
{
    group_total = 0;
}

Group *comm_world(void)
{
    return &groups[0];
}

Group *comm_control(void)
{
    return &groups[1];
}

Group *group_split(Group *parent, int color, const char *name)
{
    Group *group = group_new(name);
    group->counted = parent->counted;
    int record = recorder_begin("group_split", parent->name, parent->sequence, 0, __FILE__, __LINE__);
    recorder_waits_for(record);
    backend_split(parent->index, color, group->index, &group->size, &group->rank);
    recorder_waits_for(-1);
    recorder_end(record);
    return color >= 0 ? group : NULL;
}

int group_size(const Group *group)
{
    return group->size;
}

int group_rank(const Group *group)
{
    return group->rank;
}

const char *group_name(const Group *group)
{
    return group->name;
}

void group_open_device(Group *group, const void *buffer)
{
    if (device_owns(buffer)) device_open(group);
}

/* --- counting --- */

CommCount group_count(const Group *group, CommKind kind)
{
    return group->count[kind];
}

double comm_sent(void)
{
    double sent = 0;
    for (int g = 0; g < group_total; g++)
        for (int k = 0; k < COMM_KINDS; k++)
            if (groups[g].counted) sent += groups[g].count[k].payload;
    return sent;
}

Group *comm_group(int index)
{
    return index < group_total ? &groups[index] : NULL;
}

bool group_is_counted(const Group *group)
{
    return group->counted;
}
