/* The flight recorder and the watchdog.
 *
 * The recorder is a ring of the last collectives of this rank. The watchdog is a thread that looks at a clock: when the
 * rank has neither finished a collective nor called comm_progress() for `timeout` seconds, it prints one line saying
 * where the rank waits, leaves the other ranks time to do the same, and ends the job. A rank that is ended by a signal
 * (mpirun's SIGTERM after another rank died, Ctrl-C) says where it was too.
 */
#pragma once

#include "comm/comm_internal.h"

enum { RECORDS = 64 };

/* Notes that a collective begins; returns its slot. */
int recorder_begin(const Group *group, const Collective *what);
void recorder_end(int slot);

/* The rank now blocks until the collective in `slot` is done; -1: it blocks no longer. */
void recorder_waits_for(int slot);

/* NCCL has it: from here on device_passed says whether it is done. */
void recorder_hand_to_gpu(int slot);

/* A sign of life. */
void recorder_alive(void);

/* Starts the watchdog; 0 seconds: silence is never suspicious, only what NCCL reports ends the job. Call once, best before
 * comm_init, which is the first that can hang. Also takes care of signals: those that end a rank say where it was. */
void watchdog_start(double timeout_seconds);

/* From here to watchdog_resume (calls nest) only silence of 60 times the timeout is suspicious: this rank waits for what rank 0
 * does for all. */
void watchdog_be_patient(void);
void watchdog_resume(void);

/* MPI is about to be ended: from here on a signal is not worth a word, and the watchdog is patient. */
void watchdog_finalizing(void);

/* From here on silence is not suspicious any more. */
void watchdog_stop(void);
