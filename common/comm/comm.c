#include "comm/comm.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "comm/comm_internal.h"
#include "comm/peers.h"
#include "base/error.h"
#include "base/hash.h"
#include "comm/recorder.h"
#include "comm/trace.h"
#include "comm/watchdog.h"

static Group groups[GROUPS_MAX];
static int group_total;
static Work works[WORKS_MAX];
static int works_used; /* of the pool, ever */
static int local_rank, local_ranks = 1;
static int uncounted; /* nesting of comm_uncounted */

/* --- start and end --- */

static Group *group_new(const char *name)
{
    if (group_total == GROUPS_MAX) fatal("more than %d groups", GROUPS_MAX);
    Group *group = &groups[group_total];
    memset(group, 0, sizeof *group);
    strncpy(group->name, name, sizeof group->name - 1);
    group->index = group_total++;
    group->counted = true;
    return group;
}

/* [all ranks] The ranks of each host share a table, by which their watchdogs see each other. */
static void meet_peers(const Group *world)
{
    PeersAddress address = {.fd = -1};
    if (local_rank == 0) address = peers_create(local_ranks);
    backend_host_broadcast(&address, sizeof address);
    bool here = peers_open(address, local_ranks, local_rank);
    peers_join(backend_host_all(here), world->size);
}

void comm_init(int *argc, char ***argv)
{
    Group *world = group_new("world"), *control = group_new("control");
    peers_begin();
    backend_init(argc, argv, &world->rank, &world->size, &local_rank, &local_ranks);
    error_join_job(world->rank, comm_abort);
    meet_peers(world);
    backend_duplicate(world->index, control->index);
    control->size = world->size;
    control->rank = world->rank;
    control->counted = false;
    peers_set_phase(PEER_RUNNING);
}

void comm_finalize(void)
{
    watchdog_finalizing();
    device_finalize();
    backend_finalize();
    watchdog_stop();
    group_total = 0;
}

int comm_world_rank(void)
{
    return process_rank();
}

int comm_local_rank(void)
{
    return local_rank;
}

int comm_local_ranks(void)
{
    return local_ranks;
}

/* --- groups --- */

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

/* --- collectives --- */

static Work *work_new(void)
{
    for (int i = 0; i < WORKS_MAX; i++)
        if (!works[i].busy) {
            works[i] = (Work){.index = i, .busy = true, .marks = {-1, -1}};
            if (i >= works_used) works_used = i + 1;
            return &works[i];
        }
    fatal("more than %d collectives in flight", WORKS_MAX);
}

static void finish(Work *work)
{
    work->done = true;
    recorder_end(work->record);
    if (!work->counted) return;
    const char *kind = comm_kind_name(work->what.kind);
    size_t bytes = work->what.count * comm_type_size(work->what.type);
    if (work->marks[0] >= 0)
        trace_collective_on_gpu(work->group->name, kind, bytes, work->marks[0], work->marks[1]);
    else
        trace_collective(work->group->name, kind, bytes, work->started);
}

/* The one place that every collective passes. */
static Work *start(Group *group, Collective what)
{
    if (what.count > INT_MAX)
        fatal("%s:%d: %zu elements in one %s; MPI takes at most %d", what.place.file, what.place.line, what.count,
              comm_kind_name(what.kind), INT_MAX);
    Work *work = work_new();
    work->what = what;
    work->group = group;
    group->sequence++;

    work->counted = group->counted && !uncounted;
    work->on_device = device_owns(what.out);
    if (work->counted) {
        bool gathers = what.kind == COMM_ALL_GATHER || what.kind == COMM_REDUCE_SCATTER;
        double bytes = (double)what.count * (double)comm_type_size(what.type) * (gathers ? group->size : 1);
        group->count[what.kind].calls++;
        group->count[what.kind].payload += bytes * comm_payload_factor(what.kind, group->size);
    }

    work->record = recorder_begin(comm_kind_name(what.kind), group->name, group->sequence, what.count, what.place.file,
                                  what.place.line);
    work->started = trace_clock();
    recorder_waits_for(work->record);
    backend_compare(work);
    recorder_waits_for(-1);
    if (work->counted && bug_skips(group->name, comm_kind_name(what.kind), group->count[what.kind].calls))
        finish(work);
    else if (work->on_device) {
        trace_range_begin("%s on %s", comm_kind_name(what.kind), group->name);
        device_start(work);
        trace_range_end();
    } else
        backend_start(work);
    return work;
}

Work *comm_start_barrier_at(Place place, Group *group)
{
    return start(group, (Collective){.kind = COMM_BARRIER, .type = COMM_BYTE, .place = place});
}

Work *comm_start_broadcast_at(Place place, Group *group, void *buffer, size_t count, CommType type, int root)
{
    Collective what = {COMM_BROADCAST, .out = buffer, .count = count, .type = type, .root = root, .place = place};
    return start(group, what);
}

Work *comm_start_all_reduce_at(Place place, Group *group, void *buffer, size_t count, CommType type, CommOp op)
{
    Collective what = {COMM_ALL_REDUCE, .out = buffer, .count = count, .type = type, .op = op, .place = place};
    return start(group, what);
}

Work *comm_start_all_gather_at(Place place, Group *group, void *out, const void *in, size_t count, CommType type)
{
    Collective what = {COMM_ALL_GATHER, .out = out, .in = in, .count = count, .type = type, .place = place};
    return start(group, what);
}

Work *comm_start_reduce_scatter_at(Place place, Group *group, void *out, const void *in, size_t count, CommType type,
                                   CommOp op)
{
    Collective what = {COMM_REDUCE_SCATTER, out, in, count, type, op, .place = place};
    return start(group, what);
}

void comm_wait(Work *work)
{
    if (!work) return;
    if (!work->done) {
        trace_begin("wait");
        recorder_waits_for(work->record);
        (work->on_device ? device_wait : backend_wait)(work);
        recorder_waits_for(-1);
        finish(work);
        trace_end();
    }
    work->busy = false;
}

void comm_progress(void)
{
    recorder_alive();
    for (int i = 0; i < works_used; i++)
        if (works[i].busy && !works[i].done && (works[i].on_device ? device_test : backend_test)(&works[i]))
            finish(&works[i]);
}

/* --- counting --- */

double comm_payload_factor(CommKind kind, int ranks)
{
    double n = ranks;
    if (ranks == 1) return 0;
    switch (kind) {
    case COMM_ALL_REDUCE: return 2 * (n - 1) / n;
    case COMM_ALL_GATHER:
    case COMM_REDUCE_SCATTER: return (n - 1) / n;
    case COMM_BROADCAST: return 1;
    default: return 0;
    }
}

CommCount group_count(const Group *group, CommKind kind)
{
    return group->count[kind];
}

void comm_uncounted(int on)
{
    uncounted += on ? 1 : -1;
}

bool comm_same_bits(Group *group, const void *data, size_t bytes)
{
    uint64_t hash = hash_array(HASH_START, data, bytes);
    int64_t ends[2] = {(int64_t)(hash >> 1), -(int64_t)(hash >> 1)}; /* the largest, and minus the smallest */
    comm_uncounted(1);
    comm_all_reduce(group, ends, 2, COMM_INT64, COMM_MAX);
    comm_uncounted(0);
    return ends[0] == -ends[1];
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
