/* What comm.c shares with what is behind it (comm_mpi.c, comm_nccl.c or no_cuda.c) and with the flight recorder, and with
 * nobody else. */
#pragma once

#include "comm/comm.h"

typedef struct {
    CommKind kind;
    void *out;
    const void *in;
    size_t count;
    CommType type;
    CommOp op;
    int root;
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

enum { GROUPS_MAX = 256, WORKS_MAX = 1024 }; /* one in flight for each unit of a model */

/* --- the backend --- */

void backend_init(int *argc, char ***argv, int *world_rank, int *world_size, int *local_rank, int *local_ranks);
void backend_finalize(void);
void backend_split(int parent, int color, int child, int *size, int *rank); /* child: index of the new group */
void backend_duplicate(int parent, int child);
void backend_start(Work *work);
bool backend_test(Work *work);
void backend_wait(Work *work);

/* --- GPU memory: comm_nccl.c, or no_cuda.c where nothing is --- */

bool device_owns(const void *buffer);
void device_start(Work *work);
bool device_test(Work *work);
void device_wait(Work *work); /* kernels launched later wait; the host need not */
void device_finalize(void);

/* [all ranks of the group] Makes what the group's collectives on GPU memory need. Otherwise the first of them does. */
void device_open(Group *group);

/* From any thread: has the GPU done the collective with this slot in the flight recorder? */
bool device_passed(int record);

/* From any thread: NULL, or what NCCL says has gone wrong behind the host's back. */
const char *device_failure(void);

/* Debug builds: compares kind, count, type, operation and root with every rank of the group and aborts, naming both
 * places, when they differ. Elsewhere: nothing. */
void backend_compare(const Work *work);
