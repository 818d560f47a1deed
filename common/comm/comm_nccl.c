/* Collectives on GPU memory: over NCCL, one communicator and one stream per group; or, where ranks of the group share a
 * GPU, which NCCL refuses, over MPI through pinned host memory (comm_host_path.h).
 *
 * A collective waits for the kernels launched before it, and the kernels after comm_wait wait for it: both by events
 * between streams, so on the NCCL path the host never waits. Collectives of different groups start in program order,
 * which is the same on all ranks: NCCL sees to that itself where it can (NCCL_LAUNCH_ORDER_IMPLICIT, since 2.26);
 * before, each waits for the one issued before it. */
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm_host_path.h"
#include "comm/comm_internal.h"
#include "comm/device_watch.h"
#include "base/error.h"
#include "kernels/cuda_check.h"
#include "kernels/marks_cuda.h"
#include "base/precision.h"
#include "comm/recorder.h"

#define NCCL_CHECK(call)                                                                                               \
    do {                                                                                                               \
        ncclResult_t code_ = (call);                                                                                   \
        if (code_ != ncclSuccess)                                                                                      \
            fatal("%s:%d: %s: %s (%s)", __FILE__, __LINE__, #call, ncclGetErrorString(code_), ncclGetLastError(NULL)); \
    } while (0)

enum { IMPLICIT_ORDER_SINCE = 22600 }; /* NCCL's version code of 2.26.0 */

/* By Group.index. */
static struct {
    bool made, over_host;
    ncclComm_t comm; /* the watchdog's thread reads it too */
    cudaStream_t stream;
} lanes[GROUPS_MAX];
static pthread_mutex_t lanes_mutex = PTHREAD_MUTEX_INITIALIZER;

/* By Work.index. */
static struct {
    cudaEvent_t ready, done; /* its input is there; its output is there */
} slots[WORKS_MAX];

static cudaEvent_t begun[RECORDS], passed[RECORDS]; /* by Work.record; the watchdog's thread asks */
static cudaEvent_t last_issued; /* the `done` of the collective before, where NCCL does not order them */
static bool chained;

bool device_owns(const void *buffer)
{
    struct cudaPointerAttributes attributes;
    if (!buffer || cudaPointerGetAttributes(&attributes, buffer) != cudaSuccess) {
        cudaGetLastError(); /* not an error: there may be no GPU at all */
        return false;
    }
    return attributes.type == cudaMemoryTypeDevice;
}

/* --- groups --- */

/* Which GPU of which host? Equal for two ranks if and only if they share it. */
typedef struct {
    char host[64], bus[32];
} Seat;

/* [all ranks of the group] */
static bool some_share_a_gpu(Group *group)
{
    Seat mine, *all = calloc((size_t)group->size, sizeof *all);
    if (!all) fatal("out of memory");
    memset(&mine, 0, sizeof mine);
    int device;
    gethostname(mine.host, sizeof mine.host - 1);
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetPCIBusId(mine.bus, sizeof mine.bus, device));
    backend_gather(group, all, &mine, sizeof mine);
    bool share = false;
    for (int a = 0; a < group->size; a++)
        for (int b = 0; b < a; b++) share = share || memcmp(&all[a], &all[b], sizeof *all) == 0;
    free(all);
    return share;
}

void device_open(Group *group)
{
    if (lanes[group->index].made) return;
    lanes[group->index].made = true;
    int record = recorder_begin("ncclCommInitRank", group->name, 0, 0, __FILE__, __LINE__);
    recorder_waits_for(record);
    lanes[group->index].over_host = some_share_a_gpu(group);
    if (lanes[group->index].over_host) {
        if (group->rank == 0)
            printf("note: ranks of group %s share a GPU; its collectives go over MPI through host memory\n",
                   group->name);
    } else {
        int version;
        NCCL_CHECK(ncclGetVersion(&version));
        chained = version < IMPLICIT_ORDER_SINCE;
        setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
        ncclUniqueId id;
        ncclComm_t comm;
        if (group->rank == 0) NCCL_CHECK(ncclGetUniqueId(&id));
        backend_broadcast(group, &id, sizeof id);
        NCCL_CHECK(ncclCommInitRank(&comm, group->size, id, group->rank));
        pthread_mutex_lock(&lanes_mutex);
        lanes[group->index].comm = comm;
        pthread_mutex_unlock(&lanes_mutex);
        CUDA_CHECK(cudaStreamCreateWithFlags(&lanes[group->index].stream, cudaStreamNonBlocking));
    }
    recorder_waits_for(-1);
    recorder_end(record);
}

bool device_can_fail(void)
{
    return true;
}

bool device_is_in(int record)
{
    return passed[record] && cudaEventQuery(begun[record]) == cudaSuccess &&
           cudaEventQuery(passed[record]) == cudaErrorNotReady;
}

const char *device_failure(void)
{
    const char *failure = NULL;
    pthread_mutex_lock(&lanes_mutex);
    for (int g = 0; g < GROUPS_MAX && !failure; g++) {
        ncclResult_t code = ncclSuccess;
        if (lanes[g].comm && ncclCommGetAsyncError(lanes[g].comm, &code) == ncclSuccess && code != ncclSuccess &&
            code != ncclInProgress)
            failure = ncclGetErrorString(code);
    }
    pthread_mutex_unlock(&lanes_mutex);
    return failure;
}

void device_finalize(void)
{
    pthread_mutex_lock(&lanes_mutex);
    for (int g = 0; g < GROUPS_MAX; g++)
        if (lanes[g].comm) NCCL_CHECK(ncclCommDestroy(lanes[g].comm));
    memset(lanes, 0, sizeof lanes);
    pthread_mutex_unlock(&lanes_mutex);
}

/* --- over NCCL --- */

