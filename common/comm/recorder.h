/* The flight recorder: a ring of the last collectives of this rank, and which of them the rank waits for.
 *
 * The rank's main thread writes it, with plain stores, also between kernels: it costs next to nothing. The watchdog's
 * thread, the signal handler and the other ranks of this host read it. So it holds no pointers, and it can move into
 * memory that those ranks share (peers.h). A reader may see a record that is being written; in a rank that waits
 * nothing is written. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum { RECORDS = 64 };

typedef struct {
    char what[24]; /* all_reduce */
    char group[16];
    char file[32]; /* where in the source it was started, without the folder */
    int line;
    long number; /* among the group's collectives, from 1 */
    size_t count;
    atomic_bool done;
    atomic_bool on_gpu; /* handed to NCCL: the host has gone on, and the GPU knows when it is done */
} Record;

typedef struct {
    Record ring[RECORDS];
    atomic_int next;       /* the slot of the next record */
    atomic_int waited_for; /* slot; -1: the rank waits for nothing */
    atomic_ulong signs;    /* of life: it grows with every call below */
} Recorder;

extern Recorder *_Atomic recorder; /* this rank's */

/* From here on the recorder lies in `to`, with what it holds. */
void recorder_move(Recorder *to);

/* Notes that something begins which ranks do together; returns its slot. */
int recorder_begin(const char *what, const char *group, long number, size_t count, const char *path, int line);
void recorder_end(int slot);

/* The rank now blocks until what is in `slot` is done; -1: it blocks no longer. */
void recorder_waits_for(int slot);

/* NCCL has it: from here on the GPU knows whether it is done. */
void recorder_hand_to_gpu(int slot);

/* A sign of life. */
void recorder_alive(void);
