/* Groups of ranks, and collectives over them.
 *
 * Why: every byte that leaves a rank passes this one place. Here calls are counted, recorded for the watchdog, traced
 * and (in debug builds) compared over the group before they start; what moves the bytes is behind it: comm_mpi.c,
 * and comm_nccl.c for buffers in a GPU's memory.
 *
 * Callers owe three things. All ranks of a group call the same collectives on it in the same order. A buffer handed to
 * comm_start_* is not touched until comm_wait has returned. And while work is in flight, comm_progress() is called now
 * and then: a CPU moves MPI's data only inside MPI calls, of which each moves whatever is under way.
 *
 * Nothing here returns an error: a failing library call ends the job, saying which call, where and on which rank.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/kinds.h"

typedef struct Group Group; /* an ordered set of ranks; a rank knows its place only through a group */
typedef struct Work Work;   /* a collective that was started */

typedef struct {
    const char *file;
    int line;
} Place; /* where in the source a collective was called */

/* --- start and end --- */

/* [all ranks] Starts MPI. Call first. */
void comm_init(int *argc, char ***argv);

/* [all ranks] Frees every group and ends MPI. */
void comm_finalize(void);

/* Ends every rank of the job at once, from any rank, with this status. */
void comm_abort(int status);

int comm_world_rank(void);  /* before comm_init: what the launcher says, or 0 */
int comm_local_ranks(void); /* ranks of this job on this host */
int comm_local_rank(void);  /* this rank's number among them */

/* --- groups --- */

Group *comm_world(void);   /* all ranks */
Group *comm_control(void); /* all ranks too, for what is not training: agreement, verify, traces. Never counted. */

/* [all ranks of parent] Cuts `parent`: ranks that give the same color (>= 0) form a group, ordered as in parent. A rank
 * that gives -1 gets NULL. The group belongs to comm and lives until comm_finalize. `name` is at most 15 characters
 * and appears in traces, ledgers and error lines. */
Group *group_split(Group *parent, int color, const char *name);

/* [all ranks of the group] If `buffer` lies in a GPU's memory: connects the group's GPUs now, rather than in the first
 * step's first collective. */
void group_open_device(Group *group, const void *buffer);

int group_size(const Group *group);
int group_rank(const Group *group);
const char *group_name(const Group *group);

/* --- collectives: [all ranks of the group] ---
 * `count` is in elements, at most INT_MAX. comm_X(...) is comm_start_X(...) followed by comm_wait.
 *
 *   barrier         nobody leaves before all have come
 *   broadcast       buffer[count] of rank `root` to all
 *   all_reduce      buffer[count] becomes the sum (max, min) over ranks, the same bits on all of them
 *   all_gather      out[size * count]: piece r comes from rank r's in[count]; in may be out + rank * count
 *   reduce_scatter  out[count]: rank r gets the sum over ranks of piece r of in[size * count]
 *   all_to_all      out[size * count]: piece r comes from rank r, where it is piece `rank` of in[size * count]
 *   all_to_all_v    the same with pieces of unequal lengths, one after the other: piece r of `in` has in_counts[r] elements,
 *                   piece r of `out` has out_counts[r]; both arrays have an entry for each rank and may go after the call
 *   send_receive    in[count] goes to rank + distance, out[count] comes from rank - distance, modulo the group's size:
 *                   one step around a ring. Any int is a distance, the same on all ranks; a multiple of the size copies
 *
 * The last three move bytes as they are, and their `out` and `in` do not overlap.
 */
Work *comm_start_barrier_at(Place, Group *);
Work *comm_start_broadcast_at(Place, Group *, void *buffer, size_t count, CommType, int root);
Work *comm_start_all_reduce_at(Place, Group *, void *buffer, size_t count, CommType, CommOp);
Work *comm_start_all_gather_at(Place, Group *, void *out, const void *in, size_t count, CommType);
Work *comm_start_reduce_scatter_at(Place, Group *, void *out, const void *in, size_t count, CommType, CommOp);
Work *comm_start_all_to_all_at(Place, Group *, void *out, const void *in, size_t count, CommType);
Work *comm_start_all_to_all_v_at(Place, Group *, void *out, const int *out_counts, const void *in, const int *in_counts,
                                 CommType);
Work *comm_start_send_receive_at(Place, Group *, void *out, const void *in, size_t count, CommType, int distance);

#define COMM_HERE                      ((Place){__FILE__, __LINE__})
#define comm_start_broadcast(...)      comm_start_broadcast_at(COMM_HERE, __VA_ARGS__)
#define comm_start_all_reduce(...)     comm_start_all_reduce_at(COMM_HERE, __VA_ARGS__)
#define comm_start_all_gather(...)     comm_start_all_gather_at(COMM_HERE, __VA_ARGS__)
#define comm_start_reduce_scatter(...) comm_start_reduce_scatter_at(COMM_HERE, __VA_ARGS__)
#define comm_start_all_to_all(...)     comm_start_all_to_all_at(COMM_HERE, __VA_ARGS__)
#define comm_start_all_to_all_v(...)   comm_start_all_to_all_v_at(COMM_HERE, __VA_ARGS__)
#define comm_start_send_receive(...)   comm_start_send_receive_at(COMM_HERE, __VA_ARGS__)
#define comm_barrier(group)            comm_wait(comm_start_barrier_at(COMM_HERE, group))
#define comm_broadcast(...)            comm_wait(comm_start_broadcast(__VA_ARGS__))
#define comm_all_reduce(...)           comm_wait(comm_start_all_reduce(__VA_ARGS__))
#define comm_all_gather(...)           comm_wait(comm_start_all_gather(__VA_ARGS__))
#define comm_reduce_scatter(...)       comm_wait(comm_start_reduce_scatter(__VA_ARGS__))
#define comm_all_to_all(...)           comm_wait(comm_start_all_to_all(__VA_ARGS__))
#define comm_all_to_all_v(...)         comm_wait(comm_start_all_to_all_v(__VA_ARGS__))
#define comm_send_receive(...)         comm_wait(comm_start_send_receive(__VA_ARGS__))

/* Returns when the work is done; `work` is then no longer valid. NULL is allowed and returns at once. */
void comm_wait(Work *work);

/* Lets started work advance. Cheap; the model calls it between kernels. */
void comm_progress(void);

/* --- counting --- */

typedef struct {
    long calls;
    double payload; /* bytes: the size given to the call times comm_payload_factor (kinds.h) */
} CommCount;

CommCount group_count(const Group *group, CommKind kind);
double comm_sent(void); /* payload of all counted groups since the start */

/* While on (calls nest), collectives are neither counted nor traced nor skipped by --bug: what checks a run is not part
 * of it. */
void comm_uncounted(int on);

/* [all ranks of the group] Are these bytes the same on every rank? Compares a hash of them; not counted. */
bool comm_same_bits(Group *group, const void *data, size_t bytes);

/* Groups in order of creation, for printing; NULL past the end. */
Group *comm_group(int index);
bool group_is_counted(const Group *group);