static ncclDataType_t nccl_type(CommType type)
{
    const ncclDataType_t of_acc = sizeof(acc) == 8 ? ncclFloat64 : ncclFloat32;
    switch (type) {
    case COMM_BYTE: return ncclInt8;
    case COMM_INT64: return ncclInt64;
    case COMM_DOUBLE: return ncclFloat64;
    case COMM_REAL: return sizeof(real) == 2 ? ncclBfloat16 : of_acc;
    default: return of_acc;
    }
}

/* Sends and receives that wait for each other are one NCCL group, so that they advance together; so are those of a rank
 * with itself. Those with the same peer match in the order of the calls, which is the same on all ranks. */
static void all_to_all(const Collective *c, int ranks, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)
{
    size_t piece = c->count * comm_type_size(c->type);
    NCCL_CHECK(ncclGroupStart());
    for (int r = 0; r < ranks; r++) {
        NCCL_CHECK(ncclSend((const char *)c->in + (size_t)r * piece, c->count, type, r, comm, stream));
        NCCL_CHECK(ncclRecv((char *)c->out + (size_t)r * piece, c->count, type, r, comm, stream));
    }
    NCCL_CHECK(ncclGroupEnd());
}

static void all_to_all_v(const Collective *c, int ranks, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)
{
    const Pieces *p = c->pieces;
    size_t size = comm_type_size(c->type);
    NCCL_CHECK(ncclGroupStart());
    for (int r = 0; r < ranks; r++) {
        const char *in = (const char *)c->in + (size_t)p->in.at[r] * size;
        char *out = (char *)c->out + (size_t)p->out.at[r] * size;
        if (p->in.count[r] > 0) NCCL_CHECK(ncclSend(in, (size_t)p->in.count[r], type, r, comm, stream));
        if (p->out.count[r] > 0) NCCL_CHECK(ncclRecv(out, (size_t)p->out.count[r], type, r, comm, stream));
    }
    NCCL_CHECK(ncclGroupEnd());
}

static void send_receive(const Collective *c, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)
{
    NCCL_CHECK(ncclGroupStart());
    NCCL_CHECK(ncclSend(c->in, c->count, type, c->to, comm, stream));
    NCCL_CHECK(ncclRecv(c->out, c->count, type, c->from, comm, stream));
    NCCL_CHECK(ncclGroupEnd());
}

static void start_nccl(Work *work)
{
    const Collective *c = &work->what;
    ncclComm_t comm = lanes[work->group->index].comm;
    cudaStream_t stream = lanes[work->group->index].stream;
    ncclDataType_t type = nccl_type(c->type);
    ncclRedOp_t op = c->op == COMM_SUM ? ncclSum : c->op == COMM_MAX ? ncclMax : ncclMin;
    CUDA_CHECK(cudaEventRecord(slots[work->index].ready, cuda_stream()));
    CUDA_CHECK(cudaStreamWaitEvent(stream, slots[work->index].ready, 0));
    if (chained && last_issued) CUDA_CHECK(cudaStreamWaitEvent(stream, last_issued, 0));
    if (!passed[work->record]) {
        CUDA_CHECK(cudaEventCreateWithFlags(&begun[work->record], cudaEventDisableTiming));
        CUDA_CHECK(cudaEventCreateWithFlags(&passed[work->record], cudaEventDisableTiming));
    }
    CUDA_CHECK(cudaEventRecord(begun[work->record], stream));
    work->marks[0] = mark_stream(stream);
    switch (c->kind) {
    case COMM_BROADCAST: NCCL_CHECK(ncclBroadcast(c->out, c->out, c->count, type, c->root, comm, stream)); break;
    case COMM_ALL_REDUCE: NCCL_CHECK(ncclAllReduce(c->out, c->out, c->count, type, op, comm, stream)); break;
    case COMM_ALL_GATHER: NCCL_CHECK(ncclAllGather(c->in, c->out, c->count, type, comm, stream)); break;
    case COMM_REDUCE_SCATTER: NCCL_CHECK(ncclReduceScatter(c->in, c->out, c->count, type, op, comm, stream)); break;
    case COMM_ALL_TO_ALL: all_to_all(c, work->group->size, type, comm, stream); break;
    case COMM_ALL_TO_ALL_V: all_to_all_v(c, work->group->size, type, comm, stream); break;
    case COMM_SEND_RECEIVE: send_receive(c, type, comm, stream); break;
    default: fatal("no such collective on a GPU: %s", comm_kind_name(c->kind));
    }
    work->marks[1] = mark_stream(stream);
    CUDA_CHECK(cudaEventRecord(slots[work->index].done, stream));
    CUDA_CHECK(cudaEventRecord(passed[work->record], stream));
    recorder_hand_to_gpu(work->record);
    last_issued = slots[work->index].done;
}

/* --- either way --- */

void device_start(Work *work)
{
    device_open(work->group);
    if (!slots[work->index].ready) {
        CUDA_CHECK(cudaEventCreateWithFlags(&slots[work->index].ready, cudaEventDisableTiming));
        CUDA_CHECK(cudaEventCreateWithFlags(&slots[work->index].done, cudaEventDisableTiming));
    }
    if (lanes[work->group->index].over_host)
        host_path_start(work);
    else
        start_nccl(work);
}

bool device_test(Work *work)
{
    if (lanes[work->group->index].over_host) return host_path_test(work);
    cudaError_t code = cudaEventQuery(slots[work->index].done);
    if (code == cudaErrorNotReady) return false;
    CUDA_CHECK(code);
    return true;
}

void device_wait(Work *work)
{
    if (lanes[work->group->index].over_host)
        host_path_wait(work);
    else
        CUDA_CHECK(cudaStreamWaitEvent(cuda_stream(), slots[work->index].done, 0));
}
