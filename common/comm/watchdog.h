/* The watchdog: a thread in each rank that tells a hang from a long computation. Waiting is suspicious, computing is
 * not.
 *
 * Ten times a second it looks at the ranks of its host (peers.h). A rank is silent while its recorder shows no sign of
 * life. With `timeout` seconds as the limit:
 *
 *   All ranks wait, each silent for longer: a deadlock. Each prints one line saying where it waits, and the run ends.
 *   Some wait for longer, and some compute: one line, from the first rank of the host; the run goes on.
 *   A rank's process is stopped for longer, or is gone: it is named, and the run ends.
 *   A rank's process is held by a debugger: as if it computed.
 *
 * Ranks of other hosts are not seen. If there are some, the ranks of a host must all wait PATIENCE times as long before
 * that counts as a deadlock; but not while MPI starts, when nobody computes: then it is `timeout`, or 5 s if that is
 * more, which many ranks on few cores need. A rank waits while it blocks in a collective, while its GPU is in one,
 * while MPI starts, and in MPI_Finalize. The run ends with status 1. */
#pragma once

/* Starts the watchdog; 0 seconds: only what NCCL reports ends the job. Call once, best before comm_init, which is the
 * first that can hang. Also takes care of signals: those that end a rank say where it was. */
void watchdog_start(double timeout_seconds);

/* MPI is about to be ended: from here on a signal that ends this rank is expected. */
void watchdog_finalizing(void);

/* This rank has left MPI: nobody waits for it any more. */
void watchdog_stop(void);
