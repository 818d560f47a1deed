#include "comm/comm.h"

#include <limits.h>
#include <stdlib.h>

#include "base/bug.h"
#include "comm/comm_internal.h"
#include "comm/peers.h"
#include "base/error.h"
#include "base/hash.h"
#include "comm/recorder.h"
#include "comm/trace.h"
#include "comm/watchdog.h"

static Work works[WORKS_MAX];
static int works_used; /* of the pool, ever */
static int local_rank, local_ranks = 1;
static int uncounted; /* nesting of comm_uncounted */

/* --- start and end --- */

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
    groups_forget();
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

/* The size that payload is counted from, in bytes: that of the longer buffer, or 0 if the rank sends to itself. */
static double size_of(const Group *group, const Collective *c)
{
    size_t in = comm_in_pieces(c->kind, group->size), out = comm_out_pieces(c->kind, group->size);
    if (c->kind == COMM_SEND_RECEIVE && c->to == group->rank) return 0;
    return (double)c->count * (double)comm_type_size(c->type) * (double)(in > out ? in : out);
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
        group->count[what.kind].calls++;
        group->count[what.kind].payload += size_of(group, &what) * comm_payload_factor(what.kind, group->size);
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

size_t collective_in(const Collective *c, int ranks)
{
    return c->pieces ? c->pieces->in.total : c->count * comm_in_pieces(c->kind, ranks);
}

size_t collective_out(const Collective *c, int ranks)
{
    return c->pieces ? c->pieces->out.total : c->count * comm_out_pieces(c->kind, ranks);
}

static void check_apart(const Group *group, const Collective *c)
{
    size_t in_bytes = collective_in(c, group->size) * comm_type_size(c->type);
    size_t out_bytes = collective_out(c, group->size) * comm_type_size(c->type);
    uintptr_t out = (uintptr_t)c->out, in = (uintptr_t)c->in;
    if (out < in + in_bytes && in < out + out_bytes)
        fatal("%s:%d: out and in of %s overlap", c->place.file, c->place.line, comm_kind_name(c->kind));
}

Work *comm_start_all_to_all_at(Place place, Group *group, void *out, const void *in, size_t count, CommType type)
{
    Collective what = {COMM_ALL_TO_ALL, .out = out, .in = in, .count = count, .type = type, .place = place};
    check_apart(group, &what);
    return start(group, what);
}

/* Copies the counts and adds them up. */
static Pieces *pieces_of(Place place, int ranks, const int *in_counts, const int *out_counts)
{
    size_t n = (size_t)ranks;
    Pieces *p = malloc(sizeof *p + 4 * n * sizeof(int));
    if (!p) fatal("out of memory");
    int *numbers = (int *)(p + 1);
    *p = (Pieces){.in = {numbers, numbers + n, 0}, .out = {numbers + 2 * n, numbers + 3 * n, 0}};
    for (size_t r = 0; r < n; r++) {
        p->in.count[r] = in_counts[r];
        p->out.count[r] = out_counts[r];
        p->in.at[r] = (int)p->in.total;
        p->out.at[r] = (int)p->out.total;
        p->in.total += (size_t)in_counts[r];
        p->out.total += (size_t)out_counts[r];
        if (p->in.total > INT_MAX || p->out.total > INT_MAX)
            fatal("%s:%d: more than %d elements in one all_to_all_v; MPI takes no more", place.file, place.line,
                  INT_MAX);
    }
    return p;
}

Work *comm_start_all_to_all_v_at(Place place, Group *group, void *out, const int *out_counts, const void *in,
                                 const int *in_counts, CommType type)
{
    Pieces *pieces = pieces_of(place, group->size, in_counts, out_counts);
    Collective what = {COMM_ALL_TO_ALL_V, out, in, pieces->in.total, type, .pieces = pieces, .place = place};
    check_apart(group, &what);
    return start(group, what);
}

Work *comm_start_send_receive_at(Place place, Group *group, void *out, const void *in, size_t count, CommType type,
                                 int distance)
{
    Collective what = {COMM_SEND_RECEIVE, out, in, count, type, .distance = distance, .place = place};
    int n = group->size, forward = (distance % n + n) % n;
    what.to = (group->rank + forward) % n;
    what.from = (group->rank + n - forward) % n;
    check_apart(group, &what);
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
    free(work->what.pieces);
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
