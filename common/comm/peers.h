/* The ranks of this host, and what each can see of the others.
 *
 * A table holds a slot for each rank: its process, how far it has come, and its flight recorder. comm_init puts the
 * table into memory that the ranks share. That memory is a file without a name, so nothing stays behind, however the
 * job ends. Before comm_init, and where ranks may not look at each other's processes, the table holds this rank
 * alone. */
#pragma once

#include <stdint.h>

#include "comm/recorder.h"

typedef enum { PEER_STARTING, PEER_RUNNING, PEER_FINALIZING, PEER_ENDED } PeerPhase; /* STARTING: until MPI runs */

typedef struct {
    Recorder recorder;
    int rank;             /* in the world */
    int pid;              /* its process */
    int64_t born;         /* and when it started, in the kernel's ticks: a number can be used again; 0: not known */
    atomic_int phase;     /* PeerPhase */
    atomic_int gpu_waits; /* the slot of a collective that its GPU is in, or -1; its watchdog writes it */
} Peer;

/* Where the table is. */
typedef struct {
    int pid, fd;
    uint64_t key;
} PeersAddress;

/* This process takes the slot of the table of one. Called by what comes first, watchdog_start or comm_init; the second
 * time it does nothing. */
void peers_begin(void);

/* Makes a table for so many ranks. Called by the host's first rank, which hands the address to the others. */
PeersAddress peers_create(int ranks);

/* Opens that table and fills this rank's slot. Returns false where that is impossible. */
bool peers_open(PeersAddress address, int ranks, int local_rank);

/* After peers_open: from here on the shared table is the one in use, if all ranks of the host could open it (`shared`).
 * `ranks`: of the job. */
void peers_join(bool shared, int ranks);

int peers_count(void);
Peer *peer_at(int index);
Peer *peer_mine(void);
int peers_unseen(void); /* ranks of the job that the table does not hold */

void peers_set_phase(PeerPhase phase); /* of this rank; a sign of life */

/* Notes that the watchdogs end the run; `because` is the index of a rank that is stopped or gone, or -1. Returns true
 * to the first rank that does. */
bool peers_end(int because);
bool peers_ending(int *because);

/* The state of a rank's process, as in /proc/PID/stat: R or S runs or sleeps, T is stopped, t is held by a debugger. 0:
 * it is gone. '?': not known. */
char peer_state(const Peer *peer);
