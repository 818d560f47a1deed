/* The collectives of comm.h over MPI. */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_internal.h"
#include "comm/peers.h"
#include "base/error.h"
#include "base/precision.h"

#define MPI_CHECK(call)                                                                                                \
    do {                                                                                                               \
        int code_ = (call);                                                                                            \
        if (code_ != MPI_SUCCESS) mpi_fail(code_, #call, __FILE__, __LINE__);                                          \
    } while (0)

enum { REQUESTS = 2 }; /* of one work: a send_receive has two, the other kinds have one and a null request */
enum { SEND_RECEIVE_TAG = 1 };

static MPI_Comm comms[GROUPS_MAX];                /* by Group.index */
static MPI_Request requests[WORKS_MAX][REQUESTS]; /* by Work.index */
static MPI_Comm host;                             /* the ranks that share memory with this one */
static int comm_total;

static void mpi_fail(int code, const char *call, const char *file, int line)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    MPI_Error_string(code, text, &length);
    fatal("%s:%d: %s: %s", file, line, call, text);
}

void backend_init(int *argc, char ***argv, int *world_rank, int *world_size, int *local_rank, int *local_ranks)
{
    int provided;
    MPI_CHECK(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided));
    MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, world_rank));
    MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, world_size));
    MPI_CHECK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host));
    MPI_CHECK(MPI_Comm_rank(host, local_rank));
    MPI_CHECK(MPI_Comm_size(host, local_ranks));
    comms[0] = MPI_COMM_WORLD;
    comm_total = 1;
}

void backend_host_broadcast(void *data, size_t bytes)
{
    MPI_CHECK(MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, host));
}

bool backend_host_all(bool good)
{
    int all = good;
    MPI_CHECK(MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, host));
    return all;
}

void backend_duplicate(int parent, int child)
{
    MPI_CHECK(MPI_Comm_dup(comms[parent], &comms[child]));
    comm_total = child + 1;
}

void backend_split(int parent, int color, int child, int *size, int *rank)
{
    MPI_CHECK(MPI_Comm_split(comms[parent], color >= 0 ? color : MPI_UNDEFINED, 0, &comms[child]));
    comm_total = child + 1;
    if (color < 0) return;
    MPI_CHECK(MPI_Comm_size(comms[child], size));
    MPI_CHECK(MPI_Comm_rank(comms[child], rank));
}

void backend_finalize(void)
{
    for (int c = 1; c < comm_total; c++)
        if (comms[c] != MPI_COMM_NULL) MPI_CHECK(MPI_Comm_free(&comms[c]));
    MPI_CHECK(MPI_Comm_free(&host));
    MPI_CHECK(MPI_Finalize());
}

void comm_abort(int status)
{
    int running = 0;
    peers_set_phase(PEER_ENDED);
    MPI_Initialized(&running);
    if (running) MPI_Abort(MPI_COMM_WORLD, status);
    exit(status);
}

static MPI_Datatype type_of(CommType type)
{
    const MPI_Datatype word = sizeof(acc) == sizeof(double) ? MPI_DOUBLE : MPI_FLOAT;
    switch (type) {
    case COMM_BYTE: return MPI_BYTE;
    case COMM_INT64: return MPI_INT64_T;
    case COMM_DOUBLE: return MPI_DOUBLE;
    case COMM_REAL: return sizeof(real) == 2 ? MPI_UINT16_T : word; /* bf16 is moved here, never summed */
    case COMM_ACC: return word;
    }
    fatal("no such type: %d", (int)type);
}

static MPI_Op op_of(CommOp op)
{
    return op == COMM_SUM ? MPI_SUM : op == COMM_MAX ? MPI_MAX : MPI_MIN;
}

void backend_start(Work *work)
{
    const Collective *c = &work->what;
    MPI_Comm comm = comms[work->group->index];
    MPI_Request *request = requests[work->index];
    MPI_Datatype type = type_of(c->type);
    int count = (int)c->count;
    const char *mine =
        c->out ? (const char *)c->out + (size_t)work->group->rank * c->count * comm_type_size(c->type) : NULL;
    request[1] = MPI_REQUEST_NULL;
    switch (c->kind) {
    case COMM_BARRIER: MPI_CHECK(MPI_Ibarrier(comm, request)); break;
    case COMM_BROADCAST: MPI_CHECK(MPI_Ibcast(c->out, count, type, c->root, comm, request)); break;
    case COMM_ALL_REDUCE:
        MPI_CHECK(MPI_Iallreduce(MPI_IN_PLACE, c->out, count, type, op_of(c->op), comm, request));
        break;
    case COMM_ALL_GATHER:
        MPI_CHECK(
            MPI_Iallgather(c->in == mine ? MPI_IN_PLACE : c->in, count, type, c->out, count, type, comm, request));
        break;
    case COMM_REDUCE_SCATTER:
        MPI_CHECK(MPI_Ireduce_scatter_block(c->in, c->out, count, type, op_of(c->op), comm, request));
        break;
    case COMM_ALL_TO_ALL: MPI_CHECK(MPI_Ialltoall(c->in, count, type, c->out, count, type, comm, request)); break;
    case COMM_ALL_TO_ALL_V:
        MPI_CHECK(MPI_Ialltoallv(c->in, c->pieces->in.count, c->pieces->in.at, type, c->out, c->pieces->out.count,
                                 c->pieces->out.at, type, comm, request));
        break;
    case COMM_SEND_RECEIVE:
        /* One tag is enough for any number in flight: messages from one rank to another match in the order of the
         * calls, and that order is the same on all ranks. In a group of 2 the distances 1 and -1 mean the same peer,
         * and the first send there is the first receive here. */
        MPI_CHECK(MPI_Irecv(c->out, count, type, c->from, SEND_RECEIVE_TAG, comm, &request[0]));
        MPI_CHECK(MPI_Isend(c->in, count, type, c->to, SEND_RECEIVE_TAG, comm, &request[1]));
        break;
    default: fatal("no such collective: %d", (int)c->kind);
    }
}

