/* What comm.c and groups.c share with what is behind them, comm_mpi.c and comm_nccl.c (or no_nccl.c), and with nobody
 * else. comm.c calls all of these, comm_nccl.c and its comm_host_path.c call comm_mpi.c, and none calls back. */
#pragma once

#include "comm/comm.h"

/* The pieces of an all_to_all_v: piece r has in.count[r] elements and begins at element in.at[r]; likewise out. */
typedef struct {
    struct {
        int *count, *at;
        size_t total; /* elements of all pieces */
    } in, out;
} Pieces;

typedef struct {
    CommKind kind;
    void *out;
    const void *in;
    size_t count;
    CommType type;
    CommOp op;
    int root;
    Pieces *pieces;         /* of an all_to_all_v */
    int distance, to, from; /* of a send_receive: as the caller gave it, and the two ranks that it means */
    Place place;
} Collective;

struct Group {
    char name[16];
    int size, rank;
    bool counted;
    long sequence; /* collectives started so far: their number in the flight recorder */
    CommCount count[COMM_KINDS];
    int index; /* in comm_group() and in the backend's table of communicators */
};

struct Work {
    Collective what;
    Group *group;
    int record;     /* slot in the flight recorder */
    int index;      /* in comm.c's pool and in the backend's table of requests */
    double started; /* trace clock */
    int marks[2];   /* where the GPU begins and ends it (marks.h); -1: it is timed on the host */
    bool on_device; /* its buffers are GPU memory */
    bool counted;
    bool busy, done;
};

enum { GROUPS_MAX = 8192 }; /* a trainer has about twenty; tests make those of hundreds of meshes */
enum { WORKS_MAX = 1024 };  /* one in flight for each unit of a model */

/* --- groups.c --- */

Group *group_new(const char *name); /* the next of the table, counted, with neither ranks nor communicator yet */
void groups_forget(void);

/* Elements of the two buffers. */
size_t collective_in(const Collective *collective, int ranks);
size_t collective_out(const Collective *collective, int ranks);

/* --- the backend --- */

void backend_init(int *argc, char ***argv, int *world_rank, int *world_size, int *local_rank, int *local_ranks);

/* [all ranks of this host] From its first rank to the others; and: is it true on all of them? */
void backend_host_broadcast(void *data, size_t bytes);
bool backend_host_all(bool good);

void backend_finalize(void);
void backend_split(int parent, int color, int child, int *size, int *rank); /* child: index of the new group */
void backend_duplicate(int parent, int child);
void backend_start(Work *work);
bool backend_test(Work *work);
void backend_wait(Work *work);

/* [all ranks of the group] Blocking, neither recorded nor counted: `all` gets each rank's `mine`, in order of rank;
 * rank 0's data to the others. */
void backend_gather(const Group *group, void *all, const void *mine, size_t bytes);
void backend_broadcast(const Group *group, void *data, size_t bytes);

/* Debug builds: compares kind, count, type, operation, root and distance with every rank of the group and aborts, naming
 * both places, when they differ. Elsewhere: nothing. */
void backend_compare(const Work *work);

/* --- GPU memory: comm_nccl.c, or no_nccl.c where nothing is --- */

bool device_owns(const void *buffer);
void device_start(Work *work);
bool device_test(Work *work);
void device_wait(Work *work); /* kernels launched later wait; the host need not */
void device_finalize(void);

/* [all ranks of the group] Makes what the group's collectives on GPU memory need. Otherwise the first of them does. */
void device_open(Group *group);
