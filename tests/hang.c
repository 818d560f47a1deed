/* A program that goes wrong on purpose, so that tests/cli_watchdog.sh can look at what is said about it.
 *
 *   hang MODE [RANK]     RANK, 1 if not given, is the odd one; a single rank is the odd one too
 *
 *   missing    the odd one goes to the end of MPI, the others wait in a collective
 *   kinds      it calls another collective
 *   mismatch   it calls the same collective with another count (debug builds say so)
 *   to_all     it goes to the end of MPI, the others wait in an all_to_all
 *   ring       it goes to the end of MPI, the rank after it waits in a send_receive
 *   distance   it calls a send_receive with another distance (debug builds say so)
 *   overlap    it calls an all_to_all whose buffers overlap
 *   slow       it computes for three times the timeout without a sign of life, and the others wait for it
 *   busy       all compute for a while, showing signs of life
 *   stop       its process is stopped while it computes
 *   wait       its process is stopped while it waits for the others, which compute for a while
 *   last       its process is stopped before the end of MPI
 *   leaves     it never comes to the end of MPI
 *   kill       its process is killed
 *   exit       it exits without a word
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/comm.h"
#include "comm/watchdog.h"

static const double TIMEOUT = 0.5;

static const char *mode;

static bool is(const char *name)
{
    return strcmp(mode, name) == 0;
}

static void compute(double seconds)
{
    for (double end = clock_seconds() + seconds; clock_seconds() < end;) {
    }
}

static void stop_me_later(int unused)
{
    (void)unused;
    raise(SIGSTOP);
}

int main(int argc, char **argv)
{
    comm_init(&argc, &argv);
    mode = argc > 1 ? argv[1] : "";
    watchdog_start(TIMEOUT);
    Group *world = comm_world();
    bool odd_one = group_size(world) == 1 || group_rank(world) == (argc > 2 ? atoi(argv[2]) : 1);
    double x[8] = {0}, y[8];
    comm_all_reduce(world, x, 4, COMM_DOUBLE, COMM_SUM);

    if (is("busy"))
        for (int i = 0; i < 30; i++) {
            usleep(100000);
            comm_progress();
        }
    if (is("mismatch")) comm_all_reduce(world, x, odd_one ? 5 : 4, COMM_DOUBLE, COMM_SUM);
    if (is("to_all") && !odd_one) comm_all_to_all(world, y, x, 2, COMM_DOUBLE);
    if (is("ring") && !odd_one) comm_send_receive(world, y, x, 8, COMM_DOUBLE, 1);
    if (is("distance")) comm_send_receive(world, y, x, 7, COMM_DOUBLE, odd_one ? -1 : 1);
    if (is("overlap")) comm_all_to_all(world, odd_one ? x + 1 : y, x, 2, COMM_DOUBLE);
    if (is("kinds") && odd_one) comm_broadcast(world, x, 8, COMM_DOUBLE, 0);
    if (is("slow") && odd_one) compute(3 * TIMEOUT);
    if (is("stop") && odd_one) raise(SIGSTOP);
    if (is("kill") && odd_one) raise(SIGKILL);
    if (is("exit") && odd_one) _exit(0);
    if (is("wait") && odd_one) {
        signal(SIGALRM, stop_me_later);
        alarm(1);
    }
    if (is("wait") && !odd_one) compute(6 * TIMEOUT);
    bool stays_away = odd_one && (is("missing") || is("to_all") || is("ring"));
    if (!stays_away) comm_all_reduce(world, x, 8, COMM_DOUBLE, COMM_MAX);
    if (is("last") && odd_one) raise(SIGSTOP);
    if (is("leaves") && odd_one) compute(3 * TIMEOUT);
    comm_finalize();
    return 0;
}