bool backend_test(Work *work)
{
    int done = 1;
    for (int r = 0; r < REQUESTS && done; r++) MPI_CHECK(MPI_Test(&requests[work->index][r], &done, MPI_STATUS_IGNORE));
    return done;
}

void backend_wait(Work *work)
{
    for (int r = 0; r < REQUESTS; r++) MPI_CHECK(MPI_Wait(&requests[work->index][r], MPI_STATUS_IGNORE));
}

void backend_gather(const Group *group, void *all, const void *mine, size_t bytes)
{
    MPI_CHECK(MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, comms[group->index]));
}

void backend_broadcast(const Group *group, void *data, size_t bytes)
{
    MPI_CHECK(MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, comms[group->index]));
}

/* --- debug builds: is everyone making the same call? --- */

#ifdef DEBUG
typedef struct {
    int kind, type, op, root, distance, line, world_rank;
    size_t count;
    char file[64];
} Ticket;

static void print_ticket(const Ticket *t)
{
    static const char *const types[] = {"byte", "int64", "double", "real", "acc"}, *const ops[] = {"sum", "max", "min"};
    fprintf(stderr, "  rank %d: %s of %zu %s", t->world_rank, comm_kind_name((CommKind)t->kind), t->count,
            types[t->type]);
    if (t->kind == COMM_SEND_RECEIVE)
        fprintf(stderr, ", distance %d", t->distance);
    else
        fprintf(stderr, ", %s, root %d", ops[t->op], t->root);
    fprintf(stderr, ", at %s:%d\n", t->file, t->line);
}

/* Does each rank send as many elements as the other expects? */
static void compare_pieces(const Work *work)
{
    const Group *group = work->group;
    const Pieces *p = work->what.pieces;
    int *sent_to_me = malloc((size_t)group->size * sizeof *sent_to_me);
    MPI_CHECK(MPI_Alltoall(p->in.count, 1, MPI_INT, sent_to_me, 1, MPI_INT, comms[group->index]));
    for (int r = 0; r < group->size; r++)
        if (sent_to_me[r] != p->out.count[r])
            fatal("%s:%d: all_to_all_v on %s: rank %d of the group sends %d elements, and this rank expects %d",
                  work->what.place.file, work->what.place.line, group->name, r, sent_to_me[r], p->out.count[r]);
    free(sent_to_me);
}

void backend_compare(const Work *work)
{
    const Collective *c = &work->what;
    Group *group = work->group;
    Ticket mine;
    memset(&mine, 0, sizeof mine);
    bool uneven = c->kind == COMM_ALL_TO_ALL_V; /* its counts differ: compare_pieces */
    mine = (Ticket){(int)c->kind,   (int)c->type,          (int)c->op, c->root, c->distance, c->place.line,
                    process_rank(), uneven ? 0 : c->count, ""};
    snprintf(mine.file, sizeof mine.file, "%s", c->place.file);
    Ticket *all = malloc((size_t)group->size * sizeof *all);
    backend_gather(group, all, &mine, sizeof mine);
    for (int r = 0; r < group->size; r++) {
        const Ticket *other = &all[r];
        bool same = other->kind == mine.kind && other->type == mine.type && other->op == mine.op &&
                    other->root == mine.root && other->distance == mine.distance && other->count == mine.count;
        if (same) continue;
        if (group->rank == 0) {
            fprintf(stderr, "mismatch on group %s at collective #%ld:\n", group->name, group->sequence);
            print_ticket(&mine);
            print_ticket(other);
        }
        MPI_CHECK(MPI_Barrier(comms[group->index])); /* rank 0 has spoken before anyone aborts */
        comm_abort(1);
    }
    free(all);
    if (uneven) compare_pieces(work);
}
#else
void backend_compare(const Work *work)
{
    (void)work;
}
#endif
